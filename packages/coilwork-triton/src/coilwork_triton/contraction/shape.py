"""The shape of a contraction's kernel: three spaces that share its tiles, blocks, grid. Decided before any text.

The left factor lies in blocks of rows (y) by the sum's positions (r), the right one of r by columns (x), results of y by
x. The batch is one point per program (z).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import (
    Expr,
    as_int,
    bounds,
    ceildiv,
    evaluate,
    extent_of,
    product,
    provably_divisible,
    symbol,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Contraction, ContractionParts, Load, Scalar, postorder
from coilwork_ir.target import Target
from coilwork_triton.contraction.configs import Work, fixed, propose, space_of
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.tiles import Tile, flat_tile, needs_64_bits
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.launch.parameters import BLOCKS, UNKNOWN_EXTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionShape:
    """Tiles of a contraction, and what follows from them.

    Attributes:
        node: the contraction.
        left, right, results: the spaces of the factors' blocks and of the results'.
        rows, columns, axis: the tiles.
        batch: the tile of the batch; None if there is none.
        configs: launch candidates, best guess first.
        space: what else a search may try.
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
    configs: tuple[Config, ...]
    space: SearchSpace
    index_dtype: DType

    @property
    def grid(self) -> tuple[Expr, ...]:
        """One extent, over sizes and block names."""
        blocks = [ceildiv(t.numel, symbol(t.block, lo=1)) for t in (self.rows, self.columns)]
        return (product([*blocks, *(() if self.batch is None else (self.batch.numel,))]),)

    @property
    def together(self) -> bool:
        """Every candidate has all rows in one block."""
        numel = as_int(self.rows.numel)
        return numel is not None and all(dict(c.meta)[self.rows.block] >= numel for c in self.configs)


def shape_of(
    kernel: Kernel,
    node: Contraction,
    parts: ContractionParts,
    target: Target,
    options: TritonOptions,
    given: Config | None = None,
) -> ContractionShape:
    """The shape of `kernel`, which contracts `node`, a product of such `parts`, for `target`; with `given` in place of
    what is proposed.

    Raises:
        EmitError: Triton adds products in another type than f32.
    """
    dtype = node.left.dtype
    if node.dtype is not DType.F32:
        raise EmitError("contraction", f"no products of {dtype.text} that are added in {node.dtype.text}")
    ranges = {r.symbol: r for r in kernel.ranges}
    known = frozenset((*parts.rows, *parts.columns, *node.axes))
    # ranges of one point belong to no part
    others = tuple(r.symbol for r in kernel.ranges if r.symbol not in known)
    sides = {"y": parts.rows, "x": parts.columns, "r": node.axes, "z": others}
    numels = {letter: product([extent_of(s) for s in symbols]) for letter, symbols in sides.items()}
    work = Work(
        rows=_estimate(numels["y"]),
        columns=_estimate(numels["x"]),
        length=_estimate(numels["r"]),
        left_bytes=_memory_bytes(node.left, dtype),
        right_bytes=_memory_bytes(node.right, dtype),
        dtype=dtype,
    )
    invariant = options.batch_invariant
    proposed = fixed(work, target) if invariant else propose(work, target, options.max_configs)
    if given is not None:
        proposed = (given,)
    configs = tuple(replace(c, fp_fusion=kernel.numerics == "fast") for c in proposed)
    whole = {letter: numels[letter] for letter in "yxr" if _divides(numels[letter], letter, configs)}
    rows, columns, axis = (
        flat_tile(letter, [ranges[s] for s in sides[letter]], 0, letter not in whole)
        for letter in ("y", "x", "r")
    )
    batch = flat_tile("z", [ranges[s] for s in others], None, False) if others else None
    space = SearchSpace()
    if given is None and not invariant:
        space = space_of(work, target, whole=whole, configs=configs)
    if options.index_dtype == "auto":
        wide = needs_64_bits(kernel, tuple(numels.values()), [store.value for store in kernel.stores])
    else:
        wide = options.index_dtype == "i64"
    outer = () if batch is None else (batch,)

    def blocks(first: Tile, second: Tile) -> Shape:
        return Shape(
            tiles=(*outer, replace(first, axis=0), replace(second, axis=1)),
            walk="looped",
            parameters=tuple(name for name, _ in configs[0].meta),
            index_dtype=DType.I64 if wide else DType.I32,
            flat_grid=True,
            neighbourly=False,
            zeros="r" in (first.letter, second.letter),
        )

    return ContractionShape(
        node=node,
        left=blocks(rows, axis),
        right=blocks(axis, columns),
        results=blocks(rows, columns),
        rows=rows,
        columns=columns,
        axis=axis,
        batch=batch,
        configs=configs,
        space=space,
        index_dtype=DType.I64 if wide else DType.I32,
    )


def _divides(numel: Expr, letter: str, configs: tuple[Config, ...]) -> bool:
    return all(provably_divisible(numel, dict(c.meta)[BLOCKS[letter]]) for c in configs)


def _memory_bytes(factor: Scalar, dtype: DType) -> int:
    """Size of an element of the largest thing that `factor` reads, by the ranges it varies along, else of `dtype`."""
    found = [node for node in postorder((factor,)) if isinstance(node, Load)]
    most = max((len(node.index[0].free_symbols) for node in found), default=0)
    sizes = [node.dtype.itemsize for node in found if len(node.index[0].free_symbols) == most]
    return max(sizes, default=dtype.itemsize)


def _estimate(numel: Expr) -> int:
    exact = as_int(numel)
    if exact is not None:
        return exact
    return max(1, evaluate(numel, {s.name: _typical(s) for s in numel.free_symbols}))


def _typical(size: Expr) -> int:
    low, high = bounds(size)
    return max(1, low or 1, min(UNKNOWN_EXTENT, UNKNOWN_EXTENT if high is None else high))
