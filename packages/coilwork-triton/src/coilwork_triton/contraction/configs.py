"""Which blocks to try for a contraction: from its sizes and the device, best guess first.

- Skinny ones, of at most 64 rows, are a walk over the other factor, which is read once: a program takes a strip of it, up to 256
  bytes deep, with several such blocks on their way. Narrow strips, so that there are some for each multiprocessor; what
  is still missing to fill the device are parts of the sum, which the scheduler cuts.
- Others are bound by the matrix units. A block of 128 x 256 results reads its factors least often and is the most that
  the registers of two groups of four warps hold; fewer results fit smaller blocks.
- In f32 there are no units that multiply exactly: each thread has a square of results in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, provably_divisible, symbol
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.target import Target
from coilwork_triton.contraction.refusals import (
    LEAST,
    MOST_DEPTH,
    MOST_RESULTS,
    MOST_STAGES,
    MOST_WARPS,
    RESULTS_PER_THREAD,
)
from coilwork_triton.launch.parameters import BLOCKS, GROUP, STAGES, WARPS, next_power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a contraction comes to.

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


@dataclass(frozen=True, slots=True)
class _Block:
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def propose(work: Work, target: Target, limit: int) -> tuple[Config, ...]:
    """At most `limit` candidates. Each block fits the device's shared memory with all its stages."""
    if min(work.rows, work.columns) <= target.machine.products.skinny_rows:
        found = _skinny(work, target)
    else:
        found = _exact(work) if work.dtype is DType.F32 else _square(work)
    fitting = [_fitted(block, work, target) for block in found]
    return tuple(_config(block) for block in dict.fromkeys(fitting))[:limit]


def fixed(work: Work, target: Target) -> tuple[Config, ...]:
    """The one configuration of `batch_invariant`: it depends on what is multiplied, not on how many rows and columns there are."""
    block = _Block(64, 64, 32, 4, 2) if work.dtype is DType.F32 else _Block(64, 128, 64, 4, 3)
    each = block.depth * 4 * (block.rows + block.columns)
    return (_config(replace(block, stages=max(1, min(block.stages, target.shared_memory_bytes // each)))),)


def space_of(
    work: Work, target: Target, *, whole: Mapping[str, Expr], configs: tuple[Config, ...]
) -> SearchSpace:
    """What a search may try. Sides that are `whole` have no mask: their blocks divide these numbers of points."""
    values: dict[str, tuple[int, ...]] = {}
    for letter, most in (("y", MOST_RESULTS), ("x", MOST_RESULTS), ("r", MOST_DEPTH)):
        name = BLOCKS[letter]
        proposed = [dict(c.meta)[name] for c in configs]
        numel = whole.get(letter)
        sizes = [n for n in _powers_of_two(LEAST, most) if numel is None or provably_divisible(numel, n)]
        values[name] = tuple(sorted({*proposed, *sizes}))
    values[GROUP] = (1, 4, 8, 16)
    values[STAGES] = tuple(range(1, MOST_STAGES + 1))
    values[WARPS] = tuple(_powers_of_two(1, MOST_WARPS))
    y, x, r = (symbol(BLOCKS[letter], lo=1) for letter in "yxr")
    warps, stages = symbol(WARPS, lo=1), symbol(STAGES, lo=1)
    limits: tuple[tuple[Expr, Expr], ...] = (
        (y * x, warps * (target.warp_size * RESULTS_PER_THREAD)),
        (stages * r * (y * work.left_bytes + x * work.right_bytes), as_expr(target.shared_memory_bytes)),
    )
    return SearchSpace(values=tuple(values.items()), limits=limits)


def _skinny(work: Work, target: Target) -> list[_Block]:
    short = max(LEAST, next_power_of_two(min(work.rows, work.columns)))
    right = work.rows <= work.columns
    depth = target.machine.products.strip_depth_bytes // (work.right_bytes if right else work.left_bytes)
    # every strip reads the other factor again, from the L2 cache: the more rows that has, the wider strips are
    if short <= 16:
        shapes = ((32, depth, 4, 4), (64, depth, 4, 3), (32, depth // 2, 4, 5))
    elif short <= 32:
        shapes = ((64, depth // 2, 4, 4), (32, depth // 2, 4, 5), (128, depth // 2, 4, 3))
    else:
        shapes = ((128, depth // 2, 4, 3), (64, depth // 2, 4, 4), (128, depth // 4, 4, 4))
    found = [_Block(short, long, deep, warps, stages) for long, deep, warps, stages in shapes]
    return found if right else [replace(b, rows=b.columns, columns=b.rows) for b in found]


def _square(work: Work) -> list[_Block]:
    if work.rows * work.columns < 128 * 128 * 256:
        return [_Block(64, 128, 64, 4, 4), _Block(64, 64, 64, 4, 5), _Block(128, 128, 64, 8, 4)]
    # these take longest to compile, and a third was never the fastest
    return [_Block(128, 256, 64, 8, 3), _Block(128, 128, 64, 4, 4)]


def _exact(work: Work) -> list[_Block]:
    return [_Block(64, 64, 32, 4, 2), _Block(128, 64, 16, 8, 2), _Block(32, 64, 32, 4, 2)]


def _fitted(block: _Block, work: Work, target: Target) -> _Block:
    """`block` no larger than the work, and with fewer stages if they do not fit otherwise."""
    block = replace(
        block,
        rows=min(block.rows, max(LEAST, next_power_of_two(work.rows))),
        columns=min(block.columns, max(LEAST, next_power_of_two(work.columns))),
        depth=min(block.depth, max(LEAST, next_power_of_two(work.length))),
    )
    each = block.depth * (block.rows * work.left_bytes + block.columns * work.right_bytes)
    stages = max(1, min(block.stages, target.shared_memory_bytes // each))
    return replace(block, stages=stages)


def _config(block: _Block) -> Config:
    sides = (("y", block.rows), ("x", block.columns), ("r", block.depth))
    meta = (*((BLOCKS[letter], size) for letter, size in sides), (GROUP, 8), (STAGES, block.stages))
    return Config(meta=meta, num_warps=block.warps, num_stages=1)


def _powers_of_two(least: int, most: int) -> Iterable[int]:
    size = least
    while size <= most:
        yield size
        size *= 2
