"""Data movement: `cat`, `stack`, padding, `repeat`, `roll`, triangles, `where` and `masked_fill`.

Each result element is one element of an operand, chosen by index arithmetic and masks. `reflection_pad*` and
`replication_pad*` are loads whose indices are reflected or clamped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    maximum,
    minimum,
    provably_divisible,
    provably_nonneg,
)
from coilwork_ir.loops import Pointwise
from coilwork_ir.scalar import Const, Scalar, const
from coilwork_lowering.building import values
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.size_assertions import lower_assertion
from coilwork_lowering.building.values import Relation, TensorValue, Value
from coilwork_lowering.facts.scalar_overflow import LEAST_SIZE
from coilwork_lowering.ops.casts import make_conversion_checks
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule, require_size, wrap_dim
from coilwork_lowering.scalar_math import ge, index, le, logical_and, lt, select, to_dtype

# ---- Concatenation, constant padding, masks ----


# Bytes that a GPU's thread loads at once.
_VECTOR: Final = 16


def _cat(builder: Builder, call: Call) -> Value:
    tensors = [t for t in call["tensors"] if isinstance(t, TensorValue)]
    # torch lets empty vectors of any rank take part
    rank = len(call.fake.shape)
    parts = [
        t for t in tensors if len(t.shape) == rank and not (len(t.shape) == 1 and as_int(t.shape[0]) == 0)
    ]
    dim = wrap_dim(call.integer("dim"), rank)
    dtype = call.dtype
    many = len(parts) > builder.options.max_cat_inputs
    if not parts or (many and not _has_whole_vectors(builder, parts, dtype, call.strides(builder), dim)):
        raise NotLowered("a concatenation of very many tensors")

    def body(point: tuple[Expr, ...]) -> Scalar:
        starts = [as_expr(0)]
        for part in parts:
            starts.append(starts[-1] + part.shape[dim])
        at = index(point[dim])
        result: Scalar | None = None
        for part, start in reversed(list(zip(parts, starts[:-1], strict=True))):
            inside = lt(at, index(start + part.shape[dim]))
            # A start that may be 0 at run time is no less a bound: what lies before it is another part's.
            after = None if as_int(start) == 0 else ge(at, index(start))
            mask = inside if after is None else logical_and(after, inside)
            moved = tuple(c - start if k == dim else c for k, c in enumerate(point))
            element = to_dtype(builder.read(part, moved, mask=None if len(parts) == 1 else mask), dtype)
            result = element if result is None else select(inside, element, result)
        assert result is not None
        return result

    return builder.pointwise(call.shape(builder), dtype, call.device, body, strides=call.strides(builder))


def _has_whole_vectors(
    builder: Builder, parts: Sequence[TensorValue], dtype: DType, strides: Sequence[Expr], dim: int
) -> bool:
    """Tell if rows of the result and of `parts`, which are in memory, are vectors of 16 bytes: a GPU's kernel
    then chooses one address for each.

    Parts that kernels compute may be computed by the one that joins them instead, each element of which would
    compute all of them.
    """
    if (
        has_trait(parts[0].device, PROCESSOR)
        or len(parts) > builder.machine_of(parts[0].device).inlining.most_joined_vectors
        or any(part.dtype is not dtype for part in parts)
    ):
        return False
    computed = sum(isinstance(builder.buffers.definer(part.buffer.name), Pointwise) for part in parts)
    unit = [k for k, stride in enumerate(strides) if as_int(stride) == 1]
    inner = unit[0] if unit and dim not in unit else dim
    return computed <= builder.options.max_cat_inputs and all(
        provably_divisible(part.shape[inner] * dtype.itemsize, _VECTOR) for part in parts
    )


def _stack(builder: Builder, call: Call) -> Value:
    tensors = [t for t in call["tensors"] if isinstance(t, TensorValue)]
    rank = len(call.fake.shape)
    dim = wrap_dim(call.integer("dim"), rank)
    raised = tuple(values.insert(t, [dim]) for t in tensors)
    return _cat(builder, replace_arguments(call, tensors=raised, dim=dim))


def replace_arguments(call: Call, **changed: Value) -> Call:
    """`call` with other lowered arguments."""
    return replace(call, arguments={**call.arguments, **changed})


def _pad(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    rank = len(value.shape)
    pads = [require_size(p) for p in call["pad"]]
    before = [as_expr(0)] * rank
    after = [as_expr(0)] * rank
    for k in range(len(pads) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    dtype = call.dtype
    fill = scalar_operand(builder, call["value"], (), dtype)
    if not isinstance(fill, Const):
        raise NotLowered("padding with a value known at run time only")

    def body(point: tuple[Expr, ...]) -> Scalar:
        mask: Scalar = const(True, DType.BOOL)
        source = [c - low for c, low in zip(point, before, strict=True)]
        for at, size, low, high in zip(source, value.shape, before, after, strict=True):
            if not provably_nonneg(-low):
                mask = logical_and(mask, ge(index(at), index(as_expr(0))))
            if not provably_nonneg(-high):
                mask = logical_and(mask, lt(index(at), index(size)))
        return builder.read(value, source, mask=simplify(mask), other=fill.value)

    return builder.pointwise(call.shape(builder), dtype, call.device, body, strides=call.strides(builder))


def _repeat(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    shape = call.shape(builder)
    raised = values.insert(value, range(len(shape) - len(value.shape)))

    def body(point: tuple[Expr, ...]) -> Scalar:
        source = [
            as_expr(0) if as_int(size) in (0, 1) else c % size
            for c, size in zip(point, raised.shape, strict=True)
        ]
        return builder.read(raised, source)

    return builder.pointwise(shape, call.dtype, call.device, body, strides=call.strides(builder))


def _roll(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    positions = [wrap_dim(d, len(value.shape)) for d in call.integers("dims")]
    shifts = [require_size(s) for s in call["shifts"]]
    for shift in shifts:
        if as_int(shift) is None:
            _check_shift(builder, call, shift)
    flat = not positions
    source = values.reshape(value, (_count(value),)) if flat else value
    moves = {0: shifts[0]} if flat else {}
    for k, shift in zip(positions, shifts, strict=False):
        moves[k] = moves.get(k, as_expr(0)) + shift

    def body(point: tuple[Expr, ...]) -> Scalar:
        at = [
            (c - moves[k]) % size if k in moves and as_int(size) not in (0, 1) else c
            for k, (c, size) in enumerate(zip(point, source.shape, strict=True))
        ]
        return builder.read(source, at)

    if flat:
        rolled = builder.pointwise(source.shape, call.dtype, call.device, body)
        return builder.copy(values.reshape(rolled, value.shape), strides=call.strides(builder))
    return builder.pointwise(value.shape, call.dtype, call.device, body, strides=call.strides(builder))


def _check_shift(builder: Builder, call: Call, shift: Expr) -> None:
    """Refuse, when the program runs, a shift that torch's `SymInt` keeps no number of, as eager does."""
    least = Relation(lhs=as_expr(LEAST_SIZE), relation="le", rhs=shift)
    lower_assertion(builder, least, "a shift is less than torch takes for a number", call.node)


def _count(value: TensorValue) -> Expr:
    count = as_expr(1)
    for size in value.shape:
        count = count * size
    return count


def _triangle(keeps: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        diagonal = require_size(call["diagonal"])

        def body(point: tuple[Expr, ...]) -> Scalar:
            row, column = point[-2], point[-1]
            kept = keeps(index(column - row), index(diagonal))
            return select(kept, builder.read(value, point), const(0, value.dtype))

        return builder.pointwise(value.shape, call.dtype, call.device, body, strides=call.strides(builder))

    return lower


def _lower_where(builder: Builder, call: Call) -> Value:
    names = ("condition", "self", "other")
    condition, then, otherwise = bring_to_device(builder, [call[n] for n in names], call.device)
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return select(
            scalar_operand(builder, condition, point, DType.BOOL),
            scalar_operand(builder, then, point, dtype),
            scalar_operand(builder, otherwise, point, dtype),
        )

    return builder.pointwise(call.shape(builder), dtype, call.device, body, strides=call.strides(builder))


def _lower_masked_fill(builder: Builder, call: Call) -> Value:
    value, mask, fill = bring_to_device(builder, [call["self"], call["mask"], call["value"]], call.device)
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return select(
            scalar_operand(builder, mask, point, DType.BOOL),
            scalar_operand(builder, fill, point, dtype),
            scalar_operand(builder, value, point, dtype),
        )

    return builder.pointwise(
        call.shape(builder),
        dtype,
        call.device,
        body,
        strides=call.strides(builder),
        checks=make_conversion_checks(builder, fill, dtype),
    )


# ---- Padding by elements ----


def _make_border_padding(position: Callable[[Expr, Expr], Expr]) -> Lower:
    """`position` is where the element of a dimension of some size lies that a coordinate outside of it stands
    for.
    """

    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        pads = [require_size(amount) for amount in call["padding"]]
        if call.dtype.is_bool:
            raise NotLowered("eager refuses booleans")

        def body(point: tuple[Expr, ...]) -> Scalar:
            at = list(point)
            for k, before in enumerate(pads[::2]):
                dim = len(point) - 1 - k
                at[dim] = position(point[dim] - before, value.shape[dim])
            return builder.read(value, at)

        return builder.pointwise(
            call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
        )

    return lower


def reflect_position(x: Expr, size: Expr) -> Expr:
    """`x` mirrored at the first element, and what lies behind the last one at that."""
    left = size - 1 - maximum(x, -x)
    return size - 1 - maximum(left, -left)


def clamp_position(x: Expr, size: Expr) -> Expr:
    """Return the element nearest to `x`."""
    return minimum(maximum(x, 0), size - 1)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("cat concat"), _cat),
    Rule(overloads("stack"), _stack),
    Rule(overloads("constant_pad_nd"), _pad),
    Rule(overloads("repeat"), _repeat),
    Rule(overloads("roll"), _roll),
    Rule(overloads("tril"), _triangle(le)),
    Rule(overloads("triu"), _triangle(ge)),
    Rule(overloads("where.self where.ScalarSelf where.ScalarOther where.Scalar"), _lower_where),
    Rule(overloads("masked_fill.Scalar masked_fill.Tensor"), _lower_masked_fill),
    Rule(
        overloads("reflection_pad1d reflection_pad2d reflection_pad3d"),
        _make_border_padding(reflect_position),
    ),
    Rule(
        overloads("replication_pad1d replication_pad2d replication_pad3d"),
        _make_border_padding(clamp_position),
    ),
)
