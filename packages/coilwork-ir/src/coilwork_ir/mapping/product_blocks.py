"""Blocks of matrix products: the sides of a kernel that is one, and which blocks to try for it, best guess
first.

- Skinny ones, of at most 64 rows, are a walk over the other factor, which is read once: a program takes a
  strip of it, up to 256 bytes deep, with several such blocks on their way. Narrow strips, so that there are
  some for each multiprocessor; what is still missing to fill the device are parts of the sum, which the
  scheduler cuts.
- Others are bound by the matrix units. A block of 128 x 256 results reads its factors least often and is the
  most that the registers of two groups of four warps hold; fewer results fit smaller blocks.
- In f32 there are no units that multiply exactly: each thread has a square of results in registers.

A template may name blocks of its own (`coilwork_ir.kernels.Proposal`); these are what others get.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, evaluate, find_bounds, multiply_all
from coilwork_ir.kernels.nodes import Candidate, Kernel, Range
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.mapping.arithmetic import Unit
from coilwork_ir.mapping.directive import Directive
from coilwork_ir.mapping.nodes import Mapping
from coilwork_ir.mapping.text import format_mapping
from coilwork_ir.mapping.threads import Warps
from coilwork_ir.mapping.tiling import Loop, Tile
from coilwork_ir.scalar import Contraction, Load, Scalar, find_contraction, find_parts, iterate_postorder
from coilwork_ir.target import Target

LEAST_SIDE: Final = 16
"""The least side of a block that matrix units take."""

UNKNOWN_SIDE: Final = 1024
"""What a side of unknown length is taken to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The contraction `node` of a kernel, and the ranges of its rows, columns, sum, and of all others."""

    node: Contraction
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    axes: tuple[Range, ...]
    others: tuple[Range, ...]

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Sizes of an element of each factor in memory."""
        dtype = self.node.left.dtype
        return _memory_bytes(self.node.left, dtype), _memory_bytes(self.node.right, dtype)

    @property
    def unit(self) -> Unit:
        """The directive that says which units multiply."""
        return Unit(unit="mma" if self.node.left.dtype.itemsize <= 2 else "fma")


def get_contraction(kernel: Kernel) -> Factors:
    """The contraction of `kernel`, which has one.

    Raises:
        EmitError: its factors share ranges in no way that products do, or products are added in no f32.
    """
    node = find_contraction(list_kernel_roots(kernel))
    assert node is not None
    parts = find_parts(
        node.left, node.right, [r.symbol for r in kernel.ranges if r.kind == "parallel"], node.axes
    )
    if parts is None:
        raise EmitError("contraction", "the factors do not tell rows, columns and a batch apart")
    if node.dtype is not DType.F32:
        raise EmitError(
            "contraction", f"no products of {node.left.dtype.text} that are added in {node.dtype.text}"
        )
    ranges = {r.symbol: r for r in kernel.ranges}
    known = frozenset((*parts.rows, *parts.columns, *node.axes))
    return Factors(
        node=node,
        rows=tuple(ranges[s] for s in parts.rows),
        columns=tuple(ranges[s] for s in parts.columns),
        axes=tuple(ranges[s] for s in node.axes),
        # ranges of one point belong to no part
        others=tuple(r for r in kernel.ranges if r.symbol not in known),
    )


def list_names(kernel: Kernel, ranges: tuple[Range, ...]) -> tuple[str, ...]:
    """Names of `ranges`, outermost first."""
    wanted = {r.symbol for r in ranges}
    return tuple(r.symbol.name for r in kernel.ranges if r.symbol in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The amount of work of a contraction.

    Attributes:
        rows, columns, length: estimated points.
        left_bytes, right_bytes: size of an element of each factor in memory.
        dtype: what is multiplied.
    """

    rows: int
    columns: int
    length: int
    left_bytes: int
    right_bytes: int
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of one program: results in rows and columns, terms at a time, and how many of these are on their
    way.

    Attributes:
        rows, columns: results of a program.
        depth: terms that are multiplied at a time.
        warps: of a program.
        stages: blocks of terms on their way at a time.
        reason: why they are tried.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    reason: str = ""


def propose_blocks(work: Work, target: Target) -> tuple[Blocks, ...]:
    """Blocks to try for `work`. Each fits the shared memory of `target` with all its stages."""
    if min(work.rows, work.columns) <= target.machine.products.skinny_rows:
        blocks = _skinny(work, target)
    else:
        blocks = _exact(work) if work.dtype is DType.F32 else _square(work)
    return tuple(dict.fromkeys(_fit_blocks(block, work, target) for block in blocks))


def propose_candidates(kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
    """`propose_blocks` of `kernel`, a product, as a template names them."""
    factors = get_contraction(kernel)
    blocks = propose_blocks(compute_work(factors), target)
    return tuple(name_blocks(kernel, factors, block) for block in blocks)


def name_blocks(kernel: Kernel, factors: Factors, blocks: Blocks) -> Candidate:
    """A candidate for `kernel`, a product of `factors`, that names `blocks`."""
    directives: tuple[Directive, ...] = (
        Tile(ranges=list_names(kernel, factors.columns), by=blocks.columns),
        Tile(ranges=list_names(kernel, factors.rows), by=blocks.rows),
        Loop(ranges=list_names(kernel, factors.axes), by=blocks.depth, stages=blocks.stages),
        Warps(count=blocks.warps),
    )
    text = "  ".join(format_mapping(Mapping(directives=directives)).splitlines())
    return Candidate(directives=text, reason=blocks.reason)


def compute_work(factors: Factors) -> Work:
    """The amount of work of the product of `factors`."""
    points = find_whole_sides(factors)
    left, right = factors.memory_bytes
    return Work(
        rows=_estimate(points["y"]),
        columns=_estimate(points["x"]),
        length=_estimate(points["r"]),
        left_bytes=left,
        right_bytes=right,
        dtype=factors.node.left.dtype,
    )


def _estimate(numel: Expr) -> int:
    exact = as_int(numel)
    if exact is not None:
        return exact
    return max(1, evaluate(numel, {s.name: _typical(s) for s in numel.free_symbols}))


def _typical(size: Expr) -> int:
    low, high = find_bounds(size)
    return max(1, low or 1, min(UNKNOWN_SIDE, UNKNOWN_SIDE if high is None else high))


def find_whole_sides(factors: Factors) -> dict[str, Expr]:
    """The points of each side, by the letter of its tile."""
    sides = {"y": factors.rows, "x": factors.columns, "r": factors.axes, "z": factors.others}
    return {letter: multiply_all(r.extent for r in side) for letter, side in sides.items()}


def _memory_bytes(factor: Scalar, dtype: DType) -> int:
    """Size of an element of the largest thing that `factor` reads, by the ranges it varies along, else of
    `dtype`.
    """
    loads = [node for node in iterate_postorder((factor,)) if isinstance(node, Load)]
    most = max((len(node.index[0].free_symbols) for node in loads), default=0)
    sizes = [node.dtype.itemsize for node in loads if len(node.index[0].free_symbols) == most]
    return max(sizes, default=dtype.itemsize)


def _skinny(work: Work, target: Target) -> list[Blocks]:
    short = max(LEAST_SIDE, _round_up(min(work.rows, work.columns)))
    right = work.rows <= work.columns
    depth = target.machine.products.strip_depth_bytes // (work.right_bytes if right else work.left_bytes)
    # every strip reads the other factor again, from the L2 cache: the more rows that has, the wider strips
    # are
    if short <= 16:
        shapes = ((32, depth, 4, 4), (64, depth, 4, 3), (32, depth // 2, 4, 5))
    elif short <= 32:
        shapes = ((64, depth // 2, 4, 4), (32, depth // 2, 4, 5), (128, depth // 2, 4, 3))
    else:
        shapes = ((128, depth // 2, 4, 3), (64, depth // 2, 4, 4), (128, depth // 4, 4, 4))
    blocks = [
        _block(short, long, deep, warps, stages, "strips of the longer factor are read once")
        for long, deep, warps, stages in shapes
    ]
    return blocks if right else [replace(b, rows=b.columns, columns=b.rows) for b in blocks]


def _square(work: Work) -> list[Blocks]:
    if work.rows * work.columns < 128 * 128 * 256:
        why = "results are few: smaller blocks are for more multiprocessors"
        return [
            _block(64, 128, 64, 4, 4, why),
            _block(64, 64, 64, 4, 5, why),
            _block(128, 128, 64, 8, 4, why),
        ]
    why = "the largest blocks that registers hold read the factors least often"
    # these take longest to compile, and a third was never the fastest
    return [_block(128, 256, 64, 8, 3, why), _block(128, 128, 64, 4, 4, why)]


def _exact(work: Work) -> list[Blocks]:
    why = "each thread has a square of results in registers"
    return [_block(64, 64, 32, 4, 2, why), _block(128, 64, 16, 8, 2, why), _block(32, 64, 32, 4, 2, why)]


def _block(rows: int, columns: int, depth: int, warps: int, stages: int, reason: str) -> Blocks:
    return Blocks(rows=rows, columns=columns, depth=depth, warps=warps, stages=stages, reason=reason)


def _fit_blocks(block: Blocks, work: Work, target: Target) -> Blocks:
    """`block` no larger than the work, and with fewer stages if they do not fit otherwise."""
    block = replace(
        block,
        rows=min(block.rows, max(LEAST_SIDE, _round_up(work.rows))),
        columns=min(block.columns, max(LEAST_SIDE, _round_up(work.columns))),
        depth=min(block.depth, max(LEAST_SIDE, _round_up(work.length))),
    )
    each = block.depth * (block.rows * work.left_bytes + block.columns * work.right_bytes)
    stages = max(1, min(block.stages, target.shared_memory_bytes // each))
    return replace(block, stages=stages)


def _round_up(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()
