"""Ordered boundaries laid out as a search tree, for searches of many values.

A binary search reads boundaries that are far apart: those of step k are `count / 2^k` elements from each
other. A GPU's cache serves the threads of a warp from banks, which an element's address chooses, so that
elements a power of two apart wait for each other, up to eight times. In the order of Eytzinger, level by
level, the boundaries of a step are neighbours, and a step is a comparison and one shift: node k has the
children 2k and 2k + 1, and its number among the 2^steps leaves is the result. The first levels are held in
registers. Source: Khuong and Morin, Array Layouts for Comparison-Based Searching, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.scalar import Literal_, Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue
from coilwork_lowering.scalar_math import add, ge, index, lt, minimum, select, sub

# Levels of which every thread holds all boundaries: beyond, a read is cheaper than the selections.
_HELD: Final = 3

Before = Callable[[Scalar], Scalar]


def tree_of(builder: Builder, ordered: TensorValue, count: int) -> TensorValue:
    """The `count` boundaries in a new tensor of 2^steps elements, node k at k; missing ones are the largest
    number there is.

    Element 0 is unused.
    """
    steps = count.bit_length()

    def body(point: tuple[Expr, ...]) -> Scalar:
        node = cast(index(point[0]), DType.I32)
        place: Scalar = _int(0)
        for level in range(steps):
            # the nodes of a level are every `apart`-th boundary
            apart = 1 << (steps - level)
            own = sub(op("mul", sub(node, _int(1 << level)), _int(apart)), _int(1 - apart // 2))
            place = select(ge(node, _int(1 << level)), own, place)
        exists = lt(place, _int(count))
        other = _largest(ordered.dtype)
        return builder.read(ordered, (placeholder(0),), indirect=(place,), mask=exists, other=other)

    return builder.pointwise((as_expr(1 << steps),), ordered.dtype, ordered.device, body)


def descend(builder: Builder, tree: TensorValue, count: int, before: Before) -> Scalar:
    """How many of `count` boundaries, laid out as `tree`, satisfy `before`: those that do come first.

    Of a value that compares with nothing, NaN, all do.
    """
    steps = count.bit_length()
    held = min(_HELD, steps)
    node: Scalar = _int(1)
    ways: list[Scalar] = []
    for level in range(steps):
        if level < held:
            first = 1 << level
            boundaries = [builder.read(tree, (as_expr(first + k),)) for k in range(first)]
            boundary = _choose_boundary(boundaries, ways)
        else:
            boundary = builder.read(tree, (placeholder(0),), indirect=(node,))
        way = before(boundary)
        ways.append(way)
        node = add(add(node, node), cast(way, DType.I32))
    found = sub(node, _int(1 << steps))
    return found if count == (1 << steps) - 1 else minimum(found, _int(count))


def _choose_boundary(boundaries: list[Scalar], ways: list[Scalar]) -> Scalar:
    """That of `boundaries`, one per combination of `ways`, which lies where `ways` lead; the last way chooses
    first.
    """
    for way in reversed(ways):
        boundaries = [
            select(way, right, left) for left, right in zip(boundaries[::2], boundaries[1::2], strict=True)
        ]
    return boundaries[0]


def _int(value: int) -> Scalar:
    return const(value, DType.I32)


def _largest(dtype: DType) -> Literal_:
    if dtype.is_float:
        return math.inf
    return (1 << (8 * dtype.itemsize - (1 if dtype.is_signed_integer else 0))) - 1
