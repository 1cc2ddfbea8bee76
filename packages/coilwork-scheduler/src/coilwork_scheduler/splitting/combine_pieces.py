"""Nodes that reduce pieces and combine their results, for each kind of reduction.

Nothing is approximated. Means and sums of squared differences combine as in Chan et al. 1979 (or, from pieces
of equal size, as the mean of means), maxima and sums of exponentials as in Milakov and Gimelshein 2018, and
of equal extremes the first one wins. Floats are summed as `f32` at least, and kept so between the two
reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, floordiv, get_extent, mod, multiply_all
from coilwork_ir.loops import Node, Pointwise, Reduce
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Load,
    Op,
    Scalar,
    cast,
    const,
    index_value,
    iterate_postorder,
    load,
    op,
    placeholder,
    replace_operands,
    substitute_ranges,
    where,
)
from coilwork_scheduler.splitting.pieces import Pieces

Literal = bool | int | float


def reduce_in_pieces(
    node: Reduce, pieces: Pieces, name: Callable[[str], str], *, apart: bool = False
) -> tuple[Node, ...]:
    """Nodes that compute `node`, which has no checks, from `pieces`; its own outputs are defined among them.

    The pieces of one result lie together in memory, whatever the layout of what is reduced: the second
    reduction then walks along memory. With `apart` the results of one piece do, for programs that have many
    of them. `name` makes of a name one that no buffer has. Positions of extremes need pieces of the first
    axes: of equal extremes, the first piece has the first.
    """
    ranges = (*pieces.outer, *node.ranges) if apart else (*node.ranges, *pieces.outer)
    writer = _Writer(node=node, pieces=pieces, ranges=ranges, name=name)
    match node.kind:
        case "welford":
            writer.moments()
        case "online_softmax":
            writer.exponentials()
        case "argmin" | "argmax":
            writer.position("min" if node.kind == "argmin" else "max")
        case _:
            writer.simple()
    return tuple(writer.nodes)


def get_identity(kind: ReduceKind, dtype: DType) -> Literal:
    """Return what combining with `kind` does not notice."""
    match kind:
        case "prod" | "all":
            return 1
        case "min" | "argmin":
            return _get_greatest(dtype)
        case "max" | "argmax" | "online_softmax":
            return _get_least_value(dtype)
        case _:
            return 0


def _get_greatest(dtype: DType) -> Literal:
    if dtype.is_float:
        return math.inf
    bits = 8 * dtype.itemsize
    return 1 if dtype.is_bool else (1 << (bits - 1 if dtype.is_signed_integer else bits)) - 1


def _get_least_value(dtype: DType) -> Literal:
    if dtype.is_float:
        return -math.inf
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.is_signed_integer else 0


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Collects the nodes that replace one reduction; `ranges` are those of the results of pieces."""

    node: Reduce
    pieces: Pieces
    ranges: tuple[Expr, ...]
    name: Callable[[str], str]
    nodes: list[Node] = field(default_factory=list)

    # kinds

    def simple(self) -> None:
        """Kinds whose results combine as their values do."""
        node, wide = self.node, self._wide()
        (part,) = self._partial(node.kind, self._fill_invalid(cast(self._body(), wide), node.kind), ["part"])
        self._final(node.kind, load(part.name, self.ranges, wide), (node.outputs[0],))

    def moments(self) -> None:
        """Mean and sum of squared differences."""
        mean, squares = self.node.outputs
        if self.pieces.uneven is not None:
            self._moments_of_unequal(mean, squares)
            return
        wide = self._wide()
        body = cast(self._body(), wide)
        if squares is None:
            (part,) = self._partial("welford", body, ["mean", None])
            self._final("welford", load(part.name, self.ranges, wide), (mean, None))
            return
        part, within = self._partial("welford", body, ["mean", "within"])
        apart, inside = self._row(squares, "apart", wide), self._row(squares, "inside", wide)
        self._final("welford", load(part.name, self.ranges, wide), (mean, apart))
        self._final("sum", load(within.name, self.ranges, wide), (inside,))
        # each piece's mean stands for all of its points
        weighted = op("mul", self._load_result(apart), self.pieces.points_in(wide))
        self._pointwise(squares, op("add", weighted, self._load_result(inside)))

    def _moments_of_unequal(self, mean: Buffer | None, squares: Buffer | None) -> None:
        wide = self._wide()
        like = self._first_output()
        count = op("maximum", self.pieces.points_in(wide), const(1, wide))
        body = cast(self._body(), wide)
        (part,) = self._partial("sum", self._fill_invalid(body, "sum"), ["part"])
        total = self._row(like, "total", wide)
        self._final("sum", load(part.name, self.ranges, wide), (total,))
        everything = cast(index_value(multiply_all(get_extent(axis) for axis in self.node.axes)), wide)
        average = op("div", self._load_result(total), everything)
        if mean is not None:
            self._pointwise(mean, average)
        if squares is None:
            return
        middle = self._row(like, "middle", wide)
        self._pointwise(middle, average)
        own = self._buffer("mean", self.ranges, wide)
        self.nodes.append(
            Pointwise(
                output=own,
                ranges=self.ranges,
                body=op("div", load(part.name, self.ranges, wide), count),
                origins=self.node.origins,
            )
        )
        apart = op("sub", body, load(own.name, self.ranges, wide))
        (within,) = self._partial("sum", self._fill_invalid(op("mul", apart, apart), "sum"), ["within"])
        distance = op("sub", load(own.name, self.ranges, wide), self._load_result(middle))
        spread = op("mul", self.pieces.points_in(wide), op("mul", distance, distance))
        self._final("sum", op("add", load(within.name, self.ranges, wide), spread), (squares,))

    def exponentials(self) -> None:
        """Maximum, and sum of exponentials of differences from it."""
        highest, total = self.node.outputs
        wide = self._wide()
        body = self._fill_invalid(cast(self._body(), wide), "online_softmax")
        if total is None:
            (part,) = self._partial("max", body, ["part"])
            self._final("max", load(part.name, self.ranges, wide), (highest,))
            return
        part, partial_sum = self._partial("online_softmax", body, ["part", "sum"])
        top = self._row(total, "top", wide)
        self._final("max", load(part.name, self.ranges, wide), (top,))
        if highest is not None:
            self._pointwise(highest, self._load_result(top))
        own, least = load(part.name, self.ranges, wide), const(-math.inf, wide)
        # of a piece of infinitely small values alone the sum is nan, but adds nothing to those of other
        # pieces
        nothing = op("bitwise_and", op("eq", own, least), op("ne", self._load_result(top), least))
        scaled = op(
            "mul",
            load(partial_sum.name, self.ranges, wide),
            op("exp", op("sub", own, self._load_result(top))),
        )
        self._final("sum", where(nothing, const(0, wide), scaled), (total,))

    def position(self, extreme: ReduceKind) -> None:
        """The first extreme lies in the first piece whose extreme is the extreme."""
        node, pieces = self.node, self.pieces
        (output,) = node.outputs
        assert output is not None
        body = self._fill_invalid(self._body(), node.kind)
        (part,) = self._partial(extreme, body, ["part"])
        (inside,) = self._partial(node.kind, body, ["at"])
        which = self._row(output, "which", DType.I64)
        self._final(node.kind, load(part.name, self.ranges, body.dtype), (which,))
        place: dict[Expr, Expr] = {}
        start, rest, stride = as_expr(0), placeholder(0), as_expr(1)
        # row-major over the axes: whole pieces of the cut axes, then what lies inside
        steps: dict[Expr, Expr] = {}
        for axis in reversed(node.axes):
            steps[axis] = stride
            stride = stride * get_extent(axis)
        for number, cut in enumerate(reversed(pieces.cuts)):
            outermost = number == len(pieces.cuts) - 1
            at = rest if outermost else mod(rest, cut.count)
            rest = rest if outermost else floordiv(rest, cut.count)
            place[cut.outer] = at
            start = start + at * cut.length * steps[cut.axis]
        found = self._load_result(which)
        index = tuple(place.get(r, r) for r in self.ranges)
        offset = load(inside.name, index, DType.I64, indirect=(found,))
        self._pointwise(output, op("add", index_value(start, (found,)), offset))

    # parts

    def _wide(self) -> DType:
        kind, dtype = self.node.kind, self.node.body.dtype
        return dtype.compute if kind in ("sum", "prod", "welford", "online_softmax") else dtype

    def _first_output(self) -> Buffer:
        return next(b for b in self.node.outputs if b is not None)

    def _body(self) -> Scalar:
        """Return the node's body over the pieces; where a point does not exist nothing is loaded."""
        (found,) = substitute_ranges((self.node.body,), self.pieces.mapping)
        valid = self.pieces.valid
        return found if valid is None else guard_loads(found, valid)

    def _fill_invalid(self, value: Scalar, kind: ReduceKind) -> Scalar:
        valid = self.pieces.valid
        if valid is None or (kind == "sum" and _is_zero_elsewhere(value, valid)):
            return value
        return where(valid, value, const(get_identity(kind, value.dtype), value.dtype))

    def _buffer(self, suffix: str, ranges: Sequence[Expr], dtype: DType) -> Buffer:
        like = self._first_output()
        shape = tuple(get_extent(r) for r in ranges)
        return Buffer(
            name=self.name(f"{like.name}_{suffix}"),
            dtype=dtype,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=like.device,
        )

    def _row(self, like: Buffer, suffix: str, dtype: DType) -> Buffer:
        """Return a buffer with one element per result."""
        return replace(like, name=self.name(f"{like.name}_{suffix}"), dtype=dtype)

    def _partial(self, kind: ReduceKind, body: Scalar, suffixes: Sequence[str | None]) -> list[Buffer]:
        """Reduce each piece; the buffers of the results that have a suffix."""
        dtype = DType.I64 if kind in ("argmin", "argmax") else body.dtype
        outputs = tuple(None if s is None else self._buffer(s, self.ranges, dtype) for s in suffixes)
        self.nodes.append(
            Reduce(
                outputs=outputs,
                kind=kind,
                ranges=self.ranges,
                axes=self.pieces.inner,
                body=body,
                origins=self.node.origins,
            )
        )
        return [b for b in outputs if b is not None]

    def _final(self, kind: ReduceKind, body: Scalar, outputs: tuple[Buffer | None, ...]) -> None:
        """Reduce over the pieces, into `outputs` even where these are narrower than what is summed."""
        dtype = DType.I64 if kind in ("argmin", "argmax") else body.dtype
        made = tuple(b if b is None or b.dtype is dtype else self._row(b, "wide", dtype) for b in outputs)
        self.nodes.append(
            Reduce(
                outputs=made,
                kind=kind,
                ranges=self.node.ranges,
                axes=self.pieces.outer,
                body=body,
                origins=self.node.origins,
            )
        )
        for wide, output in zip(made, outputs, strict=True):
            if output is not None and wide is not None and wide is not output:
                self._pointwise(output, self._load_result(wide))

    def _load_result(self, buffer: Buffer) -> Scalar:
        return load(buffer.name, self.node.ranges, buffer.dtype)

    def _pointwise(self, output: Buffer, body: Scalar) -> None:
        self.nodes.append(
            Pointwise(
                output=output,
                ranges=self.node.ranges,
                body=cast(body, output.dtype),
                origins=self.node.origins,
            )
        )


def guard_loads(root: Scalar, valid: Scalar) -> Scalar:
    """`root` with every load done only where `valid`; that itself loads nothing."""
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder((root,)):
        operands = [done[operand] for operand in node.operands]
        if isinstance(node, Load):
            count = len(node.indirect)
            mask = valid if node.mask is None else op("bitwise_and", valid, operands[count])
            done[node] = load(
                node.buffer,
                node.index,
                node.dtype,
                indirect=operands[:count],
                mask=mask,
                other=node.other,
            )
        else:
            done[node] = replace_operands(node, operands)
    return done[root]


def _is_zero_elsewhere(value: Scalar, valid: Scalar) -> bool:
    """Tell if `value` is an element that is loaded where `valid` holds, perhaps converted, and 0 where it
    does not.
    """
    while isinstance(value, Op) and value.op == "cast":
        value = value.operands[0]
    return isinstance(value, Load) and value.mask is valid and value.other == 0
