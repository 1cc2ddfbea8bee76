"""Norms and `logsumexp`: a reduction with arithmetic before and after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value, dtype_of
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.powers import float_power
from coilwork_lowering.ops.reductions import (
    finish,
    first,
    map_elements,
    reduce_over,
    reduced_dims,
    require_elements,
)
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import like, mul, select, truth


def _vector_norm(builder: Builder, call: Call) -> Value:
    """`(sum |x| ** ord) ** (1 / ord)`, with the limits for 0 and infinities; of single elements what is then
    exact, `|x|`.
    """
    value = call.tensor("self")
    order = call["ord"]
    if not value.dtype.is_float or not isinstance(order, int | float):
        raise NotLowered("a norm of integers, or of an order known at run time only")
    positions = reduced_dims(call, len(value.shape))
    asked = call["dtype"]
    wide = (value.dtype if asked is None else dtype_of(asked)).compute
    power = float(order)
    in_kernel = _round_order(power) if wide is DType.F32 else power
    kind: ReduceKind = "sum"
    if math.isinf(power):
        require_elements(builder, call, value, positions, "RuntimeError")
        kind = "max" if power > 0 else "min"
    if power != 0 and all(as_int(value.shape[k]) == 1 for k in positions):
        power = in_kernel = 1.0
    before, after = _powers(in_kernel) if _is_beyond(power, in_kernel) else _norm_functions(power)
    total = first(reduce_over(builder, call, value, positions, kind, lambda x: before(cast(x, wide)), [wide]))
    norm = map_elements(builder, total, lambda x: cast(after(x), call.dtype), call.dtype)
    return finish(builder, call, norm, call.fake, positions)


def _round_order(order: float) -> float:
    """`order` as eager's kernel takes it, which keeps it in the type that it computes in."""
    return torch.tensor(order, dtype=torch.float64).float().item()


def _is_beyond(order: float, in_kernel: float) -> bool:
    """Tell if the kernel's type does not hold `order`. The kernel was chosen by the order itself, and raises
    to a power still.
    """
    return math.isinf(in_kernel) and not math.isinf(order)


def _powers(order: float) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Of an infinite order: infinity, 0 and 1, then their power of 0."""
    return (lambda x: op("pow", op("abs", x), like(order, x))), (lambda x: op("pow", x, like(1 / order, x)))


def _norm_functions(order: float) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Return what is combined, and what becomes of the combination."""

    def size(x: Scalar) -> Scalar:
        return op("abs", x)

    def same(x: Scalar) -> Scalar:
        return x

    if order == 2:
        return (lambda x: mul(x, x)), (lambda x: op("sqrt", x))
    if order == 0:
        return (lambda x: cast(truth(x), x.dtype)), same
    if order == 1 or math.isinf(order):
        return size, same
    return (lambda x: float_power(size(x), order)), (lambda x: op("pow", x, like(1 / order, x)))


def _logsumexp(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    positions = reduced_dims(call, len(value.shape))
    if not value.dtype.is_float:
        raise NotLowered("logsumexp of integers")
    if any(as_int(value.shape[k]) == 0 for k in positions):
        raise NotLowered("a sum of no elements")
    wide = value.dtype.compute
    results = reduce_over(
        builder, call, value, positions, "online_softmax", lambda x: cast(x, wide), [wide, wide]
    )
    top, total = results
    assert top is not None and total is not None
    wanted = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        high = builder.read(top, point)
        infinite = op("isinf", high)
        # exp(inf - inf) is no number; the sum is then known from the extreme alone
        return cast(select(infinite, high, op("add", high, op("log", builder.read(total, point)))), wanted)

    result = builder.pointwise(top.shape, wanted, value.device, body, strides=top.buffer.strides)
    return finish(builder, call, result, call.fake, positions)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("linalg_vector_norm"), _vector_norm),
    Rule(overloads("logsumexp"), _logsumexp),
)
