"""One or two largest or smallest elements of rows: one reduction each, of what those before it leave.

All of them walk the same row, so that they share a kernel that reads it once and keeps it on chip, together
with what makes the row, as the softmax of a router, and with what uses the elements.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loops import Reduce
from coilwork_ir.scalar import Scalar, cast, const, load, op, placeholder
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, Value, coordinate_symbols, whole
from coilwork_lowering.rules import Call
from coilwork_lowering.scalar_math import either, eq, index, lt, select

# Elements chosen. A pass over a row takes some 13 instructions per element; a network that sorts the first
# two of elements of 32 bits takes 34 to 60 in all, and of narrower ones, whose keys are half as wide, 21 to
# 26.
FEW: Final = 2
_SIGN: Final = 1 << 31


def chooses(dtype: DType, count: int, *, in_memory: bool) -> bool:
    """Tell if passes over the row are cheaper than to sort the first `count` elements.

    `in_memory`: kernels sort rows in memory. What is narrower takes them no less time then.
    """
    narrow = dtype.itemsize <= 4 and not dtype.is_bool
    return count <= FEW and (narrow if in_memory else dtype in (DType.F32, DType.I32))


def order_key(value: Scalar) -> Scalar:
    """A number in the order of `value`, NaN above all, and neither the least nor the greatest of its type.

    Floats give an `i32`: their bits, those of negative ones turned around (both zeros give 0). Integers of up
    to 32 bits give an `i64`.
    """
    if not value.dtype.is_float:
        return cast(value, DType.I64)
    wide = cast(value, DType.F32)
    bits = op("bitcast", wide, dtype=DType.I32)
    turned = op("sub", const(-_SIGN, DType.I32), bits)
    ordered = select(lt(bits, const(0, DType.I32)), turned, bits)
    return select(op("isnan", wide), const(_SIGN - 2, DType.I32), ordered)


def choose(builder: Builder, call: Call, value: TensorValue, dim: int, count: int, *, largest: bool) -> Value:
    """The first `count` elements along `dim` in order, and their positions, as `aten.topk` gives them."""
    values, positions = call.result
    device = value.device
    chosen = _choose(builder, value, dim, count, largest=largest)
    shape = builder.sizes.exprs(positions.shape)

    def position(point: tuple[Expr, ...]) -> Scalar:
        row = (*point[:dim], *point[dim + 1 :])
        found = builder.read(whole(chosen[-1]), row)
        for number in reversed(range(count - 1)):
            mine = eq(index(point[dim]), const(number, DType.I64))
            found = select(mine, builder.read(whole(chosen[number]), row), found)
        return found

    places = builder.pointwise(
        shape,
        DType.I64,
        device,
        position,
        strides=builder.result_strides(positions),
        name=f"{call.node.name}_indices",
    )

    def element(point: tuple[Expr, ...]) -> Scalar:
        at = (*point[:dim], placeholder(0), *point[dim + 1 :])
        return builder.read(value, at, indirect=(builder.read(places, point),))

    found = builder.pointwise(
        shape,
        value.dtype,
        device,
        element,
        strides=builder.result_strides(values),
        name=f"{call.node.name}_values",
    )
    return (found, places)


def _choose(builder: Builder, value: TensorValue, dim: int, count: int, *, largest: bool) -> list[Buffer]:
    """Positions of the first `count` elements in order, one buffer of rows each; of equal ones the first
    comes first.
    """
    rows = (*value.shape[:dim], *value.shape[dim + 1 :])
    point = coordinate_symbols("i", rows)
    (axis,) = node_ranges("r", (value.shape[dim],))
    key = order_key(builder.read(value, (*point[:dim], axis, *point[dim:])))
    if not largest:
        key = op("bitwise_not", key)
    lowest = const(-_SIGN if key.dtype is DType.I32 else -(1 << 63), key.dtype)
    chosen: list[Buffer] = []
    for number in range(count):
        left = key
        if chosen:
            taken = [eq(index(axis), load(b.name, point, DType.I64)) for b in chosen]
            gone = taken[0]
            for other in taken[1:]:
                gone = either(gone, other)
            left = select(gone, lowest, key)
        output = builder.declare(rows, DType.I64, value.device, name=f"{builder.hint}_{number}")
        builder.add(
            Reduce(
                outputs=(output,),
                kind="argmax",
                ranges=node_ranges("i", rows),
                axes=(axis,),
                body=simplify(left),
                origins=builder.origins,
            )
        )
        chosen.append(output)
    return chosen
