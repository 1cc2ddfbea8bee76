"""Split the keys of an attention of a few rows among programs: decoding with a long cache of keys.

A program has a block of rows, so with few rows there are few programs, and each would go through all keys. As
in Flash-Decoding (Dao et al., 2023), the keys are cut in pieces: a range `split` of them becomes one of the
rows' ranges, and each program leaves the sums of its piece, in f32, and their logsumexp. Reductions along
`split` join them:

    most    = max of logsumexp
    share   = 2 ** (logsumexp - most)
    output  = sum of share * sums / sum of share

Heads that share keys are rows of one block then, so that a program reads each key once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import Final

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, FloorDiv, as_int, floordiv, get_extent, get_extents, mod, symbol
from coilwork_ir.index import get_node as read_node
from coilwork_ir.loops import Attention, Node, Pointwise, Reduce
from coilwork_ir.loops.nodes import Weights
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Load,
    Parameter,
    Scalar,
    cast,
    const,
    iterate_postorder,
    load,
    op,
    rewrite,
    substitute_ranges,
    where,
)
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import ImplementationContext

_WIDE: Final = DType.F32
# Rows that share one block of a program: the least that matrix units take.
_MOST_ROWS: Final = 16
# A piece is not shorter than this: its program has to fill a pipeline.
_LEAST_PIECE: Final = 128
# Programs that are resident on a multiprocessor at a time.
_PROGRAMS: Final = 2


def split_keys(node: Attention, context: ImplementationContext, target: Target) -> tuple[Node, ...] | None:
    """Return the nodes that compute `node` with its keys in pieces; None if that fills the device no more."""
    weights, sizes = node.weights, context.sizes
    if context.options.batch_invariant:
        # the number of pieces depends on how many rows there are
        return None
    if len(weights.rows) < 2 or weights.accumulate is not _WIDE or weights.dropout:
        return None
    keys, row = as_int(get_extent(weights.keys)), as_int(get_extent(weights.rows[-1]))
    if (
        keys is None
        or row is None
        or row > _MOST_ROWS
        or (weights.blocks and not _has_mask_of_positions(weights))
    ):
        # lists of blocks count along all keys
        return None
    if node.logsumexp is not None and node.logsumexp_at != weights.rows:
        return None
    packed = _pack_heads(weights, row)
    programs = sizes.numel(get_extents(packed.others))
    pieces = min(_PROGRAMS * target.multiprocessors // max(programs, 1), keys // _LEAST_PIECE)
    while pieces > 1 and keys % pieces:
        pieces -= 1
    if pieces < 2:
        return None
    return _Writer(context=context, node=node, packed=packed, pieces=pieces, length=keys // pieces).write()


def _has_mask_of_positions(weights: Weights) -> bool:
    """Tell if the mask loads nothing: positions say which keys count, without lists of blocks."""
    return weights.mask is None or not any(isinstance(v, Load) for v in iterate_postorder((weights.mask,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """Rows of scores as `others`, and `count` rows of each point of these, numbered by `row`.

    `at` says which point of the weights' own rows that is, and `others_of` and `row_of` the other way round.
    """

    others: tuple[Expr, ...]
    row: Expr
    count: int
    at: tuple[Expr, ...]
    others_of: tuple[Expr, ...]
    row_of: Expr


def _pack_heads(weights: Weights, rows: int) -> _Packed:
    """Return rows of heads that share keys as rows of one block, where there is one such range."""
    *others, row = weights.rows
    group = _count_sharing(weights, others[-1])
    heads = as_int(get_extent(others[-1]))
    if heads is None or group == 1:
        own = symbol("p", extent=rows)
        return _Packed(
            others=tuple(others),
            row=own,
            count=rows,
            at=(*others, own),
            others_of=tuple(others),
            row_of=row,
        )
    outer, inner = symbol("h", extent=heads // group), symbol("p", extent=group * rows)
    head = outer * group + floordiv(inner, rows)
    return _Packed(
        others=(*others[:-1], outer),
        row=inner,
        count=group * rows,
        at=(*others[:-1], head, mod(inner, rows)),
        others_of=(*others[:-1], floordiv(others[-1], group)),
        row_of=mod(others[-1], group) * rows + row,
    )


def _count_sharing(weights: Weights, head: Expr) -> int:
    """Return how many neighbouring points of `head` load the same keys and values."""
    found: set[int] = set()
    for body in (weights.key, weights.value):
        for access in (value for value in iterate_postorder((body,)) if isinstance(value, Load)):
            places = [expr for expr in access.index if head in expr.free_symbols]
            if not places:
                found.add(as_int(get_extent(head)) or 1)
            elif len(places) > 1:
                return 1
            else:
                match read_node(places[0]):
                    case FloorDiv(above, below) if above is head:
                        found.add(as_int(below) or 1)
                    case _:
                        return 1
    return found.pop() if len(found) == 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes `node` over `pieces` of `length` keys each."""

    context: ImplementationContext
    node: Attention
    packed: _Packed
    pieces: int
    length: int

    def write(self) -> tuple[Node, ...]:
        """Return the attention of each piece, and what joins them."""
        node, packed, weights = self.node, self.packed, self.node.weights
        split = symbol("s", extent=self.pieces)
        column = weights.ranges[-1]
        over = (*packed.others, split, packed.row)
        keys = symbol(weights.keys.name, extent=self.length)
        mapping: dict[Expr, Expr] = dict(zip(weights.rows, packed.at, strict=True))
        mapping[weights.keys] = split * self.length + keys
        plain = replace(weights, blocks=None)
        moved = plain.replace_bodies(substitute_ranges(plain.bodies, mapping))
        sums = self._declare("sums", (*over, column))
        logs = self._declare("logs", over)
        pieces = Attention(
            weights=replace(moved, ranges=(*over, column), axes=(keys, weights.axes[1]), logsumexp="binary"),
            output=sums,
            logsumexp=logs,
            logsumexp_at=over,
            origins=node.origins,
        )
        rows = (*packed.others, packed.row)
        log_of_piece = load(logs.name, over, _WIDE)
        most = self._reduce("most", "max", rows, split, log_of_piece)
        (greatest,) = most.outputs
        assert greatest is not None
        found = load(greatest.name, rows, _WIDE)
        top = where(op("eq", found, const(-inf, _WIDE)), const(0.0, _WIDE), found)
        share = op("exp2", op("sub", log_of_piece, top))
        total = self._reduce("total", "sum", rows, split, share)
        weighed = op("mul", share, load(sums.name, (*over, column), _WIDE))
        joined = self._reduce("joined", "sum", (*rows, column), split, weighed)
        return (pieces, most, total, joined, *self._finish(top, total, joined))

    def _finish(self, top: Scalar, total: Reduce, joined: Reduce) -> tuple[Node, ...]:
        """Return the results of the whole, at its own ranges."""
        node, packed, weights = self.node, self.packed, self.node.weights
        places = {**dict(zip(packed.others, packed.others_of, strict=True)), packed.row: packed.row_of}
        (top,) = substitute_ranges((top,), places)
        own = (*packed.others_of, packed.row_of)
        sums, values = total.outputs[0], joined.outputs[0]
        assert sums is not None and values is not None
        divisor = load(sums.name, own, _WIDE)
        empty = op("eq", divisor, const(0.0, _WIDE))
        above = load(values.name, (*own, weights.ranges[-1]), _WIDE)
        result = op("div", above, where(empty, const(1.0, _WIDE), divisor))
        made: Scalar = cast(result, node.output.dtype)
        if node.epilogue is not None:
            (made,) = rewrite((node.epilogue,), lambda v: result if isinstance(v, Parameter) else v)
        nodes: list[Node] = [
            Pointwise(output=node.output, ranges=weights.ranges, body=made, origins=node.origins)
        ]
        stored = node.logsumexp
        if stored is not None:
            found = op("add", top, op("log2", divisor))
            nothing = const(-inf if weights.logsumexp == "binary" else 0.0, _WIDE)
            if weights.logsumexp == "natural":
                found = op("mul", found, const(log(2), _WIDE))
            found = cast(where(empty, nothing, found), stored.dtype)
            nodes.append(Pointwise(output=stored, ranges=weights.rows, body=found, origins=node.origins))
        return tuple(nodes)

    def _reduce(
        self, what: str, kind: ReduceKind, ranges: Sequence[Expr], axis: Expr, body: Scalar
    ) -> Reduce:
        return Reduce(
            outputs=(self._declare(what, ranges),),
            kind=kind,
            ranges=tuple(ranges),
            axes=(axis,),
            body=body,
            origins=self.node.origins,
        )

    def _declare(self, what: str, ranges: Sequence[Expr]) -> Buffer:
        shape = get_extents(ranges)
        return Buffer(
            name=self.context.name(f"{self.node.output.name}_{what}"),
            dtype=_WIDE,
            shape=shape,
            strides=make_contiguous_strides(shape),
            device=self.node.output.device,
        )
