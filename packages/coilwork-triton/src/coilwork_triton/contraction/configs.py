"""Launches of a contraction: those that its blocks are, by its sizes or as a template names them, and what a
search may try around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError, ParseError, VerifyError
from coilwork_ir.index import Expr, as_expr, provably_divisible, symbol
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Loop, Number, Open, Order, Tile, Warps, parse_mapping
from coilwork_ir.mapping.candidates import refuse_candidate
from coilwork_ir.mapping.product_blocks import LEAST_SIDE, Blocks, Factors, Work, names_of, propose_blocks
from coilwork_ir.target import Target
from coilwork_triton.contraction.refusals import (
    MOST_DEPTH,
    MOST_RESULTS,
    MOST_STAGES,
    MOST_WARPS,
    RESULTS_PER_THREAD,
    find_tile,
)
from coilwork_triton.iteration.mapping_parameters import chosen
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.launch.parameters import BLOCKS, GROUP, STAGES, WARPS

# Rows of blocks that programs go through together, so that they share columns in the cache.
GROUPED: Final = 8
_WARPS: Final = 4
_NAMED: Final = (Tile, Loop, Warps, Order)


def read_candidates(
    kernel: Kernel, factors: Factors, texts: Sequence[str], check: Callable[[Config], None]
) -> tuple[Config, ...]:
    """The launches of `kernel` that `texts` name, as far as `check` takes them.

    Raises:
        EmitError: there is none, for the reason that the first text is none.
    """
    found: dict[Config, None] = {}
    faults: list[EmitError] = []
    for text in texts:
        try:
            one = _read_candidate(kernel, factors, text)
            check(one)
            found.setdefault(one)
        except (EmitError, VerifyError, ParseError) as error:
            faults.append(refuse_candidate(kernel, text, error))
    if not found and faults:
        raise faults[0]
    return tuple(found)


def _read_candidate(kernel: Kernel, factors: Factors, text: str) -> Config:
    """The launch that `text` names: both tiles, the loop over terms, and perhaps warps and an order."""
    mapping = parse_mapping(text)
    odd = next((one for one in mapping.directives if not isinstance(one, _NAMED)), None)
    if odd is not None:
        raise refuse(kernel, odd.keyword(), f"a product's template names no `{odd.text}`")
    sides = {"y": factors.rows, "x": factors.columns}
    tiles = {letter: find_tile(kernel, mapping, side) for letter, side in sides.items()}
    loop, order, warps = mapping.find(Loop), mapping.find(Order), mapping.find(Warps)
    wanted: dict[str, Number] = {}
    for letter, tile in tiles.items():
        if tile is None:
            names = ", ".join(names_of(kernel, sides[letter]))
            raise refuse(kernel, "tile", f"it names no block of {names}")
        wanted[BLOCKS[letter]] = tile.by
    if loop is None or loop.ranges != names_of(kernel, factors.axes):
        raise refuse(kernel, "loop", "it names no block of terms")
    wanted |= {BLOCKS["r"]: loop.by, GROUP: order.by if order else GROUPED, STAGES: loop.stages}
    count = warps.count if warps else _WARPS
    if any(isinstance(number, Open) for number in (*wanted.values(), count)):
        raise refuse(kernel, "choose", "a candidate leaves nothing open")
    meta = tuple((name, chosen(number)) for name, number in wanted.items())
    return Config(meta=meta, num_warps=chosen(count), num_stages=1)


def propose(work: Work, target: Target, limit: int) -> tuple[Config, ...]:
    """At most `limit` candidates. Each block fits the device's shared memory with all its stages."""
    return tuple(_config(block) for block in propose_blocks(work, target))[:limit]


def fixed(work: Work, target: Target) -> tuple[Config, ...]:
    """The one configuration of `batch_invariant`: it depends on what is multiplied, not on how many rows and
    columns there are.
    """
    block = Blocks(rows=64, columns=64, depth=32, warps=4, stages=2)
    if work.dtype is not DType.F32:
        block = Blocks(rows=64, columns=128, depth=64, warps=4, stages=3)
    each = block.depth * 4 * (block.rows + block.columns)
    return (_config(replace(block, stages=max(1, min(block.stages, target.shared_memory_bytes // each)))),)


def space_of(
    work: Work, target: Target, *, whole: Mapping[str, Expr], configs: tuple[Config, ...]
) -> SearchSpace:
    """Return what a search may try. Sides that are `whole` have no mask: their blocks divide these numbers of
    points.
    """
    values: dict[str, tuple[int, ...]] = {}
    for letter, most in (("y", MOST_RESULTS), ("x", MOST_RESULTS), ("r", MOST_DEPTH)):
        name = BLOCKS[letter]
        proposed = [dict(c.meta)[name] for c in configs]
        numel = whole.get(letter)
        sizes = [n for n in _powers_of_two(LEAST_SIDE, most) if numel is None or provably_divisible(numel, n)]
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


def _config(block: Blocks) -> Config:
    sides = (("y", block.rows), ("x", block.columns), ("r", block.depth))
    meta = (*((BLOCKS[letter], size) for letter, size in sides), (GROUP, GROUPED), (STAGES, block.stages))
    return Config(meta=meta, num_warps=block.warps, num_stages=1)


def _powers_of_two(least: int, most: int) -> Iterable[int]:
    size = least
    while size <= most:
        yield size
        size *= 2
