"""Which operators go on reading or writing memory after their calls have returned, and which calls wait for them.

One table for all of torch. Functional collectives start an operation on a thread or stream of their process group's, which reads the
operand and writes the result: `wait_tensor` of the result, or of anything else in its memory, waits for it. An operator of their namespaces that
the table doesn't list is taken for one that uses all it is given. Others of torch's that communicate are done when they return, as
kernels are: `_dtensor.shard_dim_alltoall` waits by itself, and those of `symm_mem` run on the current stream, but for two.

Copies between devices with `non_blocking=True` run on the current stream. Their device memory is in order with all else there, and their host memory
is pinned memory of torch's allocators, which keep it until the copy is done; nothing of ours has it before.

Operators on streams and events change what later work waits for. They stay where they are among all that stands before and behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Mutation, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, whole
from coilwork_lowering.torch_compat.operators import Overload, schema_of

_WAIT: Final = "_c10d_functional.wait_tensor.default"
_WAITS: Final = frozenset({"_c10d_functional.wait_tensor", "c10d_functional.wait_tensor"})
COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"})
_STREAMS: Final = "streams"
# Libraries that come with torch, or are ours: done with their operands, as far as order on a stream goes, when they return.
_DONE_AT_RETURN: Final = frozenset(
    "aten prims coilwork mkldnn mkl onednn quantized quantized_decomposed _quantized prepacked fbgemm sparse "
    "rngprims torchvision torchaudio inductor _inductor_test".split()
)


@dataclass(frozen=True, slots=True)
class _Flight:
    """What an operator goes on using: tensor arguments by name, beside its results.

    Attributes:
        uses: arguments that are read or written until the wait.
        writes: those among them that it writes although its schema does not say so: they are its results.
    """

    uses: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


# An operator that is not listed copies nothing: it uses all of its tensors.
_FLIGHTS: Final[Mapping[str, _Flight]] = MappingProxyType(
    {
        # these work in a copy of their operand, which is the result
        "_c10d_functional.all_reduce": _Flight(),
        "_c10d_functional.all_reduce_coalesced": _Flight(),
        "_c10d_functional.broadcast": _Flight(),
        "_c10d_functional_autograd.all_reduce": _Flight(),
        # these work in their operand
        "_c10d_functional.all_reduce_": _Flight(("input",)),
        "_c10d_functional.all_reduce_coalesced_": _Flight(("inputs",)),
        "_c10d_functional.broadcast_": _Flight(("input",)),
        # these read their operand while they write
        "_c10d_functional.all_gather_into_tensor": _Flight(("input",)),
        "_c10d_functional.all_gather_into_tensor_out": _Flight(("input", "out")),
        "_c10d_functional.all_gather_into_tensor_coalesced": _Flight(("inputs",)),
        "_c10d_functional.reduce_scatter_tensor": _Flight(("input",)),
        "_c10d_functional.reduce_scatter_tensor_out": _Flight(("input", "out")),
        "_c10d_functional.reduce_scatter_tensor_coalesced": _Flight(("inputs",)),
        "_c10d_functional.all_to_all_single": _Flight(("input",)),
        "_c10d_functional_autograd.all_gather_into_tensor": _Flight(("input",)),
        "_c10d_functional_autograd.reduce_scatter_tensor": _Flight(("input",)),
        "_c10d_functional_autograd.all_to_all_single": _Flight(("input",)),
        # between two processes
        "_c10d_functional.isend": _Flight(("tensor",)),
        "_c10d_functional.irecv": _Flight(("tensor",), writes=("tensor",)),
        "_c10d_functional.batch_p2p_ops": _Flight(("tensors",), writes=("tensors",)),
        # on a stream of their own, and waited for as collectives are
        "symm_mem._low_contention_all_gather": _Flight(("tensor",)),
        "symm_mem._low_contention_reduce_scatter": _Flight(("tensor",)),
    }
)


def flight_of(target: Overload) -> _Flight | None:
    """What calls of `target` go on using after they have returned; None if that is nothing."""
    name = _name(target)
    if name in _WAITS:
        return None
    known = _FLIGHTS.get(name)
    if known is not None or target.namespace not in COLLECTIVES:
        return known
    return _Flight(tuple(argument.name for argument in schema_of(target).arguments))


def is_wait(target: object) -> bool:
    """Whether calls of `target` wait for the operation that writes their operand."""
    return isinstance(target, Overload) and _name(target) in _WAITS


def is_barrier(target: Overload) -> bool:
    """Whether calls of `target` choose the stream of what stands behind them, or wait for other streams."""
    return target.namespace == _STREAMS


def retains(target: Overload) -> bool:
    """Whether an operator may keep what it is given and read it at any time, as far as anybody knows."""
    known = target.namespace in _DONE_AT_RETURN or target.namespace in COLLECTIVES or is_barrier(target)
    return not known or bool((flight_of(target) or _Flight()).writes)


def _name(target: Overload) -> str:
    return schema_of(target).name.replace("::", ".")


def lower_wait(builder: Builder, value: TensorValue, *, borrowed: bool) -> Value:
    """Append a call that waits for what writes the memory of `value`, all of it, and return `value` as it is then.

    The operands of a branch or loop are `borrowed`: it may give their memory no other name.
    """
    root = builder.buffers.root(value.buffer.name)
    if root not in builder.in_flight and (
        root in builder.at_rest
        or isinstance(builder.buffers.definer(root), Pointwise | Reduce | Scan | Scatter | Sort)
    ):
        return value
    if not borrowed and builder.buffers.owner(value.buffer).name == builder.buffers.latest(root).name:
        wait_for(builder, root)
        return builder.current(value)
    # or an operator made it a part of that memory
    placed = builder.placed(value, None).buffer
    done = builder.declare(placed.shape, placed.dtype, placed.device, strides=placed.strides)
    builder.add(_wait(builder, placed, root, output=done))
    return whole(done)


def wait_for(builder: Builder, root: str) -> None:
    """Append a call that waits for what writes the memory `root`."""
    memory = builder.buffers.latest(root)
    done = builder.declare(
        memory.shape, memory.dtype, memory.device, strides=memory.strides, name=f"{root}_done"
    )
    builder.add(_wait(builder, memory, root, renamed=done))
    builder.buffers.overwrite(memory.name, done)


def _wait(
    builder: Builder,
    memory: Buffer,
    root: str,
    *,
    output: Buffer | None = None,
    renamed: Buffer | None = None,
) -> Extern:
    return Extern(
        target=_WAIT,
        args=(Ref(memory.name),),
        outputs=(output,),
        aliases=() if output is None else ((0, memory.name),),
        mutates=() if renamed is None else (Mutation(output=renamed, source=memory.name),),
        family="collective",
        effect=True,
        waits=tuple(dict.fromkeys((root, memory.name))),
        origins=builder.origins,
    )


def rest(builder: Builder, roots: Sequence[str], *, written: bool) -> None:
    """Append the waits after which no operator writes the memory of `roots`, nor reads it if it is to be `written`.

    The program itself is to wait before it reads a result. Where it leaves that out, eager mode reads whatever is there.
    """
    for root in roots:
        for pending in builder.in_flight.pending(root):
            if written or pending == root:
                wait_for(builder, pending)


def silent_writes(target: Overload) -> tuple[str, ...]:
    """Arguments that `target` writes although its schema does not say so."""
    flight = flight_of(target)
    return () if flight is None else flight.writes


def received(
    target: Overload, arguments: Mapping[str, Value], written: Mapping[str, Sequence[Buffer]]
) -> Sequence[Buffer | None]:
    """The argument that each result of a call of `target` is, of those that it writes silently; None: memory of its own."""
    silently = silent_writes(target)
    if not silently:
        return ()
    kinds = arguments.get("op_list")
    items = written[silently[0]]
    if not isinstance(kinds, tuple):
        return items
    return [item if kind == "irecv" else None for kind, item in zip(kinds, items, strict=True)]


def flight(
    target: Overload, operands: Mapping[str, Sequence[str]], results: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`in_flight` and `until` of a call of `target`: buffers by argument, and those that its results lie in."""
    found = flight_of(target)
    if found is None:
        return (), ()
    used = [name for argument in found.uses for name in operands.get(argument, ())]
    until = tuple(dict.fromkeys(name for name in results if name))
    return tuple(dict.fromkeys((*used, *until))), until
