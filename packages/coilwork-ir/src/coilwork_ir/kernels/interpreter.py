"""The reference interpreter of kernel IR: a launch, and a schedule of launches, in plain torch ops.

Cores are evaluated at every point of the kernel. Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.interpretation.memory import Memory, Value, view_as_line
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.interpretation.scalars import Access, Domain, Evaluator, combine
from coilwork_ir.kernels.nodes import (
    AttentionCore,
    AttentionGradientCore,
    ConvolutionCore,
    Core,
    Kernel,
    KernelCall,
    Schedule,
    Store,
)
from coilwork_ir.loops.convolutions import read_factors
from coilwork_ir.loops.interpreter import Bodies, GradientTerms, step, sum_values
from coilwork_ir.scalar import Parameter, iterate_postorder
from coilwork_ir.streams import ForkStream, JoinStream, RecordEvent, WaitEvent

# ---- Kernels and schedules ----


def interpret_kernel(
    kernel: Kernel, args: Mapping[str, Tensor], sizes: Mapping[str, int] | Sequence[int]
) -> None:
    """Run `kernel` on flat memory: `args` maps argument names to tensors of one dimension, which it
    overwrites.

    `sizes` gives the kernel's size symbols by name, or in the kernel's order. All loads see memory as it is
    on entry.

    Raises:
        InterpretError: arguments that do not fit the kernel, an access outside of an argument.
        IndexError, RuntimeError: a run-time check of the kernel failed.
    """
    values = _sizes(kernel, sizes)
    _check_args(kernel, args)
    if kernel.combined is not None:
        body = kernel.combined.body
        for member in kernel.combined.members:
            given = {formal.name: args[name] for formal, name in zip(body.args, member.args, strict=True)}
            interpret_kernel(body, given, [evaluate(size, values) for size in member.sizes])
        return
    domain = Domain([r.symbol for r in kernel.ranges], values)
    memory = {name: Access(line, (line.numel(),), (1,)) for name, line in args.items()}
    parallel = [k for k, r in enumerate(kernel.ranges) if r.kind == "parallel"]
    if kernel.core is not None:
        of_stores = evaluate_core(kernel.core, kernel.stores, domain, memory)
        evaluators = [Evaluator(domain, memory, results) for results in of_stores]
        pending = [_operands(store, each) for store, each in zip(kernel.stores, evaluators, strict=True)]
    elif any(domain.shape[k] == 0 for k in parallel):
        return
    else:
        evaluator = Evaluator(domain, memory)
        evaluator.check(kernel.checks)
        # everything is computed before anything is written
        pending = [_operands(store, evaluator) for store in kernel.stores]
    for store, (offsets, value, mask) in zip(kernel.stores, pending, strict=True):
        if store.mode != "store":
            # combining happens once per point of the parallel ranges, whether or not the operands vary along
            # them
            every = [domain.shape[k] if k in parallel else 1 for k in range(len(domain.shape))]
            offsets = offsets.expand(torch.broadcast_shapes(offsets.shape, every))
        combine(args[store.buffer], offsets, value, store.mode, mask)


def _operands(store: Store, evaluator: Evaluator) -> tuple[Tensor, Tensor, Tensor | None]:
    mask = None if store.mask is None else evaluator.value(store.mask)
    offsets = evaluator.offsets(store.buffer, (store.index,), store.indirect, mask)
    return offsets, evaluator.value(store.value).clone(), mask


def _sizes(kernel: Kernel, sizes: Mapping[str, int] | Sequence[int]) -> dict[str, int]:
    names = [size.name for size in kernel.sizes]
    if isinstance(sizes, Mapping):
        missing = [name for name in names if name not in sizes]
        if missing:
            raise InterpretError("size", f"no value for {', '.join(missing)} of @{kernel.name}")
        return {name: sizes[name] for name in names}
    if len(sizes) != len(names):
        raise InterpretError("size", f"@{kernel.name} takes {len(names)} sizes, {len(sizes)} were given")
    return dict(zip(names, sizes, strict=True))


def _check_args(kernel: Kernel, args: Mapping[str, Tensor]) -> None:
    for arg in kernel.args:
        given = args.get(arg.name)
        if given is None:
            raise InterpretError("argument", f"@{kernel.name} takes {arg.name}, which was not given")
        if given.dim() != 1 or (given.numel() > 1 and given.stride(0) != 1):
            raise InterpretError(
                "argument", f"{arg.name} is not a line of elements", remedy="pass flat memory"
            )
        if given.dtype is not torch_dtype(arg.dtype):
            raise InterpretError("argument", f"{arg.name} is {given.dtype}, declared {arg.dtype.text}")


def interpret_schedule(
    schedule: Schedule, inputs: Sequence[Tensor | int], constants: Mapping[str, Tensor] | None = None
) -> list[Value]:
    """Run `schedule` on `inputs`; as `interpret_graph`.

    Raises:
        InterpretError: inputs that do not fit the declarations, an access outside of a buffer.
        IndexError, RuntimeError: a run-time check failed.
    """
    table = constants or {}
    memory = Memory()
    memory.enter(schedule.inputs, inputs, schedule.constants, table)
    kernels = {kernel.name: kernel for kernel in schedule.kernels}
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    for entry in schedule.steps:
        if isinstance(entry, ForkStream | RecordEvent | WaitEvent | JoinStream):
            continue  # work is done when it is given
        if not isinstance(entry, KernelCall):
            step(entry, memory, table)
            continue
        kernel = kernels[entry.kernel]
        for new, old in entry.into:
            memory.view(buffers[new], memory.tensors[old], 0)
        for name, arg in zip(entry.args, kernel.args, strict=True):
            if arg.role != "in" and name not in memory.tensors:
                memory.allocate(buffers[name])
        lines = [view_as_line(memory.tensors[name]) for name in entry.args]
        names = [arg.name for arg in kernel.args]
        interpret_kernel(
            kernel, dict(zip(names, lines, strict=True)), [memory.size(size) for size in entry.sizes]
        )
    return [memory.output(output) for output in schedule.outputs]


# ---- Cores ----


Accesses = Mapping[str, Access]


def evaluate_core(
    core: Core, stores: Sequence[Store], domain: Domain, memory: Accesses
) -> tuple[tuple[Tensor, ...], ...]:
    """Return the results of `core` that each of the `stores` may read, which broadcast to `domain`, the
    kernel's.
    """
    if isinstance(core, AttentionGradientCore):
        terms = GradientTerms(Bodies(core.weights, domain.sizes, memory), core)
        return tuple(_gradients_at(store, terms, domain, memory) for store in stores)
    if isinstance(core, ConvolutionCore):
        return ((_convolve(core, domain, memory),),) * len(stores)
    return (_attend(core, domain, memory),) * len(stores)


def _convolve(core: ConvolutionCore, domain: Domain, memory: Accesses) -> Tensor:
    factors = read_factors(core, core.roles, dict(core.operands), core.makes, core.ranges, core.axes)
    dtype = torch_dtype(core.accumulate)
    over = (*core.ranges, *core.axes)
    own = Domain(over, domain.sizes)
    if own.empty:
        total = torch.zeros(own.shape[: len(core.ranges)], dtype=dtype)
    else:
        evaluator = Evaluator(own, memory)
        values = [evaluator.value(factor).to(dtype) for factor in factors]
        # size 1 along ranges that a factor does not vary along
        left, right = (v.reshape((1,) * (len(over) - v.dim()) + v.shape) for v in values)
        every = list(range(len(over)))
        total = torch.einsum(left, every, right, every, every[: len(core.ranges)])
        total = total.expand(own.shape[: len(core.ranges)])
    return _expand_value(total, core.ranges, domain)


def _attend(core: AttentionCore, domain: Domain, memory: Accesses) -> tuple[Tensor, ...]:
    result, logsumexp = sum_values(Bodies(core.weights, domain.sizes, memory))
    weights = core.weights
    return _expand_value(result, weights.ranges, domain), _expand_value(logsumexp, weights.rows, domain)


def _gradients_at(store: Store, terms: GradientTerms, domain: Domain, memory: Accesses) -> tuple[Tensor, ...]:
    """Return the gradient that `store` reads, under its number: the sums of what the points of elements
    add.
    """
    (number,) = (v.position for v in iterate_postorder((store.value,)) if isinstance(v, Parameter))
    along, sums = terms.sum_along(number, (store.index,))
    sums = _expand_value(sums, along, domain)
    line = torch.zeros(memory[store.buffer].line.numel(), dtype=sums.dtype)
    if sums.numel():
        offsets = Evaluator(domain, memory).offsets(store.buffer, (store.index,), (), None)
        offsets = offsets.expand(sums.shape)
        line.index_put_((offsets.flatten(),), sums.flatten(), accumulate=True)
        sums = line[offsets]
    unread = torch.zeros((), dtype=sums.dtype)
    return tuple(sums if k == number else unread for k in range(number + 1))


def _expand_value(value: Tensor, ranges: Sequence[Expr], domain: Domain) -> Tensor:
    """`value`, over `ranges`, with a dimension for each range of `domain`."""
    order = sorted(range(len(ranges)), key=lambda k: domain.position[ranges[k]])
    held = frozenset(ranges)
    shape = [size if r in held else 1 for r, size in zip(domain.position, domain.shape, strict=True)]
    return value.permute(order).reshape(shape)
