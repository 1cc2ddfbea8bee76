"""Reductions with few results, in phases that threads can share.

A reduction whose results are fewer than there may be threads is done in pieces: one phase reduces fixed pieces of the
outermost reduction range into scratch memory, the next one combines the pieces in order. Pieces depend on the extents
alone, so results do not depend on the number of threads. Each stage of a kernel (a softmax needs a maximum, then a
sum) takes two phases; a last phase does all stores, with the results of reductions loaded from scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_cpp.facts import facts_of
from coilwork_cpp.options import CppOptions
from coilwork_cpp.plan import prefers_columns
from coilwork_cpp.ranges import extent_of
from coilwork_cpp.rebuild import kernel_roots, with_roots
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, minimum, product, symbol
from coilwork_ir.kernels import Hints, Kernel, Range, Store, TensorArg
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Reduce,
    Scalar,
    Scan,
    cast,
    index_value,
    load,
    op,
    placeholder,
    postorder,
    reduce,
    substitute_ranges,
    with_operands,
)

# With this many results, threads share those.
_ENOUGH: Final = 8
_PIECES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory for intermediate results: `elements` elements of `dtype`."""

    name: str
    dtype: DType
    elements: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kernel that runs after the phases before it, and the scratch memory it is the first to write."""

    kernel: Kernel
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """The iteration space of a split kernel.

    Attributes:
        parallel: the kernel's parallel ranges.
        reduction: its reduction ranges; the first one is cut.
        pieces: the range of pieces, `piece_points` points of the first reduction range each.
        inside: the points of one piece, which has fewer at the end.
    """

    parallel: tuple[Range, ...]
    reduction: tuple[Range, ...]
    pieces: Range
    inside: Range
    piece_points: Expr

    @property
    def results(self) -> Expr:
        """Number of points of the parallel ranges."""
        return product(extent_of(r.symbol) for r in self.parallel)

    @property
    def result(self) -> Expr:
        """The row-major number of a point of the parallel ranges."""
        at = as_expr(0)
        for r in self.parallel:
            at = at * extent_of(r.symbol) + r.symbol
        return at


def split(kernel: Kernel, options: CppOptions) -> tuple[Phase, ...]:
    """`kernel` in phases; one, if it is not worth splitting."""
    wanted = options.split_elements > 0 and not options.batch_invariant
    space = _space(kernel, options.split_elements) if wanted else None
    if space is None:
        return (Phase(kernel=kernel),)
    phases: list[Phase] = []
    known: dict[Scalar, Scalar] = {}
    roots = kernel_roots(kernel)
    facts = facts_of(roots, (r.symbol for r in kernel.ranges))
    reduces = [v for v in postorder(roots) if isinstance(v, Reduce)]
    # A stage's reductions in one pass over the data.
    for stage in sorted({facts.stage[v] for v in reduces}):
        group = [v for v in reduces if facts.stage[v] == stage]
        phases += _stage(kernel, space, group, len(known), known)
        names = [
            TensorArg(name=s.name, dtype=s.dtype, role="inout", span=s.elements)
            for p in phases
            for s in p.scratch
        ]
        kernel = replace(kernel, args=(*(a for a in kernel.args if a not in names), *names))
    last = with_roots(kernel, _with_known(roots, known))
    return (*phases, Phase(kernel=last))


def _space(kernel: Kernel, piece: int) -> _Space | None:
    """How to cut `kernel`, or None where it has no reductions, scans, many results, or little to reduce."""
    roots = kernel_roots(kernel)
    values = list(postorder(roots))
    reduces = [v for v in values if isinstance(v, Reduce)]
    if not reduces or any(isinstance(v, Scan) for v in values) or kernel.checks:
        return None
    if any(v.kind in ("argmin", "argmax") and len(v.operands) > 1 for v in reduces):
        return None
    if any(store.mode != "store" or store.indirect for store in kernel.stores):
        return None
    parallel = tuple(r for r in kernel.ranges if r.kind == "parallel")
    reduction = tuple(r for r in kernel.ranges if r.kind == "reduction")
    facts = facts_of(roots, (r.symbol for r in kernel.ranges))
    if any(facts.varies[v] != frozenset(r.symbol for r in parallel) for v in reduces):
        return None
    results = as_int(product(extent_of(r.symbol) for r in parallel))
    if results is None or results > _ENOUGH * _tile(kernel, parallel, reduction):
        return None
    first = reduction[0].symbol
    inner = as_int(product(extent_of(r.symbol) for r in reduction[1:]))
    extent = extent_of(first)
    per_point = (1 if inner is None else max(inner, 1)) * (
        results if _columns(kernel, parallel, reduction) else 1
    )
    points = max(1, piece // per_point)
    known = as_int(extent)
    if known is not None:
        if known * per_point < 4 * piece or points >= known:
            return None
        points = max(points, -(-known // _PIECES))
    if points >= 64:
        points -= points % 64  # whole groups of lanes
    pieces = symbol("piece", extent=ceildiv(extent, points))
    inside = symbol(first.name, extent=minimum(as_expr(points), extent - pieces * points))
    return _Space(
        parallel=parallel,
        reduction=reduction,
        pieces=Range(symbol=pieces, kind="parallel", tile="y"),
        inside=replace(reduction[0], symbol=inside),
        piece_points=as_expr(points),
    )


def _columns(kernel: Kernel, parallel: Sequence[Range], reduction: Sequence[Range]) -> bool:
    return prefers_columns(kernel, tuple(r.symbol for r in parallel), tuple(r.symbol for r in reduction))


def _tile(kernel: Kernel, parallel: Sequence[Range], reduction: Sequence[Range]) -> int:
    """Results that one unit of work has at once."""
    return 128 if _columns(kernel, parallel, reduction) else 1


def _stage(
    kernel: Kernel, space: _Space, group: Sequence[Reduce], count: int, known: dict[Scalar, Scalar]
) -> tuple[Phase, Phase]:
    """Reduce the pieces, then combine them; `known` then says how to load each result of `group`."""
    count_pieces = extent_of(space.pieces.symbol)
    partial: list[Scratch] = []
    total: list[Scratch] = []
    partial_stores: list[Store] = []
    total_stores: list[Store] = []
    results: dict[Scalar, Scalar] = {}
    at_piece = space.result * count_pieces + space.pieces.symbol
    combine = symbol("piece_r", extent=count_pieces)
    at_combined = space.result * count_pieces + combine
    axes = (space.inside.symbol, *(r.symbol for r in space.reduction[1:]))
    for value in group:
        number = count + len(results)
        operands = _with_known(value.operands, known)
        moved = substitute_ranges(
            operands,
            {space.reduction[0].symbol: space.pieces.symbol * space.piece_points + space.inside.symbol},
        )
        positional = value.kind in ("argmin", "argmax")
        kinds: tuple[ReduceKind, ...] = (
            ("min" if value.kind == "argmin" else "max", value.kind) if positional else (value.kind,)
        )
        names = []
        for part, kind in enumerate(kinds):
            piece = reduce(kind, moved, axes)
            name = f"partial{number}" + ("_at" if part else "")
            names.append(name)
            partial.append(Scratch(name=name, dtype=piece.dtype, elements=space.results * count_pieces))
            partial_stores.append(Store(buffer=name, index=at_piece, value=piece))
        pieces = load(names[0], [at_combined], value.operands[0].dtype)
        combined: Scalar = reduce(value.kind, [pieces], [combine])
        if positional:
            combined = _position(space, names[1], combined)
        name = f"total{number}"
        total.append(Scratch(name=name, dtype=value.dtype, elements=space.results))
        total_stores.append(Store(buffer=name, index=space.result, value=combined))
        results[value] = load(name, [space.result], value.dtype)
    known.update(results)
    args = (*kernel.args, *(_argument(s) for s in (*partial, *total)))
    first = replace(
        kernel,
        ranges=(*space.parallel, space.pieces, space.inside, *space.reduction[1:]),
        args=args,
        stores=tuple(partial_stores),
        hints=Hints(),
    )
    second = replace(
        kernel,
        ranges=(*space.parallel, Range(symbol=combine, kind="reduction", tile="r")),
        args=args,
        stores=tuple(total_stores),
        hints=Hints(),
    )
    return Phase(kernel=first, scratch=tuple(partial)), Phase(kernel=second, scratch=tuple(total))


def _argument(scratch: Scratch) -> TensorArg:
    return TensorArg(name=scratch.name, dtype=scratch.dtype, role="inout", span=scratch.elements)


def _position(space: _Space, positions: str, piece: Scalar) -> Scalar:
    """The position in the whole range of the extreme that lies in piece number `piece`."""
    base = space.result * extent_of(space.pieces.symbol)
    inside = load(positions, [base + placeholder(0)], DType.I64, indirect=[piece])
    inner = product(extent_of(r.symbol) for r in space.reduction[1:])
    start = op("mul", piece, cast(index_value(space.piece_points * inner), DType.I64))
    return op("add", start, inside)


def _with_known(roots: Sequence[Scalar], known: Mapping[Scalar, Scalar]) -> tuple[Scalar, ...]:
    """`roots` with finished reductions replaced by loads of their results."""
    done: dict[Scalar, Scalar] = dict(known)
    for node in postorder(roots):
        if node not in done:
            done[node] = with_operands(node, [done[operand] for operand in node.operands])
    return tuple(done[root] for root in roots)
