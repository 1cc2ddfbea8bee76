"""The tiles of a kernel: which of its ranges are walked together, in how many lanes, and which blocks have an axis and a mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, bounds, product, provably_divisible, provably_le
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.scalar import Scalar
from coilwork_ir.target import Target
from coilwork_triton.facts.padded_rows import lanes_of_rows
from coilwork_triton.facts.ragged import along_rows
from coilwork_triton.facts.vectors import Access, in_pieces, in_rows
from coilwork_triton.iteration.tiles import Letter, Tile, flat_tile, padded_tile
from coilwork_triton.iteration.walking import chosen_first, likely_sizes
from coilwork_triton.launch.parameters import BLOCKS, Walk

# Points per multiprocessor of kernels that keep all of it busy.
_MANY: Final = 2048


def numels_of(
    kernel: Kernel,
    grouped: Mapping[Letter, list[Range]],
    touched: Sequence[Access],
    target: Target,
    *,
    flat: bool,
) -> tuple[dict[Letter, Expr], int]:
    """The points of each tile, and in how many lanes each row of the x tile is to stand; 0 where rows follow each other."""
    numels = {letter: product(r.extent for r in ranges) for letter, ranges in grouped.items()}
    lanes = 0
    if tuple(grouped) == ("x",) and not flat and provably_le(_MANY * target.multiprocessors, numels["x"]):
        lanes = lanes_of_rows(kernel, touched)
    if lanes:
        numels["x"] = product(r.extent for r in grouped["x"][:-1]) * lanes
    return numels, lanes


def grouped_of(
    kernel: Kernel, values: tuple[Scalar, ...], touched: Sequence[Access], *, ragged: bool, flat: bool
) -> dict[Letter, list[Range]]:
    """The ranges of each tile; with `flat` rows have none of their own."""
    grouped: dict[Letter, list[Range]] = {}
    for r in kernel.ranges:
        if (r.kind == "reduction") != (r.tile == "r") or (r.kind == "walked") != (r.tile == "w"):
            raise EmitError("range-tile", f"range {r.symbol.name} is {r.kind} but lies in tile {r.tile}")
        grouped.setdefault(r.tile, []).append(r)
    if tuple(grouped) == ("x",) and not flat and in_rows(grouped["x"], touched, likely_sizes(kernel)):
        inner = next(r for r in reversed(grouped["x"]) if as_int(r.extent) != 1)
        grouped = {"y": [r for r in grouped["x"] if r is not inner], "x": [inner]}
    columns = tuple(grouped) == ("x", "r") and not ragged
    if columns and in_pieces(grouped["x"], grouped["r"], touched, likely_sizes(kernel)):
        inner = next(r for r in reversed(grouped["x"]) if as_int(r.extent) != 1)
        grouped = {"y": [r for r in grouped["x"] if r is not inner], "x": [inner], "r": grouped["r"]}
    if tuple(grouped) == ("x", "r") and ragged:
        # one length per row of results, and few rows per program
        inner = along_rows(grouped["x"], values)
        outer = [r for r in grouped["x"] if r is not inner]
        if any(as_int(r.extent) != 1 for r in outer):
            grouped = {"y": outer, "x": [inner], "r": grouped["r"]}
    return grouped


def tiles_of(
    grouped: Mapping[Letter, list[Range]],
    numels: Mapping[Letter, Expr],
    walk: Walk,
    configs: Sequence[Config],
    order: Iterable[Letter],
    lanes: int,
) -> list[Tile]:
    """In the `order` of block axes. One whose every block is a point has no axis. Rows of x stand in so many `lanes`, unless there are 0."""
    tiles: list[Tile] = []
    rank = 0
    for letter in order:
        if letter not in grouped:
            continue
        sizes = [dict(c.meta)[BLOCKS[letter]] for c in configs]
        scalar = letter != "r" and all(size == 1 for size in sizes)
        masked = not all(size == 1 or provably_divisible(numels[letter], size) for size in sizes)
        if letter == "r" and walk == "persistent":
            # The block is there even if there is nothing to reduce; programs and turns of a loop are not.
            masked = masked or (bounds(numels[letter]).lo or 0) < 1
        axis = None if scalar else rank
        if lanes:
            tiles.append(padded_tile(letter, grouped[letter], axis, masked, lanes))
        else:
            tiles.append(flat_tile(letter, grouped[letter], axis, masked))
        rank += not scalar
    return tiles


def chosen_tile(chosen: Expr, axis: int) -> Tile:
    """The tile of the first elements of sorted rows, along dimension `axis` of blocks."""
    assert chosen.extent is not None
    block = chosen_first(chosen)
    return Tile(
        letter="c",
        numel=chosen.extent,
        block=str(block),
        index=chosen,
        axis=axis,
        masked=as_int(chosen.extent) != block,
        parts=(),
    )
