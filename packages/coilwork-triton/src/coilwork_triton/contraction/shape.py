"""The shape of a contraction's text, as its mapping says: three spaces that share its tiles, blocks, grid.

The left factor lies in blocks of rows (y) by the sum's positions (r), the right one of r by columns (x),
results of y by x. The batch is one point per program (z). An open mapping has the shape that is right for
each of its choices: a side has a mask unless all blocks divide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, ceildiv, product, provably_divisible, symbol
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.mapping import Index, Mapping, Number
from coilwork_ir.mapping import Tile as TileOf
from coilwork_ir.mapping.numbers import values_of
from coilwork_ir.mapping.product_blocks import Factors, factors_of, names_of
from coilwork_ir.scalar import Contraction
from coilwork_ir.target import Target
from coilwork_triton.contraction.refusals import check_product
from coilwork_triton.iteration.mapping_parameters import Place
from coilwork_triton.iteration.mapping_parameters import places_of as find_places
from coilwork_triton.iteration.shape import Shape, Tile, flat_tile
from coilwork_triton.launch.parameters import BLOCKS, GROUP, STAGES, Letter


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionShape:
    """Tiles of a contraction, and what follows from them.

    Attributes:
        node: the contraction.
        left, right, results: the spaces of the factors' blocks and of the results'.
        rows, columns, axis: the tiles.
        batch: the tile of the batch; None if there is none.
        index_dtype: type of offsets and sizes, `i32` or `i64`.
    """

    node: Contraction
    left: Shape
    right: Shape
    results: Shape
    rows: Tile
    columns: Tile
    axis: Tile
    batch: Tile | None
    index_dtype: DType

    @property
    def grid(self) -> tuple[Expr, ...]:
        """One extent, over sizes and block names."""
        blocks = [ceildiv(t.numel, symbol(t.block, lo=1)) for t in (self.rows, self.columns)]
        return (product([*blocks, *(() if self.batch is None else (self.batch.numel,))]),)


def shape_of(kernel: Kernel, mapping: Mapping, target: Target) -> ContractionShape:
    """The shape of `kernel`, a product, as `mapping` runs it on `target`.

    Raises:
        EmitError: there is no text for a directive, which the error names, or for the product.
    """
    factors = factors_of(kernel)
    check_product(kernel, factors, mapping, target)
    numbers = parameters_of(kernel, factors, mapping)
    rows = _tile("y", factors.rows, numbers)
    columns = _tile("x", factors.columns, numbers)
    axis = _tile("r", factors.axes, numbers)
    batch = flat_tile("z", list(factors.others), None, False) if factors.others else None
    index = mapping.find(Index)
    index_dtype = DType.I32 if index is not None and index.dtype == "i32" else DType.I64

    def blocks(first: Tile, second: Tile) -> Shape:
        return Shape(
            grids=target.machine.grids,
            tiles=(*(() if batch is None else (batch,)), replace(first, axis=0), replace(second, axis=1)),
            walk="looped",
            parameters=tuple(numbers),
            index_dtype=index_dtype,
            flat_grid=True,
            scalar_access=False,
            zeros="r" in (first.letter, second.letter),
        )

    return ContractionShape(
        node=factors.node,
        left=blocks(rows, axis),
        right=blocks(axis, columns),
        results=blocks(rows, columns),
        rows=rows,
        columns=columns,
        axis=axis,
        batch=batch,
        index_dtype=index_dtype,
    )


def parameters_of(kernel: Kernel, factors: Factors, mapping: Mapping) -> dict[str, Number]:
    """The parameters of a product's launch as `mapping` says, in the order of its signature."""
    found: dict[str, Number] = {
        place.name: getattr(mapping.directives[place.at], place.field)
        for place in places_of(kernel, factors, mapping)
    }
    return {name: found[name] for name in (BLOCKS["y"], BLOCKS["x"], BLOCKS["r"], GROUP, STAGES)}


def places_of(kernel: Kernel, factors: Factors, mapping: Mapping) -> Iterator[Place]:
    """The numbers of `mapping` that are parameters of a product's launch."""
    letters = {names_of(kernel, factors.rows): "y", names_of(kernel, factors.columns): "x"}
    for place in find_places(mapping):
        one = mapping.directives[place.at]
        if not isinstance(one, TileOf):
            yield place
        elif one.ranges in letters:
            # that of the batch is none
            yield replace(place, name=BLOCKS[letters[one.ranges]])


def _tile(letter: Letter, ranges: tuple[Range, ...], numbers: dict[str, Number]) -> Tile:
    numel = product(r.extent for r in ranges)
    masked = not all(provably_divisible(numel, size) for size in values_of(numbers[BLOCKS[letter]]))
    return flat_tile(letter, list(ranges), 0, masked)
