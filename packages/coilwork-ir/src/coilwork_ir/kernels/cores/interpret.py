"""What cores mean, in plain torch ops: their results at every point of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coilwork_ir.index import Expr
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.interpretation.scalars import Access, Domain, Evaluator
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, ConvolutionCore, Core, Store
from coilwork_ir.loops.attention.interpret import Bodies, GradientTerms, sum_values
from coilwork_ir.loops.convolutions import read_factors
from coilwork_ir.scalar import Parameter, postorder

Memory = Mapping[str, Access]


def evaluate_core(
    core: Core, stores: Sequence[Store], domain: Domain, memory: Memory
) -> tuple[tuple[Tensor, ...], ...]:
    """The results of `core` that each of the `stores` may read, which broadcast to `domain`, the kernel's."""
    if isinstance(core, AttentionGradientCore):
        terms = GradientTerms(Bodies(core.weights, domain.sizes, memory), core)
        return tuple(_gradients_at(store, terms, domain, memory) for store in stores)
    if isinstance(core, ConvolutionCore):
        return ((_convolve(core, domain, memory),),) * len(stores)
    return (_attend(core, domain, memory),) * len(stores)


def _convolve(core: ConvolutionCore, domain: Domain, memory: Memory) -> Tensor:
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
    return _spread(total, core.ranges, domain)


def _attend(core: AttentionCore, domain: Domain, memory: Memory) -> tuple[Tensor, ...]:
    result, logsumexp = sum_values(Bodies(core.weights, domain.sizes, memory))
    weights = core.weights
    return _spread(result, weights.ranges, domain), _spread(logsumexp, weights.rows, domain)


def _gradients_at(store: Store, terms: GradientTerms, domain: Domain, memory: Memory) -> tuple[Tensor, ...]:
    """The gradient that `store` reads, under its number: the sums of what the points of elements add."""
    (number,) = (v.position for v in postorder((store.value,)) if isinstance(v, Parameter))
    along, sums = terms.sum_along(number, (store.index,))
    sums = _spread(sums, along, domain)
    line = torch.zeros(memory[store.buffer].line.numel(), dtype=sums.dtype)
    if sums.numel():
        offsets = Evaluator(domain, memory).offsets(store.buffer, (store.index,), (), None)
        offsets = offsets.expand(sums.shape)
        line.index_put_((offsets.flatten(),), sums.flatten(), accumulate=True)
        sums = line[offsets]
    unread = torch.zeros((), dtype=sums.dtype)
    return tuple(sums if k == number else unread for k in range(number + 1))


def _spread(value: Tensor, ranges: Sequence[Expr], domain: Domain) -> Tensor:
    """`value`, over `ranges`, with a dimension for each range of `domain`."""
    order = sorted(range(len(ranges)), key=lambda k: domain.position[ranges[k]])
    held = frozenset(ranges)
    shape = [size if r in held else 1 for r, size in zip(domain.position, domain.shape, strict=True)]
    return value.permute(order).reshape(shape)
