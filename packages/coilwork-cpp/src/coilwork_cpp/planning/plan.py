"""A nest's mapping in two forms: as mapping passes propose it, and as loops are written from it.

A `Proposal` is a nest with the directives so far, and the facts that passes look at. `plan_of` reads a closed
mapping into a `Plan`, which decides nothing; a directive that the generator does not know is refused by name.
What it knows, but has no loops for, is refused in `legality.py`.

A rounded sum keeps its error small if no variable takes more than some thousand additions. So a pass over
several reduction ranges is cut at one of them (`Cut`): ranges outside of it are plain loops, it is walked in
blocks, and everything inside accumulates into partial results that are folded into the total once per block.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_cpp.planning.regions import Region
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, ceildiv, get_extent
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.kernels.rewrite import index_values
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import (
    Accumulators,
    Block,
    Contract,
    Directive,
    Fold,
    Functions,
    Grain,
    Invariant,
    Join,
    Nest,
    Peel,
    Prefetch,
    Save,
    Select,
    Sequential,
    Threads,
    Transpose,
    Vector,
    find,
    find_all,
)
from coilwork_ir.scalar import Scalar

# ---- cuts ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`outer` loops; then `middle`, if any, in blocks of `size` points; then `inner` loops."""

    outer: tuple[Expr, ...]
    middle: Expr | None
    size: int
    inner: tuple[Expr, ...]

    @property
    def is_whole(self) -> bool:
        """True if all points are one block."""
        return self.middle is None and not self.outer


def cut_ranges(ranges: tuple[Expr, ...], limit: int, *, rounded: bool) -> Cut:
    """Blocks of about `limit` points; one block if nothing is rounded."""
    if not rounded:
        return Cut(outer=(), middle=None, size=0, inner=ranges)
    points = 1
    for position in range(len(ranges) - 1, -1, -1):
        extent = as_int(get_extent(ranges[position]))
        if extent is not None and points * extent <= limit:
            points *= max(extent, 1)
            continue
        size = max(1, limit // points)
        return Cut(outer=ranges[:position], middle=ranges[position], size=size, inner=ranges[position + 1 :])
    return Cut(outer=(), middle=None, size=0, inner=ranges)


def cut_innermost(ranges: tuple[Expr, ...], limit: int, *, rounded: bool) -> Cut:
    """Blocks of `limit` points of the innermost range, whatever the extents are, known or not."""
    if not rounded:
        return Cut(outer=(), middle=None, size=0, inner=ranges)
    return Cut(outer=ranges[:-1], middle=ranges[-1], size=limit, inner=())


# ---- plans ----


# What the generator takes; it refuses every other directive.
CAPABILITIES: Final[tuple[type[Directive], ...]] = (
    Accumulators, Block, Contract, Fold, Functions, Grain, Invariant, Join, Peel, Prefetch, Save, Select,
    Sequential, Threads, Transpose, Vector,
)  # fmt: skip
# The order of combination that `invariant` promises: element number r of the innermost range goes to lane
# r % FIXED_LANES, in f32; lanes are folded pairwise, and added to the total in f64, after FIXED_BLOCK
# elements and at the end of the range.
FIXED_LANES: Final = 16
FIXED_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range, walked whole, or with `block` in pieces of that many points which are units of work."""

    symbol: Expr
    block: int | None = None

    @property
    def units(self) -> Expr:
        """Number of units of work along it."""
        extent = get_extent(self.symbol)
        return extent if self.block is None else ceildiv(extent, self.block)


@dataclass(frozen=True, slots=True)
class Tile:
    """Tiles of so many `lines`, along `across`, by so many `points`, along `along`, that are transposed."""

    across: Expr
    along: Expr
    lines: int
    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass along reduced ranges, as it is walked.

    Attributes:
        lanes: partial results; 1: none but the total.
        fold: the range after so many points of which they are folded, and that number.
        peel: points at the end of a row that are no part of its vectors.
        transpose: tiles that are copied.
        prefetch: arguments whose next lines are asked for.
        save: values that later passes read back.
        first: it walks so many points only, or all if `None`.
    """

    lanes: int = 1
    fold: tuple[Expr, int] | None = None
    peel: int = 0
    transpose: Tile | None = None
    prefetch: frozenset[str] = frozenset()
    save: tuple[Scalar, ...] = ()
    first: int | None = None

    def cut(self, ranges: tuple[Expr, ...]) -> Cut:
        """Return the loops over `ranges`, cut at the one that folds."""
        if self.fold is None:
            return Cut(outer=(), middle=None, size=0, inner=ranges)
        middle, size = self.fold
        at = ranges.index(middle)
        return Cut(outer=ranges[:at], middle=middle, size=size, inner=ranges[at + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A loop nest.

    Attributes:
        threaded: what a unit of work fixes, outermost first; a blocked axis leaves a loop over the block.
        together: a thread walks its units as one piece: serial loops then read long parts of memory's rows.
        serial: loops inside a unit, outermost first; a blocked threaded axis among them loops over its block.
        vector: the range of the innermost, vectorised loop, when it is a parallel one.
        tile: with reductions along other ranges, the number of columns (points of `vector`) reduced together.
        reduction: reduction ranges, outermost first; innermost and vectorised unless there is a `vector`.
        transpose: a second range of unit stride, and the vector, which are walked in tiles of these sizes.
        moves: all that happens in such tiles is that what lies along `across` is stored along `vector`.
        grain: instructions that are worth starting a thread for.
        weight: estimated instructions per point, at least 1.
        fixed: reductions combine in the order of `FIXED_LANES`.
        passes: how passes along reduced ranges are walked, by number, where it is said.
    """

    threaded: tuple[Axis, ...]
    together: bool
    serial: tuple[Expr, ...]
    vector: Axis | None
    tile: int
    reduction: tuple[Expr, ...]
    transpose: Tile | None
    moves: bool
    grain: int
    weight: int
    fixed: bool
    passes: MappingOf[int, PassPlan] = field(default_factory=dict)

    def walk(self, number: int) -> PassPlan:
        """Return the plan of pass `number`."""
        return self.passes.get(number, PassPlan())

    @property
    def across(self) -> Expr | None:
        """The range whose lines are transposed."""
        return None if self.transpose is None else self.transpose.across

    @property
    def saves(self) -> dict[int, tuple[Scalar, ...]]:
        """The values that passes keep for later ones, by number."""
        return {number: step.save for number, step in self.passes.items() if step.save}


def plan_of(kernel: Kernel, region: Region, nest: Nest, common: tuple[Directive, ...]) -> Plan:
    """Return the plan of `nest`, which does `region` of `kernel`, by its directives and the `common` ones."""
    directives = nest.directives
    symbols = {r.symbol.name: r.symbol for r in kernel.ranges}
    blocks = {directive.range: directive.by for directive in find_all(directives, Block)}
    threads = find(directives, Threads) or Threads()
    grain = find(directives, Grain) or Grain(instructions=1, at=1)
    vector = find(directives, Vector)
    whole = next((directive for directive in find_all(directives, Transpose) if directive.step is None), None)
    serial = tuple(
        symbols[name] for directive in find_all(directives, Sequential) for name in directive.ranges
    )
    axes = tuple(Axis(symbol=symbols[name], block=blocks.get(name)) for name in threads.ranges)
    axis = None if vector is None else Axis(symbol=symbols[vector.range], block=blocks.get(vector.range))
    reduces = bool(region.reduction)
    return Plan(
        threaded=axes,
        together=threads.together,
        serial=serial,
        vector=axis,
        tile=axis.block or 0 if reduces and axis is not None else 0,
        reduction=region.reduction,
        transpose=None if whole is None else _read_tile(whole, symbols),
        moves=whole is not None and whole.moves,
        grain=grain.instructions,
        weight=grain.at,
        fixed=find(common, Invariant) is not None,
        passes=_read_passes(kernel, directives, symbols),
    )


def _read_tile(directive: Transpose, symbols: MappingOf[str, Expr]) -> Tile:
    (across, along), (lines, points) = directive.ranges, directive.by
    return Tile(symbols[across], symbols[along], lines, points)


def _read_passes(
    kernel: Kernel, directives: tuple[Directive, ...], symbols: MappingOf[str, Expr]
) -> dict[int, PassPlan]:
    lanes = {directive.step: directive.count for directive in find_all(directives, Accumulators)}
    folds = {
        directive.step: (symbols[directive.range], directive.by) for directive in find_all(directives, Fold)
    }
    peels = {directive.step: directive.count for directive in find_all(directives, Peel)}
    asked = {directive.step: frozenset(directive.args) for directive in find_all(directives, Prefetch)}
    firsts = {
        directive.step: directive.first
        for directive in find_all(directives, Select)
        if directive.step is not None
    }
    tiles = {
        directive.step: _read_tile(directive, symbols)
        for directive in find_all(directives, Transpose)
        if directive.step is not None
    }
    named = index_values(kernel) if any(isinstance(directive, Save) for directive in directives) else {}
    saves = {
        directive.step: tuple(named[name] for name in directive.values)
        for directive in find_all(directives, Save)
    }
    numbers = {*lanes, *folds, *peels, *asked, *firsts, *tiles, *saves}
    return {
        number: PassPlan(
            lanes=lanes.get(number, 1),
            fold=folds.get(number),
            peel=peels.get(number, 0),
            transpose=tiles.get(number),
            prefetch=asked.get(number, frozenset()),
            save=saves.get(number, ()),
            first=firsts.get(number),
        )
        for number in sorted(numbers)
    }


def refuse(kernel: Kernel, directive: str, reason: str) -> EmitError:
    """Return the error that names `directive`, for which no loops of `kernel` can be written."""
    return EmitError(
        f"mapping-{directive}", f"the mapping of {kernel.name}: {reason}", origins=kernel.origins
    )


def refuse_unknown(kernel: Kernel, directives: Iterable[Directive]) -> None:
    """Refuse directives of `kernel` that the generator does not take.

    Raises:
        EmitError: there is one, by its name.
    """
    for directive in directives:
        if not isinstance(directive, CAPABILITIES):
            raise refuse(kernel, directive.keyword(), f"no C++ is written for `{directive.text}`")
        if directive.open_numbers:
            raise refuse(kernel, directive.keyword(), f"`{directive.text}` is open")
        if isinstance(directive, Invariant) and (directive.lanes, directive.block) != (
            FIXED_LANES,
            FIXED_BLOCK,
        ):
            raise refuse(kernel, "invariant", f"the one order is `invariant {FIXED_LANES} by {FIXED_BLOCK}`")


# ---- proposals ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A nest with its directives so far, and the facts that mapping passes look at.

    Attributes:
        kernel: one piece of the launch.
        region: what the nest does of it.
        nest: its stores or check, and the directives so far.
        common: directives of all nests.
        args: the launch's tensors by name, scratch memory among them.
        loops: what was measured of loops on the machine.
        named: directives that a template names for the nest; no pass decides about such.
    """

    kernel: Kernel
    region: Region
    nest: Nest
    common: tuple[Directive, ...]
    args: MappingOf[str, TensorArg]
    loops: Loops
    named: tuple[Directive, ...] = ()

    def add(self, directives: tuple[Directive, ...]) -> Proposal:
        """Return the proposal with more directives, but for those of kinds that a template names."""
        kinds = {type(directive) for directive in self.named}
        more = tuple(directive for directive in directives if type(directive) not in kinds)
        return replace(self, nest=replace(self.nest, directives=(*self.nest.directives, *more)))

    @property
    def vector(self) -> Expr | None:
        """The range that is the vector, if that has been said."""
        directive = find(self.nest.directives, Vector)
        if directive is None:
            return None
        return next(r.symbol for r in self.kernel.ranges if r.symbol.name == directive.range)

    @property
    def tile(self) -> int:
        """Points of the vector in one unit of work."""
        vector = find(self.nest.directives, Vector)
        blocks = find_all(self.nest.directives, Block)
        return next((block.by for block in blocks if vector is not None and block.range == vector.range), 0)

    @property
    def fixed(self) -> bool:
        """True if the order in which reductions combine is promised."""
        return find(self.common, Invariant) is not None
