"""What the directives of a nest say, in the form in which its loops are written; and what no loops can be written for.

Nothing is decided here: a directive that the generator has no loops for is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from typing import Final

from coilwork_cpp.planning.blocking import Cut
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.planning.vectors import moves_only
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, ceildiv, extent_of
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.kernels.values import value_names
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

# What the generator takes; it refuses every other directive.
CAPABILITIES: Final[tuple[type[Directive], ...]] = (
    Accumulators, Block, Contract, Fold, Functions, Grain, Invariant, Join, Peel, Prefetch, Save, Select,
    Sequential, Threads, Transpose, Vector,
)  # fmt: skip
# The order of combination that `invariant` promises: element number r of the innermost range goes to lane r % FIXED_LANES, in
# f32; lanes are folded pairwise, and added to the total in f64, after FIXED_BLOCK elements and at the end of the range.
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
        extent = extent_of(self.symbol)
        return extent if self.block is None else ceildiv(extent, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How one pass along reduced ranges is walked.

    Attributes:
        lanes: partial results; 1: none but the total.
        fold: the range after so many points of which they are folded, and that number.
        peel: points at the end of a row that are no part of its vectors.
        transpose: two ranges along which tiles are copied, and their sizes.
        prefetch: arguments whose next lines are asked for.
        save: values that later passes read back.
        first: it walks so many points only, or all if `None`.
    """

    lanes: int = 1
    fold: tuple[Expr, int] | None = None
    peel: int = 0
    transpose: tuple[tuple[Expr, Expr], tuple[int, int]] | None = None
    prefetch: frozenset[str] = frozenset()
    save: tuple[Scalar, ...] = ()
    first: int | None = None

    def cut(self, ranges: tuple[Expr, ...]) -> Cut:
        """Where the loops over `ranges` fold."""
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
        across: a second range of unit stride; it and `vector` are walked in tiles.
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
    across: Expr | None
    moves: bool
    grain: int
    weight: int
    fixed: bool
    passes: MappingOf[int, PassPlan] = field(default_factory=dict)

    def walk(self, number: int) -> PassPlan:
        """How pass `number` is walked."""
        return self.passes.get(number, PassPlan())

    @property
    def saves(self) -> dict[int, tuple[Scalar, ...]]:
        """What passes keep for later ones, by number."""
        return {number: step.save for number, step in self.passes.items() if step.save}


def plan_of(
    kernel: Kernel,
    region: Region,
    nest: Nest,
    common: tuple[Directive, ...],
    args: MappingOf[str, TensorArg],
) -> Plan:
    """What `nest`, which does `region` of `kernel`, and the directives `common` to all nests say.

    Raises:
        EmitError: no loops can be written for one of them, by its name.
    """
    directives = nest.directives
    _refuse_unknown(kernel, (*common, *directives))
    symbols = {r.symbol.name: r.symbol for r in kernel.ranges}
    blocks = {one.range: one.by for one in find_all(directives, Block)}
    threads = find(directives, Threads) or Threads()
    grain = find(directives, Grain) or Grain(instructions=1, at=1)
    vector = find(directives, Vector)
    whole = next((one for one in find_all(directives, Transpose) if one.step is None), None)
    serial = tuple(symbols[name] for one in find_all(directives, Sequential) for name in one.ranges)
    axes = tuple(Axis(symbol=symbols[name], block=blocks.get(name)) for name in threads.ranges)
    axis = None if vector is None else Axis(symbol=symbols[vector.range], block=blocks.get(vector.range))
    reduces = bool(region.reduction)
    plan = Plan(
        threaded=axes,
        together=threads.together,
        serial=serial,
        vector=axis,
        tile=axis.block or 0 if reduces and axis is not None else 0,
        reduction=region.reduction,
        across=None if whole is None else symbols[whole.ranges[0]],
        moves=whole is not None and whole.moves,
        grain=grain.instructions,
        weight=grain.at,
        fixed=find(common, Invariant) is not None,
        passes=_passes(kernel, directives, symbols),
    )
    _check_loops(kernel, region, plan, threads, whole, args)
    return plan


def _passes(
    kernel: Kernel, directives: tuple[Directive, ...], symbols: MappingOf[str, Expr]
) -> dict[int, PassPlan]:
    lanes = {one.step: one.count for one in find_all(directives, Accumulators)}
    folds = {one.step: (symbols[one.range], one.by) for one in find_all(directives, Fold)}
    peels = {one.step: one.count for one in find_all(directives, Peel)}
    asked = {one.step: frozenset(one.args) for one in find_all(directives, Prefetch)}
    firsts = {one.step: one.first for one in find_all(directives, Select) if one.step is not None}
    tiles = {
        one.step: ((symbols[one.ranges[0]], symbols[one.ranges[1]]), (one.by[0], one.by[1]))
        for one in find_all(directives, Transpose)
        if one.step is not None
    }
    named = value_names(kernel) if any(isinstance(one, Save) for one in directives) else {}
    saves = {one.step: tuple(named[name] for name in one.values) for one in find_all(directives, Save)}
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


# What no loops can be written for


def _refuse(kernel: Kernel, directive: str, reason: str) -> EmitError:
    return EmitError(
        f"mapping-{directive}", f"the mapping of {kernel.name}: {reason}", origins=kernel.origins
    )


def _refuse_unknown(kernel: Kernel, directives: Iterable[Directive]) -> None:
    for one in directives:
        if not isinstance(one, CAPABILITIES):
            raise _refuse(kernel, one.keyword(), f"no C++ is written for `{one.text}`")
        if one.open_numbers:
            raise _refuse(kernel, one.keyword(), f"`{one.text}` is open")
        if isinstance(one, Invariant) and (one.lanes, one.block) != (FIXED_LANES, FIXED_BLOCK):
            raise _refuse(kernel, "invariant", f"the one order is `invariant {FIXED_LANES} by {FIXED_BLOCK}`")


def _check_loops(
    kernel: Kernel,
    region: Region,
    plan: Plan,
    threads: Threads,
    whole: Transpose | None,
    args: MappingOf[str, TensorArg],
) -> None:
    """Refuse loops that leave points out, walk some twice, or walk in any order what has an order."""
    shared = [axis.symbol for axis in plan.threaded]
    for symbol in shared:
        if symbol in region.serial:
            raise _refuse(kernel, "threads", f"several points of {symbol.name} write one element")
    vector = None if plan.vector is None else plan.vector.symbol
    if vector is not None and vector in region.serial:
        raise _refuse(kernel, "vector", f"several points of {vector.name} write one element")
    blocked = {axis.symbol for axis in plan.threaded if axis.block is not None}
    walked = [*(s for s in shared if s not in blocked), *plan.serial, *(() if vector is None else (vector,))]
    wanted = (*region.parallel, *region.serial)
    if sorted(s.name for s in walked) != sorted(s.name for s in wanted) or not blocked <= set(walked):
        names = ", ".join(s.name for s in wanted)
        raise _refuse(kernel, "sequential", f"its loops do not walk each of ({names}) once")
    order = [s for s in plan.serial if s in region.serial]
    if order != list(region.serial):
        raise _refuse(kernel, "sequential", "points that write one element would come in another order")
    _check_vector(kernel, region, plan, whole, args)
    if threads.together and (not plan.serial or shared != [vector] or plan.tile):
        raise _refuse(kernel, "threads", "units are one piece only where they are blocks of the vector")


def _check_vector(
    kernel: Kernel, region: Region, plan: Plan, whole: Transpose | None, args: MappingOf[str, TensorArg]
) -> None:
    vector = plan.vector
    if region.reduction and vector is not None and vector.block is None:
        raise _refuse(
            kernel, "vector", f"columns of {vector.symbol.name} are reduced in blocks that threads share"
        )
    if whole is None:
        return
    ranges, sizes = whole.ranges, whole.by
    if vector is None or vector.symbol.name != ranges[1] or region.reduction or region.serial:
        raise _refuse(kernel, "transpose", "tiles are transposed for the vector, of points in any order")
    block = {axis.symbol.name: axis.block for axis in plan.threaded}
    if (block.get(ranges[0]), block.get(ranges[1])) != sizes:
        raise _refuse(kernel, "transpose", "tiles are the blocks that threads share")
    if not plan.moves and plan.serial != (plan.across,):
        raise _refuse(kernel, "transpose", "the lines of a tile are what a unit walks")
    if plan.moves and (plan.across is None or not moves_only(region, args, plan.across, vector.symbol)):
        raise _refuse(kernel, "transpose", "not every store moves what lies along one range along the other")
