"""A contraction in groups as one without: where data say which points belong together becomes part of its
bodies.

Groups along a range: a sum counts the groups that end before each point, which is the number of the point's
own group, and the bodies look up by it. Groups along an axis: outside of a range's group both factors are
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, extent_of, substitute
from coilwork_ir.loops import Contraction, Groups, Node, Reduce
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Scalar,
    cast,
    const,
    index_value,
    load,
    op,
    placeholder,
    rewrite,
)


def ungroup(
    node: Contraction, buffers: Mapping[str, Buffer], name: Callable[[str], str]
) -> tuple[tuple[Node, ...], Contraction]:
    """Return what to compute before, and the contraction without groups that computes what `node` does."""
    groups = node.groups
    if groups is None:
        return (), node
    ends = buffers[groups.ends]
    if groups.along in node.axes:
        inside = _is_inside(groups, ends)
        left, right = (op("where", inside, f, const(0, f.dtype)) for f in (node.left, node.right))
        return (), replace(node, left=left, right=right, groups=None)
    shape = (extent_of(groups.along),)
    number = replace(
        node.output,
        name=name(f"{node.output.name}_group"),
        dtype=DType.I64,
        shape=shape,
        strides=contiguous_strides(shape),
    )
    end = cast(load(ends.name, (groups.index,), ends.dtype), DType.I64)
    count = Reduce(
        outputs=(number,),
        kind="sum",
        ranges=(groups.along,),
        axes=(groups.index,),
        body=cast(op("le", end, index_value(groups.along)), DType.I64),
        origins=node.origins,
    )
    left, right, epilogue = _look_up((node.left, node.right, node.epilogue), groups, number)
    return (count,), replace(node, left=left, right=right, epilogue=epilogue, groups=None)


def _is_inside(groups: Groups, ends: Buffer) -> Scalar:
    """True for the points along an axis that are in the group of a range."""
    is_behind_another = op("ge", index_value(groups.index), const(1, DType.I64))
    before = load(ends.name, (groups.index - 1,), ends.dtype, mask=is_behind_another)
    start, end = (cast(one, DType.I64) for one in (before, load(ends.name, (groups.index,), ends.dtype)))
    at = index_value(groups.along)
    # an `and` of comparisons
    return op("where", op("ge", at, start), op("lt", at, end), const(False, DType.BOOL))


def _look_up(roots: tuple[Scalar, ...], groups: Groups, number: Buffer) -> tuple[Scalar, ...]:
    """`roots` with the number of the group that each point is in, read from memory, in the place of
    `groups.index`.

    Behind the last group nothing is read: there is no such matrix.
    """
    own = load(number.name, (groups.along,), DType.I64)
    exists = op("lt", own, index_value(extent_of(groups.index)))

    def visit(scalar: Scalar) -> Scalar:
        match scalar:
            case IndexValue() if groups.index in scalar.expr.free_symbols:
                (at,) = _replace((scalar.expr,), groups.index, len(scalar.operands))
                return index_value(at, (*scalar.operands, own))
            case Load() if any(groups.index in e.free_symbols for e in scalar.index):
                places = _replace(scalar.index, groups.index, len(scalar.indirect))
                mask = exists if scalar.mask is None else op("where", exists, scalar.mask, exists)
                indirect = (*scalar.indirect, own)
                return load(
                    scalar.buffer, places, scalar.dtype, indirect=indirect, mask=mask, other=scalar.other
                )
            case _:
                return scalar

    return rewrite(roots, visit)


def _replace(index: tuple[Expr, ...], symbol: Expr, position: int) -> tuple[Expr, ...]:
    """`index` with the placeholder of `position` in the place of `symbol`."""
    return tuple(substitute(e, {symbol: placeholder(position)}) for e in index)
