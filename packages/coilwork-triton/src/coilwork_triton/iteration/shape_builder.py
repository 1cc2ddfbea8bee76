"""Build the shape of a kernel's text from its mapping: a function of the two, and nothing else decides.

`build_shape` is total over the mappings that `check_mapping` lets pass; one that does not fit the kernel is
refused by the directive's name. An open mapping has the shape that is right for each of its choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, find_bounds, get_extent, multiply_all, provably_divisible
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Coarsen,
    Evict,
    FlatGrid,
    Index,
    Keep,
    Lanes,
    Loop,
    Mapping,
    Number,
    Privatise,
    Select,
    Sequential,
    Share,
    Sort,
    Straddle,
    Values,
    Vector,
    find_all,
)
from coilwork_ir.mapping import Tile as TileOf
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.iteration.mapping_parameters import get_single_value, launch_parameters
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.iteration.row_straddling_blocks import find_straddled_rows
from coilwork_triton.iteration.shape import (
    ROW,
    PeeledVectors,
    RowSharing,
    Shape,
    StraddledRows,
    Tile,
    build_flat_tile,
    build_padded_tile,
    find_row_sharing,
)
from coilwork_triton.iteration.vector_peeling import find_peeled_vectors, has_room_for_shift
from coilwork_triton.kernel_passes.histogram import find_bins
from coilwork_triton.kernel_passes.thread_coarsening import has_neighbouring_stores
from coilwork_triton.kernel_passes.topk_range import compute_topk_block, find_topk_symbol
from coilwork_triton.launch.parameters import BLOCKS, Letter, Walk

_PARALLEL: Final[tuple[Letter, ...]] = ("x", "y", "z")


def build_shape(kernel: Kernel, mapping: Mapping, target: Target, *, program: str = "") -> Shape:
    """Return the shape of `kernel` as `mapping` runs it on `target`; `program` counts its programs where
    others share its grid.

    The generator has proposed the mapping, or `check_mapping` has let it pass.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    shape = _build_plain_shape(kernel, mapping, target, program)
    vectors, two_rows = _build_vectors(kernel, mapping, shape), _build_straddled_rows(kernel, mapping, shape)
    if vectors is None and two_rows is None:
        return shape
    return replace(shape, vectors=vectors, two_rows=two_rows)


def _build_plain_shape(kernel: Kernel, mapping: Mapping, target: Target, program: str) -> Shape:
    """Return all of the shape but what follows from its tiles and masks."""
    numbers = launch_parameters(kernel, mapping)
    tiles = build_tiles(kernel, mapping, numbers)
    lanes = tuple(find_all(mapping.directives, Lanes))
    index, coarsen, sort = mapping.find(Index), mapping.find(Coarsen), mapping.find(Sort)
    sharing = _build_sharing(kernel, mapping, target)
    evicted = (arg for one in find_all(mapping.directives, Evict) for arg in one.args)
    return Shape(
        grids=target.machine.grids,
        tiles=tiles,
        walk=_find_walk(mapping),
        parameters=tuple(numbers),
        index_dtype=DType.I32 if index is not None and index.dtype == "i32" else DType.I64,
        flat_grid=mapping.find(FlatGrid) is not None,
        program=program if sharing is None else ROW.id,
        sharing=sharing,
        scalar_access=any(one.by == 1 and not one.narrow for one in lanes),
        step=1 if coarsen is None else _step(kernel, coarsen),
        chunk=max((get_single_value(one.by) for one in lanes if not one.narrow), default=1),
        has_histogram=_counts(kernel, mapping),
        narrow_width=max((get_single_value(one.by) for one in lanes if one.narrow), default=0),
        topk=_build_topk_tile(kernel, mapping, tiles),
        float_keys=sort is not None and sort.keys == "float",
        streamed=frozenset(evicted),
        short_values=mapping.find(Values) is not None,
    )


# Tiles


def build_tiles(kernel: Kernel, mapping: Mapping, numbers: MappingOf[str, Number]) -> tuple[Tile, ...]:
    """Return the tiles of `kernel` in the order of block axes, whose blocks have `numbers` of points. A tile
    whose every block is a point has no axis.
    """
    known = {r.symbol.name: r for r in kernel.ranges}
    tiles: list[Tile] = []
    rank = 0
    for letter, one in _assign_letters(mapping):
        sizes = list_values(numbers[BLOCKS[letter]])
        ranges = [known[name] for name in one.ranges]
        axis = None if letter != "r" and set(sizes) == {1} else rank
        lanes = one.padded if isinstance(one, TileOf) else 0
        points = multiply_all(r.extent for r in ranges)
        numel = multiply_all(r.extent for r in ranges[:-1]) * lanes if lanes else points
        masked = not all(size == 1 or provably_divisible(numel, size) for size in sizes)
        if isinstance(one, Keep):
            # the block is there even if there is nothing to reduce; programs and turns of a loop are not
            masked = masked or (find_bounds(points).lo or 0) < 1
        if lanes:
            tiles.append(build_padded_tile(letter, ranges, axis, masked, lanes))
        else:
            tiles.append(build_flat_tile(letter, ranges, axis, masked))
        rank += axis is not None
    return tuple(tiles)


def _assign_letters(mapping: Mapping) -> Iterator[tuple[Letter, TileOf | Sequential | Keep | Loop | Share]]:
    """Yield the letter of each directive that is an axis of blocks, in their order: outer tiles, row loop,
    reduction.
    """
    sequential, keep = mapping.find(Sequential), mapping.find(Keep)
    rows = keep or mapping.find(Loop) or mapping.find(Share)
    if keep is not None and keep.first:
        yield "r", keep
    tiles = find_all(mapping.directives, TileOf)
    yield from reversed(list(zip(_PARALLEL, tiles, strict=False)))
    if sequential is not None:
        yield "w", sequential
    if rows is not None and not (keep is not None and keep.first):
        yield "r", rows


def _find_walk(mapping: Mapping) -> Walk:
    if mapping.find(Keep) is not None:
        return "persistent"
    if mapping.find(Loop) is not None:
        return "looped"
    return "pointwise" if mapping.find(Share) is None else "shared"


# What has to fit the kernel


def _build_sharing(kernel: Kernel, mapping: Mapping, target: Target) -> RowSharing | None:
    share = mapping.find(Share)
    if share is None:
        return None
    found = find_row_sharing(kernel, list_roots(kernel), target)
    if found is None or (found.workspace, found.length) != (share.workspace, share.by):
        pieces = "none" if found is None else f"pieces of {found.length}"
        raise refuse(kernel, "share", f"the workspace has room for {pieces}, and words for them")
    return found


def _step(kernel: Kernel, coarsen: Coarsen) -> int:
    if coarsen.range != kernel.ranges[-1].symbol.name or not has_neighbouring_stores(kernel, coarsen.by):
        raise refuse(
            kernel, "coarsen", f"stores are not those of {coarsen.by} neighbours along {coarsen.range}"
        )
    return coarsen.by


def _counts(kernel: Kernel, mapping: Mapping) -> bool:
    counts = mapping.find(Privatise)
    if counts is None:
        return False
    bins = [find_bins(kernel, store) for store in kernel.stores if store.buffer in counts.args]
    if any(found is None or found.count > counts.bins for found in bins) or len(bins) < len(kernel.stores):
        raise refuse(
            kernel, "privatise", f"not all that is stored are counts of {counts.bins} numbers at most"
        )
    return True


def _build_topk_tile(kernel: Kernel, mapping: Mapping, tiles: tuple[Tile, ...]) -> Tile | None:
    """Return the tile of the first elements of sorted rows, in the place of the row's axis."""
    topk, select = find_topk_symbol(kernel), mapping.find(Select)
    if topk is None and select is None:
        return None
    count = None if topk is None else as_int(get_extent(topk))
    if topk is None or select is None or count != select.first:
        stored = "all" if topk is None else f"the first {count}"
        raise refuse(kernel, "select", f"the kernel stores {stored} of the sorted elements")
    block = compute_topk_block(topk)
    if any(room and room < count for room in list_values(select.room)):
        raise refuse(kernel, "select", f"the room does not hold {count} elements")
    if min(list_values(select.room)) and max(list_values(select.groups)) < count:
        raise refuse(kernel, "select", f"the best of fewer than {count} groups give no bound")
    return Tile(
        letter="c",
        numel=get_extent(topk),
        block=str(block),
        index=topk,
        axis=sum(t.axis is not None for t in tiles) - 1,
        masked=count != block,
        parts=(),
    )


# What follows from tiles and masks


def _build_vectors(kernel: Kernel, mapping: Mapping, shape: Shape) -> PeeledVectors | None:
    vector = mapping.find(Vector)
    if vector is None:
        return None
    found = find_peeled_vectors(kernel, shape, list_roots(kernel))
    if found is None:
        raise refuse(kernel, "vector", "no rows are accessed in whole vectors that begin or end anywhere")
    if (vector.range, vector.by, vector.shifted) != (found.tile.inner.name, found.widest, found.shifted):
        kind = "shifted" if found.shifted else "not shifted"
        raise refuse(kernel, "vector", f"vectors are of {found.widest} along {found.tile.inner.name}, {kind}")
    least = min(list_values(launch_parameters(kernel, mapping)[found.tile.block]))
    if not has_room_for_shift(shape, found, least):
        raise refuse(kernel, "vector", f"a row that begins anywhere does not fit {least} lanes")
    return found


def _build_straddled_rows(kernel: Kernel, mapping: Mapping, shape: Shape) -> StraddledRows | None:
    straddle = mapping.find(Straddle)
    if straddle is None:
        return None
    found = find_straddled_rows(kernel, shape)
    if found is None or found.tile.inner.name != straddle.range or straddle.rows != 2:
        raise refuse(kernel, "straddle", "only lines of rows of known length lie in two rows at most")
    return found
