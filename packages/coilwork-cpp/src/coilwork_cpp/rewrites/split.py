"""Reductions with few results, in phases that threads can share.

A reduction whose results are fewer than there may be threads is done in pieces: one phase reduces fixed
pieces of the outermost reduction range into scratch memory, the next one combines the pieces in order. Pieces
depend on the extents alone, so results do not depend on the number of threads.

Reductions whose innermost range is too short for lanes, such as the few channels of a group of channels-last
images, are done in the same phases, whatever the number of results: the places along that range, beside those
of the last parallel range in memory, are columns of the first phase, and the second one combines them.

Each stage of a kernel (a softmax needs a maximum, then a
sum) takes two phases; a last phase does all stores, with the results of reductions loaded from scratch
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork_cpp.facts import collect_facts
from coilwork_cpp.options import CppOptions
from coilwork_cpp.planning.parallelism import should_vectorize_columns
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    find_stride,
    get_extent,
    minimum,
    multiply_all,
    substitute,
    symbol,
)
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.machine.model import Loops
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Load,
    Reduce,
    Scalar,
    Scan,
    Sort,
    cast,
    index_value,
    iterate_postorder,
    load,
    op,
    placeholder,
    reduce,
    replace_operands,
    substitute_ranges,
)


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
        lane: the last reduction range, where its places are columns of their own; `reduction` is without it
            then.
    """

    parallel: tuple[Range, ...]
    reduction: tuple[Range, ...]
    pieces: Range
    inside: Range
    piece_points: Expr
    lane: Expr | None = None

    @property
    def results(self) -> Expr:
        """Number of points of the parallel ranges."""
        return multiply_all(r.extent for r in self.parallel)

    @property
    def partials(self) -> Expr:
        """Number of partial results of one of them."""
        count = self.pieces.extent
        return count if self.lane is None else get_extent(self.lane) * count

    @property
    def partial(self) -> Expr:
        """The number of a partial result."""
        lane, count = self.lane, self.pieces.extent
        return self.pieces.symbol if lane is None else lane * count + self.pieces.symbol

    @property
    def columns(self) -> tuple[tuple[Range, ...], dict[Expr, Expr]]:
        """The parallel ranges of a first phase, and old symbols in terms of theirs: lanes are columns beside
        the last range's.
        """
        if self.lane is None:
            return self.parallel, {}
        last, inner = self.parallel[-1], get_extent(self.lane)
        both = symbol(f"{last.symbol.name}{self.lane.name}", extent=last.extent * inner)
        return (*self.parallel[:-1], replace(last, symbol=both)), {
            last.symbol: both // inner,
            self.lane: both % inner,
        }

    @property
    def result(self) -> Expr:
        """The row-major number of a point of the parallel ranges."""
        at = as_expr(0)
        for r in self.parallel:
            at = at * r.extent + r.symbol
        return at


def split_reductions(kernel: Kernel, options: CppOptions, loops: Loops) -> tuple[Phase, ...]:
    """`kernel` in phases; one, if it is not worth splitting by what was measured of `loops`."""
    wanted = options.split_elements > 0 and not options.batch_invariant
    space = _plan_space(kernel, options.split_elements, loops) if wanted else None
    if space is None:
        return (Phase(kernel=kernel),)
    phases: list[Phase] = []
    known: dict[Scalar, Scalar] = {}
    roots = list_kernel_roots(kernel)
    facts = collect_facts(roots, (r.symbol for r in kernel.ranges))
    reduces = [v for v in iterate_postorder(roots) if isinstance(v, Reduce)]
    # A stage's reductions in one pass over the data.
    for stage in sorted({facts.stage[v] for v in reduces}):
        group = [v for v in reduces if facts.stage[v] == stage]
        phases += _split_stage(kernel, space, group, len(known), known)
        names = [
            TensorArg(name=s.name, dtype=s.dtype, role="inout", span=s.elements)
            for p in phases
            for s in p.scratch
        ]
        kernel = replace(kernel, args=(*(a for a in kernel.args if a not in names), *names))
    last = replace_roots(kernel, _load_known(roots, known))
    return (*phases, Phase(kernel=last))


def _plan_space(kernel: Kernel, piece: int, loops: Loops) -> _Space | None:
    """Return the space of `kernel` cut into pieces; None if that does not pay or is not possible.

    That is so without reductions, with scans, sorts or many results, and where there is little to reduce.
    """
    roots = list_kernel_roots(kernel)
    values = list(iterate_postorder(roots))
    reduces = [v for v in values if isinstance(v, Reduce)]
    if not reduces or any(isinstance(v, Scan | Sort) for v in values) or kernel.checks:
        return None
    if any(v.kind in ("argmin", "argmax") and len(v.operands) > 1 for v in reduces):
        return None
    if any(store.mode != "store" or store.indirect for store in kernel.stores):
        return None
    parallel = tuple(r for r in kernel.ranges if r.kind == "parallel")
    reduction = tuple(r for r in kernel.ranges if r.kind == "reduction")
    facts = collect_facts(roots, (r.symbol for r in kernel.ranges))
    if any(facts.varies[v] != frozenset(r.symbol for r in parallel) for v in reduces):
        return None
    lane = _choose_lane_range(kernel, parallel, reduction, loops)
    results = as_int(multiply_all(r.extent for r in parallel))
    first = reduction[0].symbol
    if lane is not None:
        outer = as_int(multiply_all(r.extent for r in parallel[:-1]))
        reduction = reduction[:-1]
        if results is None or outer is None or outer >= loops.enough_results:
            return _make_space(parallel, reduction, get_extent(first), lane)
        results *= as_int(get_extent(lane)) or 1
    elif results is None or results > loops.enough_results * _count_columns(kernel, parallel, reduction):
        return None
    inner = as_int(multiply_all(r.extent for r in reduction[1:]))
    extent = get_extent(first)
    columns = lane is not None or _prefers_columns(kernel, parallel, reduction)
    per_point = (1 if inner is None else max(inner, 1)) * (results if columns else 1)
    points = max(1, piece // per_point)
    known = as_int(extent)
    if known is not None:
        if known * per_point < 4 * piece or points >= known:
            return None if lane is None else _make_space(parallel, reduction, extent, lane)
        points = max(points, -(-known // loops.reduction_pieces))
    if points >= 64:
        points -= points % 64  # whole groups of lanes
    return _make_space(parallel, reduction, as_expr(points), lane)


def _make_space(
    parallel: tuple[Range, ...], reduction: tuple[Range, ...], points: Expr, lane: Expr | None
) -> _Space:
    """Return the space with pieces of `points` points of the first range of `reduction`."""
    first = reduction[0].symbol
    extent = get_extent(first)
    whole = points == extent
    pieces = symbol("piece", extent=as_expr(1) if whole else ceildiv(extent, points))
    inside = symbol(first.name, extent=extent if whole else minimum(points, extent - pieces * points))
    return _Space(
        parallel=parallel,
        reduction=reduction,
        pieces=Range(symbol=pieces, kind="parallel"),
        inside=replace(reduction[0], symbol=inside),
        piece_points=points,
        lane=lane,
    )


def _choose_lane_range(
    kernel: Kernel, parallel: tuple[Range, ...], reduction: tuple[Range, ...], loops: Loops
) -> Expr | None:
    """Return the innermost reduction range, whose points become lanes of a split reduction.

    None: it is not short, or the operands do not continue in memory at the last parallel range's next point.
    """
    if len(reduction) < 2 or not parallel:
        return None
    lane, beside = reduction[-1].symbol, parallel[-1].symbol
    count = as_int(get_extent(lane))
    rows = as_int(multiply_all(r.extent for r in reduction[:-1]))
    if count is None or not 1 < count < loops.short_reduction:
        return None
    if rows is not None and rows < loops.many_short_rows:
        return None
    for value in iterate_postorder(list_kernel_roots(kernel)):
        if isinstance(value, Reduce) and value.kind in ("argmin", "argmax"):
            return None
        if isinstance(value, Load) and not value.indirect and lane in value.index[0].free_symbols:
            along, across = (find_stride(value.index[0], r) for r in (lane, beside))
            if along is None or across is None or as_int(along) != 1 or as_int(across) not in (0, count):
                return None
    stored = any(lane in store.index.free_symbols for store in kernel.stores)
    return None if stored else lane


def _prefers_columns(kernel: Kernel, parallel: Sequence[Range], reduction: Sequence[Range]) -> bool:
    return should_vectorize_columns(
        kernel, tuple(r.symbol for r in parallel), tuple(r.symbol for r in reduction)
    )


def _count_columns(kernel: Kernel, parallel: Sequence[Range], reduction: Sequence[Range]) -> int:
    """Results that one unit of work has at once."""
    return 128 if _prefers_columns(kernel, parallel, reduction) else 1


def _split_stage(
    kernel: Kernel, space: _Space, group: Sequence[Reduce], count: int, known: dict[Scalar, Scalar]
) -> tuple[Phase, Phase]:
    """Reduce the pieces, then combine them; `known` then says how to load each result of `group`."""
    partial: list[Scratch] = []
    total: list[Scratch] = []
    partial_stores: list[Store] = []
    total_stores: list[Store] = []
    results: dict[Scalar, Scalar] = {}
    ranges, columns = space.columns
    at_piece = substitute(space.result * space.partials + space.partial, columns)
    combine = symbol("piece_r", extent=space.partials)
    at_combined = space.result * space.partials + combine
    axes = (space.inside.symbol, *(r.symbol for r in space.reduction[1:]))
    place = space.pieces.symbol * space.piece_points + space.inside.symbol
    for value in group:
        number = count + len(results)
        operands = _load_known(value.operands, known)
        moved = substitute_ranges(operands, {space.reduction[0].symbol: place, **columns})
        positional = value.kind in ("argmin", "argmax")
        kinds: tuple[ReduceKind, ...] = (
            ("min" if value.kind == "argmin" else "max", value.kind) if positional else (value.kind,)
        )
        names = []
        for part, kind in enumerate(kinds):
            piece = reduce(kind, moved, axes)
            name = f"partial{number}" + ("_at" if part else "")
            names.append(name)
            partial.append(Scratch(name=name, dtype=piece.dtype, elements=space.results * space.partials))
            partial_stores.append(Store(buffer=name, index=at_piece, value=piece))
        pieces = load(names[0], [at_combined], value.operands[0].dtype)
        combined: Scalar = reduce(value.kind, [pieces], [combine])
        if positional:
            combined = _global_position(space, names[1], combined)
        name = f"total{number}"
        total.append(Scratch(name=name, dtype=value.dtype, elements=space.results))
        total_stores.append(Store(buffer=name, index=space.result, value=combined))
        results[value] = load(name, [space.result], value.dtype)
    known.update(results)
    args = (*kernel.args, *(_scratch_argument(s) for s in (*partial, *total)))
    first = replace(
        kernel,
        ranges=(*ranges, space.pieces, space.inside, *space.reduction[1:]),
        args=args,
        stores=tuple(partial_stores),
        aliasing=(),
    )
    second = replace(
        kernel,
        ranges=(*space.parallel, Range(symbol=combine, kind="reduction")),
        args=args,
        stores=tuple(total_stores),
        aliasing=(),
    )
    return Phase(kernel=first, scratch=tuple(partial)), Phase(kernel=second, scratch=tuple(total))


def _scratch_argument(scratch: Scratch) -> TensorArg:
    return TensorArg(name=scratch.name, dtype=scratch.dtype, role="inout", span=scratch.elements)


def _global_position(space: _Space, positions: str, piece: Scalar) -> Scalar:
    """Return the position in the whole range of the extreme that lies in piece number `piece`."""
    base = space.result * space.pieces.extent
    inside = load(positions, [base + placeholder(0)], DType.I64, indirect=[piece])
    inner = multiply_all(r.extent for r in space.reduction[1:])
    start = op("mul", piece, cast(index_value(space.piece_points * inner), DType.I64))
    return op("add", start, inside)


def _load_known(roots: Sequence[Scalar], known: Mapping[Scalar, Scalar]) -> tuple[Scalar, ...]:
    """`roots` with finished reductions replaced by loads of their results."""
    done: dict[Scalar, Scalar] = dict(known)
    for node in iterate_postorder(roots):
        if node not in done:
            done[node] = replace_operands(node, [done[operand] for operand in node.operands])
    return tuple(done[root] for root in roots)
