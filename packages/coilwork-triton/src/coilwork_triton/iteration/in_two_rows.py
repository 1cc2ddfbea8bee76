"""Which kernels' blocks lie in two rows: `coilwork_triton.iteration.shape`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, extent_of, product, stride_of, substitute
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import IndexValue, Scalar, postorder
from coilwork_triton.facts.vectorization import Access, accesses_of
from coilwork_triton.iteration.shape import Shape, Tile, TwoRows
from coilwork_triton.launch.parameters import power_of_two_below

_ONE: Final = as_expr(1)


def wants_two_rows(kernel: Kernel, shape: Shape, roots: Iterable[Scalar]) -> TwoRows | None:
    """The line whose blocks are to be no longer than a row, if the points of `kernel`, which stores or checks
    `roots`, and is in `shape`, ask which row they are in.
    """
    found = two_rows_of(kernel, shape)
    if found is None or found.length < shape.grids.two_row_points:
        return None
    tile, length = found.tile, found.length
    roots = tuple(roots)
    touched = accesses_of(kernel, roots)
    if not _asks(tile, touched, roots) or any(_loses_vectors(tile, access, length) for access in touched):
        return None
    return found


def two_rows_of(kernel: Kernel, shape: Shape) -> TwoRows | None:
    """The line of rows of known length that `kernel` walks in `shape`, if it is one."""
    tile = _line(shape)
    length = None if tile is None else as_int(extent_of(tile.inner))
    if tile is None or length is None:
        return None
    outer = product(r.extent for r in kernel.ranges if r.symbol is not tile.inner)
    return TwoRows(tile=tile, length=length, count=outer)


def _line(shape: Shape) -> Tile | None:
    """The only tile, if it is a line of rows that follow each other."""
    if shape.step > 1 or shape.counted or shape.chosen is not None:
        return None
    if shape.vectors is not None and shape.vectors.shifted:
        return None
    if len(shape.tiles) != 1 or shape.tiles[0].letter != "x":
        return None
    tile = shape.tiles[0]
    return tile if tile.parts and tile.column is None and tile.axis is not None else None


def _asks(tile: Tile, touched: Iterable[Access], roots: Iterable[Scalar]) -> bool:
    """Tell whether points have to know their row, or their place in it."""
    parts = {part for part, _ in tile.parts}
    if any(
        isinstance(node, IndexValue) and node.expr.free_symbols & parts for node in postorder(tuple(roots))
    ):
        return True
    return any(a.index.free_symbols & parts and not _follows(tile, a.index) for a in touched)


def _follows(tile: Tile, index: Expr) -> bool:
    """Tell if neighbours in the line are neighbours at `index`, across the ends of rows as well."""
    return stride_of(substitute(index, dict(tile.parts)), tile.index) is _ONE


def _loses_vectors(tile: Tile, access: Access, length: int) -> bool:
    """Tell if `access` is in vectors that end where rows do, which Triton sees of divided positions alone."""
    in_vectors = length % access.lanes == 0 and access.lanes > 1
    along = stride_of(access.index, tile.inner) is _ONE
    return in_vectors and along and not _follows(tile, access.index)


def no_longer(configs: tuple[Config, ...], block: str, length: int) -> tuple[Config, ...]:
    """`configs` whose `block` is no longer than `length`; if there is none, the first with one
    that is not.
    """
    fitting = tuple(c for c in configs if dict(c.meta)[block] <= length)
    if fitting:
        return fitting
    first, size = configs[0], power_of_two_below(length)
    warps = max(1, first.num_warps * size // dict(first.meta)[block])
    meta = tuple((name, size if name == block else value) for name, value in first.meta)
    return (replace(first, meta=meta, num_warps=warps),)


def within(space: SearchSpace, block: str, length: int) -> SearchSpace:
    values = tuple(
        (name, tuple(v for v in found if v <= length) if name == block else found)
        for name, found in space.values
    )
    return replace(space, values=tuple((name, found) for name, found in values if len(found) > 1))
