"""Refuse legal mappings for which there is no Triton text, by the directive's name.

A mapping that passes, and is legal by the IR's rules, gives the interpreter's results.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import ceildiv, find_bounds, multiply_all, provably_le
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Choose,
    Coarsen,
    Contract,
    Directive,
    Evict,
    FlatGrid,
    Index,
    Invariant,
    Keep,
    Lanes,
    Limit,
    Loop,
    Mapping,
    Privatise,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Straddle,
    Tile,
    Values,
    Vector,
    Warps,
    find_all,
)
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.scalar import Scan, iterate_postorder
from coilwork_ir.scalar import Sort as SortValue
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import is_segmented_reduction, list_roots
from coilwork_triton.iteration.block_limits import explain_oversized_blocks
from coilwork_triton.iteration.shape import must_use_64_bits
from coilwork_triton.launch.configs import LEAST_BLOCK
from coilwork_triton.launch.parameters import Letter, round_up_to_power_of_two
from coilwork_triton.launch.sorts import MOST_WARPS

# What the generator has text for, in one mapping without nests.
TAKES: Final[tuple[type[Directive], ...]] = (
    Tile, FlatGrid, Keep, Loop, Sequential, Share, Coarsen, Straddle, Lanes, Runs, Vector, Warps, Invariant,
    Privatise, Sort, Select, Evict, Index, Values, Contract, Limit, Choose,
)  # fmt: skip
GRID_AXIS_MAX: Final = 65535
_MOST_WARPS: Final = 32
_LETTERS: Final[tuple[Letter, ...]] = ("x", "y", "z")
# A block of points that Triton holds at all.
_LARGEST_BLOCK: Final = 1 << 20


def list_unfit_directives(
    mapping: Mapping, what: str, *, takes: tuple[type[Directive], ...], needs: tuple[type[Directive], ...]
) -> Iterator[tuple[str, str]]:
    """List why the template of a kernel, an attention or a product as `what` says, cannot run as `mapping`
    says: keywords of directives, each with a reason. It has text for directives that it `takes`, and one of
    each that it `needs`.
    """
    if mapping.nests:
        yield "nest", "a program runs all stores of a kernel in one nest"
    seen: set[type[Directive]] = set()
    for one in mapping.directives:
        if not isinstance(one, takes):
            yield one.keyword(), f"no {what} is written with `{one.text}`"
        if type(one) in seen and not isinstance(one, Tile | Limit | Choose):
            yield one.keyword(), "it is said twice"
        seen.add(type(one))
    for wanted in needs:
        if wanted not in seen:
            yield wanted.keyword(), f"every {what} has one"


def refuse(kernel: Kernel, keyword: str, reason: str) -> EmitError:
    """Return the error that names the directive that `kernel` can't be written with."""
    return EmitError(
        f"mapping-{keyword}", f"kernel {kernel.name}, `{keyword}`: {reason}", origins=kernel.origins
    )


def check_mapping(kernel: Kernel, mapping: Mapping, target: Target) -> None:
    """Refuse what there is no text for.

    Raises:
        EmitError: by the name of the directive.
    """
    for directive, reason in _reasons(kernel, mapping, target):
        raise refuse(kernel, directive, reason)


def _reasons(kernel: Kernel, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    if mapping.nests:
        yield "nest", "a program runs all stores of a kernel in one nest"
    for one in mapping.directives:
        if type(one) not in TAKES:
            yield one.keyword(), "the Triton generator has no such thing"
    yield from _find_repeated_directives(mapping)
    yield from _points(kernel, mapping)
    yield from _blocks(kernel, mapping)
    yield from _grid(kernel, mapping)
    yield from _threads(kernel, mapping, target)
    yield from explain_oversized_blocks(kernel, mapping, tuple(_walks(mapping)), target)
    yield from _orders(mapping, target)
    yield from _invariance(mapping)
    if isinstance(index := mapping.find(Index), Index) and index.dtype == "i32" and not index.promised:
        numels = (
            multiply_all(r.extent for r in kernel.ranges if r.symbol.name in one.ranges)
            for one in _walks(mapping)
        )
        if must_use_64_bits(kernel, tuple(numels), list_roots(kernel)):
            yield "index", "32 bits may not be enough for what positions are computed from"


def _walks(mapping: Mapping) -> Iterator[Tile | Sequential | Keep | Loop | Share]:
    return (one for one in mapping.directives if isinstance(one, Tile | Sequential | Keep | Loop | Share))


def _find_repeated_directives(mapping: Mapping) -> Iterator[tuple[str, str]]:
    """Refuse second directives where a kernel has one of their class."""
    seen: set[type[Directive]] = set()
    for one in mapping.directives:
        if isinstance(one, Tile | Lanes | Limit | Choose):
            continue
        if type(one) in seen:
            yield one.keyword(), "it is said twice"
        seen.add(type(one))
    rows = [one for one in mapping.directives if isinstance(one, Keep | Loop | Share)]
    if len(rows) > 1:
        yield rows[1].keyword(), "all reduced ranges of a kernel are one tile"


def _points(kernel: Kernel, mapping: Mapping) -> Iterator[tuple[str, str]]:
    """Each range is walked once, by the directive for its kind."""
    kinds = {r.symbol.name: r.kind for r in kernel.ranges}
    missing = dict(kinds)
    for one in _walks(mapping):
        wanted = (
            "parallel"
            if isinstance(one, Tile)
            else "sequential"
            if isinstance(one, Sequential)
            else "reduction"
        )
        for name in one.ranges:
            missing.pop(name, None)
            if kinds.get(name) != wanted:
                yield one.keyword(), f"{name} is no {wanted} range"
    for name, kind in missing.items():
        keyword = "tile" if kind == "parallel" else "sequential" if kind == "sequential" else "loop"
        yield keyword, f"nothing says which points of {name} a program has"


def _blocks(kernel: Kernel, mapping: Mapping) -> Iterator[tuple[str, str]]:
    for one in _walks(mapping):
        odd = [size for size in list_values(one.by) if size & (size - 1) or size > _LARGEST_BLOCK]
        if odd and not isinstance(one, Share):
            yield one.keyword(), f"blocks are powers of two up to {_LARGEST_BLOCK}, and {odd[0]} is none"
        if isinstance(one, Tile) and one.to != "program":
            yield one.keyword(), "tiles are of programs"
    least = prod(min(list_values(one.by)) for one in _walks(mapping))
    if least > _LARGEST_BLOCK:
        yield next(_walks(mapping)).keyword(), f"a block of {least} points is more than {_LARGEST_BLOCK}"
    if mapping.find(Share) is not None:
        for tile in find_all(mapping.directives, Tile):
            if set(list_values(tile.by)) != {1}:
                yield "share", f"programs share one row at a time, and `{tile.text}` has several"
    sequential, rows = mapping.find(Sequential), mapping.find(Keep)
    if rows is not None and rows.first:
        ordered = any(isinstance(node, Scan | SortValue) for node in iterate_postorder(list_roots(kernel)))
        if ordered or sequential is not None or mapping.find(Vector) is not None:
            yield "keep", "rows that have an order, are walked, or begin anywhere lie along the last axis"
    if sequential is not None and rows is None and any(r.kind == "reduction" for r in kernel.ranges):
        yield "sequential", "rows that are walked stay in registers"
    loop = mapping.find(Loop)
    if (
        loop is not None
        and set(list_values(loop.stages)) != {1}
        and is_segmented_reduction(list_roots(kernel))
    ):
        yield "loop", "a loop that data end has no stages"
    if mapping.find(Privatise) is not None:
        small = [one for one in find_all(mapping.directives, Tile) if min(list_values(one.by)) < LEAST_BLOCK]
        if small and small[0].ranges == next(find_all(mapping.directives, Tile)).ranges:
            yield "privatise", f"a program counts {LEAST_BLOCK} points at least"


def _grid(kernel: Kernel, mapping: Mapping) -> Iterator[tuple[str, str]]:
    tiles = tuple(find_all(mapping.directives, Tile))
    if len(tiles) > len(_LETTERS):
        yield "tile", "blocks have at most three axes beside the reduced one"
    if mapping.find(FlatGrid) is None and mapping.find(Share) is None:
        for tile in tiles[1:]:
            points = multiply_all(r.extent for r in kernel.ranges if r.symbol.name in tile.ranges)
            if not provably_le(ceildiv(points, min(list_values(tile.by))), GRID_AXIS_MAX):
                yield "tile", f"the grid may have more than {GRID_AXIS_MAX} programs along `{tile.text}`"
    for tile in tiles:
        column = next((r for r in kernel.ranges if r.symbol.name == tile.ranges[-1]), None)
        longest = None if column is None else find_bounds(column.extent).hi
        if tile.padded and (longest is None or longest > tile.padded):
            yield "tile", f"rows may be longer than {tile.padded} lanes"
        if tile.padded and set(list_values(tile.by)) == {1}:
            yield "tile", "programs of one point have no lanes to leave empty"


def _threads(kernel: Kernel, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    warps = mapping.find(Warps)
    most = min(_MOST_WARPS, target.max_threads_per_block // target.warp_size)
    if mapping.find(Sort) is not None:
        most = min(most, MOST_WARPS)
    if warps is not None and max(list_values(warps.count)) > most:
        yield "warps", f"a program has at most {most}"
    yield from _scanning_threads(kernel, mapping, target)
    for evict in find_all(mapping.directives, Evict):
        if evict.priority != "first":
            yield "evict", "lines leave the cache first, or when they are the oldest"


def _scanning_threads(kernel: Kernel, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    """Refuse scans by several warps of which some have no element: Triton's scans mix up their copies."""
    warps = mapping.find(Warps)
    least = 1 if warps is None else min(list_values(warps.count))
    if least > 1 and any(isinstance(node, Scan) for node in iterate_postorder(list_roots(kernel))):
        points = prod(max(list_values(one.by)) for one in _walks(mapping))
        threads = least * target.warp_size
        if threads > points:
            yield "warps", f"{threads} threads scan {points} points, and each has one at least"


def _orders(mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    """Rows that are sorted or scanned: how threads share them. Of open numbers some choice is right."""
    sort, select, runs = mapping.find(Sort), mapping.find(Select), mapping.find(Runs)
    warps, keep = mapping.find(Warps), mapping.find(Keep)
    for keyword, number in (
        *(("sort", n) for n in (() if sort is None else (sort.threads, sort.width))),
        *(("select", n) for n in (() if select is None else (select.share, select.groups, select.spread))),
        *(("runs", n) for n in (() if runs is None else (runs.by,))),
    ):
        if any(value & (value - 1) for value in list_values(number)):
            yield keyword, "threads share rows in powers of two"
    if runs is not None:
        points = prod(max(list_values(one.by)) for one in _walks(mapping))
        threads = target.warp_size * (1 if warps is None else min(list_values(warps.count)))
        if threads * min(list_values(runs.by)) > points:
            yield "runs", f"{threads} threads have fewer runs than there are threads"
    if sort is None or keep is None:
        return
    row, threads = max(list_values(keep.by)), min(list_values(sort.threads))
    if threads * min(list_values(sort.width)) > row:
        yield "sort", f"{threads} threads have more than {row} elements"
    if select is not None:
        share, count = max(list_values(select.share)), round_up_to_power_of_two(select.first)
        if min(list_values(select.share)) > min(max(list_values(sort.threads)), count):
            yield "select", f"more threads hold {count} elements than there are"
        if count // min(share, count) > row // threads:
            yield "select", f"a thread has fewer of {row} elements than its share of {count}"


def _invariance(mapping: Mapping) -> Iterator[tuple[str, str]]:
    """A row's result may not depend on the rows beside it: its blocks and the order of its sums are fixed."""
    found = mapping.find(Invariant)
    if found is None:
        return
    for one in _walks(mapping):
        wanted = 1 if isinstance(one, Tile) else found.block
        if set(list_values(one.by)) != {wanted}:
            yield "invariant", f"`{one.text}` does not have {wanted} at a time"
    if mapping.find(Vector) is not None or found.lanes != found.block:
        yield "invariant", "where a row begins decides which elements are added first"
    if not any(one.by == 1 for one in find_all(mapping.directives, Lanes)):
        yield "invariant", "how wide a row may be accessed decides which elements a thread adds first"
