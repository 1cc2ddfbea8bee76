"""Check that a mapping of a kernel is legal, and that loops can be written for it.

`settle_user_mappings` takes one mapping for each piece of a launch. What these say of the whole launch may be
stricter than proposed, never freer: exact functions and the order in which rows combine follow from what is
computed and promised. `check_loops` and `check_passes` refuse directives that are known one by one, but not
together, or not for this kernel, by the directive's name. A mapping that they pass, and that is legal by the
IR's rules, gives the interpreter's results.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from coilwork_cpp.planning.parallelism import is_transposition
from coilwork_cpp.planning.plan import FIXED_BLOCK, FIXED_LANES, PassPlan, Plan, refuse
from coilwork_cpp.planning.reduction_passes import Pass
from coilwork_cpp.planning.regions import Region, group_stores
from coilwork_cpp.values.reductions import is_positional, is_rounded
from coilwork_ir.errors import EmitError
from coilwork_ir.index import as_int, get_extent
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.mapping import (
    Contract,
    Directive,
    Functions,
    Invariant,
    Mapping,
    Versions,
    check_closed,
    check_given,
    find,
)
from coilwork_ir.scalar import Sort

# ---- given mappings ----


_COMMON = (Functions, Contract, Invariant)


def settle_user_mappings(
    kernel: Kernel,
    given: Sequence[Versions],
    phases: Sequence[Sequence[Kernel]],
    proposed: tuple[Directive, ...],
) -> tuple[tuple[Mapping, ...], ...]:
    """Return the mappings `given` to `kernel`, for the pieces of each of its `phases`; `proposed` are the
    directives of the whole launch.

    Raises:
        EmitError: there are not as many as pieces, or one of them is not legal, by the name of the directive.
    """
    pieces = list(chain.from_iterable(phases))
    if len(given) != len(pieces):
        raise _refuse(
            kernel,
            "mapping",
            f"it is {len(given)} mappings, and the kernel is written as {len(pieces)} pieces",
            "give each piece a mapping, in the order in which a trace shows them (kernels/NAME.mapping.txt)",
        )
    mappings: list[Mapping] = []
    for piece, versions in zip(pieces, given, strict=True):
        if len(versions.versions) != 1 or versions.versions[0].guard is not None:
            raise _refuse(kernel, "mapping-versions", "C++ has one version, `otherwise`, for all sizes", "")
        mapping = _wrap_in_nests(kernel, piece, versions.general)
        check_closed(kernel, mapping)
        check_given(kernel, piece, mapping)
        mappings.append(mapping)
    for mapping in mappings:
        if mapping.directives != mappings[0].directives:
            raise _refuse(
                kernel, "mapping", "what is said outside of nests is common to all pieces of a launch", ""
            )
    _check_common(kernel, mappings[0].directives, proposed)
    rest = iter(mappings)
    return tuple(tuple(next(rest) for _ in pieces) for pieces in phases)


def _wrap_in_nests(kernel: Kernel, piece: Kernel, mapping: Mapping) -> Mapping:
    """`mapping` with loops in a nest, where it has none and `piece` is one."""
    if mapping.nests:
        return mapping
    groups = group_stores(piece)
    if len(groups) > 1:
        raise _refuse(
            kernel,
            "mapping",
            f"a piece has {len(groups)} loop nests, and the mapping none",
            "say `nest store 0:` before the directives of each",
        )
    common = tuple(directive for directive in mapping.directives if isinstance(directive, _COMMON))
    own = tuple(directive for directive in mapping.directives if not isinstance(directive, _COMMON))
    return Mapping(directives=common, nests=tuple(replace(nest, directives=own) for nest, _ in groups))


def _check_common(kernel: Kernel, given: tuple[Directive, ...], proposed: tuple[Directive, ...]) -> None:
    """Refuse what makes results freer than `proposed`."""
    functions, exact = find(given, Functions), find(proposed, Functions)
    if functions is not None and exact is not None and (functions.kind, exact.kind) == ("vector", "exact"):
        raise _refuse(kernel, "mapping-functions", "its functions have to be exact", "functions exact")
    if find(given, Contract) is not None and find(proposed, Contract) is None:
        raise _refuse(kernel, "mapping-contract", "its products and sums are rounded one by one", "")
    invariant = find(proposed, Invariant)
    if invariant is not None and find(given, Invariant) is None:
        raise _refuse(kernel, "mapping-invariant", "the order of combination is promised", invariant.text)


def _refuse(kernel: Kernel, code: str, reason: str, remedy: str) -> EmitError:
    return EmitError(
        code,
        f"the mapping given for kernel {kernel.name} is not one for it",
        origins=kernel.origins,
        reason=reason,
        remedy=remedy,
    )


# ---- loops and passes ----


def check_loops(kernel: Kernel, region: Region, plan: Plan, args: MappingOf[str, TensorArg]) -> None:
    """Refuse loops that leave points out, walk some twice, or walk in any order what has an order.

    Raises:
        EmitError: by the name of the directive.
    """
    shared = [axis.symbol for axis in plan.threaded]
    vector = None if plan.vector is None else plan.vector.symbol
    for directive, symbols in (("threads", shared), ("vector", [] if vector is None else [vector])):
        for symbol in symbols:
            if symbol in region.serial:
                raise refuse(kernel, directive, f"several points of {symbol.name} write one element")
    blocked = {axis.symbol for axis in plan.threaded if axis.block is not None}
    walked = [*(s for s in shared if s not in blocked), *plan.serial, *(() if vector is None else (vector,))]
    wanted = (*region.parallel, *region.serial)
    if sorted(s.name for s in walked) != sorted(s.name for s in wanted) or not blocked <= set(walked):
        names = ", ".join(s.name for s in wanted)
        raise refuse(kernel, "sequential", f"its loops do not walk each of ({names}) once")
    if [s for s in plan.serial if s in region.serial] != list(region.serial):
        raise refuse(kernel, "sequential", "points that write one element would come in another order")
    if plan.together and (not plan.serial or shared != [vector] or plan.tile):
        raise refuse(kernel, "threads", "units are one piece only where they are blocks of the vector")
    _check_columns(kernel, region, plan)
    _check_tiles(kernel, region, plan, args)


def _check_columns(kernel: Kernel, region: Region, plan: Plan) -> None:
    if not region.reduction:
        if plan.passes:
            raise refuse(kernel, "accumulators", "nothing is reduced in the nest, which has no passes")
        return
    vector = plan.vector
    for axis in plan.threaded:
        if axis.block is not None and (vector is None or axis.symbol is not vector.symbol):
            raise refuse(
                kernel, "block", f"a nest that reduces has blocks of columns alone, not of {axis.symbol.name}"
            )
    if vector is None:
        return
    if vector.block is None or all(axis.symbol is not vector.symbol for axis in plan.threaded):
        raise refuse(
            kernel, "vector", f"columns of {vector.symbol.name} are reduced in blocks that threads share"
        )
    if any(vector.symbol in get_extent(r).free_symbols for r in region.reduction):
        raise refuse(kernel, "vector", f"columns of {vector.symbol.name} are not equally long")
    if any(isinstance(value, Sort) for value in region.values):
        raise refuse(kernel, "vector", "a sort takes a row at a time, whatever lies beside it")


def _check_tiles(kernel: Kernel, region: Region, plan: Plan, args: MappingOf[str, TensorArg]) -> None:
    tile, vector = plan.transpose, plan.vector
    if tile is None:
        return
    if vector is None or vector.symbol is not tile.along or region.reduction or region.serial:
        raise refuse(kernel, "transpose", "tiles are transposed for the vector, of points in any order")
    block = {axis.symbol: axis.block for axis in plan.threaded}
    if (block.get(tile.across), block.get(tile.along)) != (tile.lines, tile.points):
        raise refuse(kernel, "transpose", "tiles are the blocks that threads share")
    if plan.serial != (tile.across,):
        raise refuse(kernel, "transpose", "the lines of a tile are what a unit walks")
    if plan.moves and not is_transposition(region, args, tile.across, vector.symbol):
        raise refuse(kernel, "transpose", "not every store moves what lies along one range along the other")


def check_passes(kernel: Kernel, region: Region, plan: Plan, passes: Sequence[Pass]) -> None:
    """Refuse what the passes of a nest do not allow.

    Raises:
        EmitError: by the name of the directive.
    """
    beyond = [number for number in plan.passes if number >= len(passes)]
    if beyond:
        raise refuse(
            kernel, "accumulators", f"the nest has {len(passes)} passes, and none with number {beyond[0]}"
        )
    for number, step in enumerate(passes):
        walk = plan.walk(number)
        if plan.vector is None:
            _check_row_pass(kernel, region, plan, step, walk)
        else:
            _check_column_pass(kernel, region, plan, step, walk)
        if plan.fixed:
            _check_order(kernel, region, plan, step, walk)


def _check_row_pass(kernel: Kernel, region: Region, plan: Plan, step: Pass, walk: PassPlan) -> None:
    inner, tile = region.reduction[-1], walk.transpose
    if step.scans and (walk.lanes > 1 or tile is not None):
        raise refuse(kernel, "accumulators", "the points of a scan come in order")
    if walk.lanes > 1 and not step.reduces and tile is None:
        raise refuse(kernel, "accumulators", "the pass reduces nothing")
    length = as_int(get_extent(inner))
    if length is not None and walk.lanes > max(length, 1) and not plan.fixed:
        raise refuse(kernel, "accumulators", f"rows have {length} points for {walk.lanes} partial results")
    if any(inner not in region.facts.varies[value] for value in walk.save):
        # it is computed outside of the innermost loop, before anything is read back
        raise refuse(kernel, "save", f"what does not vary along {inner.name} is not kept")
    laned = walk.lanes > 1 and tile is None
    if walk.fold is not None and not laned:
        raise refuse(kernel, "fold", "there are no partial results to fold")
    if walk.prefetch and not (laned and len(region.reduction) == 1):
        raise refuse(kernel, "prefetch", "only groups of lanes along one range ask for lines")
    if walk.peel and (not laned or any(map(is_positional, step.reduces))):
        raise refuse(
            kernel, "peel", "what is left over is combined one by one beside lanes, without positions"
        )
    if walk.peel and walk.fold is not None and walk.fold[0] is inner:
        raise refuse(kernel, "peel", f"blocks of {inner.name} end anywhere")
    if tile is not None and (tile.along is not inner or tile.across not in region.reduction[:-1]):
        raise refuse(kernel, "transpose", f"tiles of a row lie along {inner.name} and another reduced range")
    if tile is not None and any(map(is_positional, step.reduces)):
        raise refuse(kernel, "transpose", "positions come in order")


def _check_column_pass(kernel: Kernel, region: Region, plan: Plan, step: Pass, walk: PassPlan) -> None:
    for directive, said in (
        ("accumulators", walk.lanes > 1),
        ("peel", walk.peel > 0),
        ("prefetch", bool(walk.prefetch)),
        ("save", bool(walk.save)),
        ("select", walk.first is not None),
    ):
        if said:
            raise refuse(
                kernel, directive, "columns have no lanes but their own, and nothing is kept of them"
            )
    if step.scans and (walk.fold is not None or walk.transpose is not None):
        raise refuse(kernel, "fold", "the points of a scan come in order")
    tile = walk.transpose
    if tile is None:
        return
    assert plan.vector is not None
    inner = region.reduction[-1]
    if tile.across is not inner or tile.along is not plan.vector.symbol or tile.points != plan.tile:
        raise refuse(
            kernel, "transpose", f"tiles of columns lie along {inner.name}, and are as wide as a unit"
        )
    if walk.fold != (inner, tile.lines):
        raise refuse(kernel, "transpose", "tiles are the blocks that are folded")


def _check_order(kernel: Kernel, region: Region, plan: Plan, step: Pass, walk: PassPlan) -> None:
    """Refuse another order of combination than the one that `invariant` promises."""
    if not step.reduces or step.scans:
        return
    if plan.vector is None and walk.lanes != FIXED_LANES:
        raise refuse(kernel, "accumulators", f"rows combine in {FIXED_LANES} lanes where that is promised")
    rounded = any(map(is_rounded, step.reduces))
    if walk.fold != ((region.reduction[-1], FIXED_BLOCK) if rounded else None):
        raise refuse(kernel, "fold", f"rows are folded after {FIXED_BLOCK} points where that is promised")
    if walk.peel or walk.transpose is not None:
        raise refuse(kernel, "peel" if walk.peel else "transpose", "the order of combination is promised")
