"""The search space around the candidates of a launch, and both as the open numbers of a mapping.

The text of a kernel depends on the candidates in four ways. A tile whose block is one point in all of them
has no axis. One whose blocks all divide its extent has no mask. The y and z tiles have a grid axis each if
their programs fit its limit. A loop over wide loads may count on 16 bytes per thread. A row in registers is
one block. Beyond that any power of two is right, within limits that keep values in registers and threads
busy.

    ?XBLOCK in 512 64 128 256 1024
    ?num_warps in 4 1 2 8

An open number has the name of the launch's parameter, and its first value is the first candidate's.
Parameters in which candidates differ, but which no search may vary, are chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    evaluate,
    find_bounds,
    multiply_all,
    provably_divisible,
    provably_le,
    substitute,
    symbol,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.mapping import Choose, Directive, Limit, Number, Open
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import (
    RUN,
    STAGES,
    WARPS,
    iterate_powers_of_two,
    round_up_to_power_of_two,
)

# The space


# Elements of a block per thread. Twice as many leave a thread no registers to compute with, and take up to 40
# s to compile.
_MOST_PER_THREAD: Final = 64
_LONGEST_SIDE: Final = 8192
_MOST_STAGES: Final = 4
# A scan over a block of one point is none.
_SHORTEST_SCAN: Final = 2
# Points of a thread's run, beyond which registers are short.
_LONGEST_RUN: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One tile, as far as its block is free.

    Attributes:
        block: name of its block size.
        numel: its points.
        fixed: every configuration has the candidates' one size.
        whole: blocks are to divide `numel`.
        programs: most programs along it; None if there is no limit.
        reduced: it is the reduction's.
        least: points of its block, at least.
    """

    block: str
    numel: Expr
    fixed: bool
    whole: bool
    programs: int | None
    reduced: bool
    least: int = 1


def build_search_space(
    sides: Sequence[Side],
    configs: Sequence[Config],
    *,
    target: Target,
    chunk: int,
    scans: bool,
    staged: bool,
    most_warps: int | None = None,
    least_block: int = 1,
) -> SearchSpace:
    """Return the configurations that may be tried beside `configs`, all of which are in it.

    Args:
        sides: the tiles.
        configs: the candidates.
        target: the device.
        chunk: neighbours along r that each thread has together, if the text counts on that.
        scans: the kernel scans along r.
        staged: several iterations of its loop may be in flight.
        most_warps: what the text is right for; None for as many as the device takes.
        least_block: points of a block that the text is right for.
    """
    metas = [dict(c.meta) for c in configs]
    values: dict[str, tuple[int, ...]] = {}
    for side in sides:
        proposed = {meta[side.block] for meta in metas}
        if not side.fixed:
            least = _SHORTEST_SCAN if scans and side.reduced else max(least_block, side.least)
            values[side.block] = tuple(sorted(proposed | set(_sizes(side, least, max(proposed)))))
    if staged and any(STAGES in meta for meta in metas):
        values[STAGES] = tuple(range(1, _MOST_STAGES + 1))
    runs = [meta[RUN] for meta in metas if RUN in meta]
    if runs:
        values[RUN] = tuple(iterate_powers_of_two(_SHORTEST_SCAN, max(_LONGEST_RUN, *runs)))
    fitting = min(32, target.max_threads_per_block // target.warp_size)
    values[WARPS] = tuple(iterate_powers_of_two(1, fitting if most_warps is None else most_warps))
    free = {name: found for name, found in values.items() if len(found) > 1}
    return SearchSpace(values=tuple(free.items()), limits=_limits(sides, configs, target, chunk))


def _sizes(side: Side, least: int, proposed: int) -> Iterable[int]:
    extent = as_int(side.numel) or find_bounds(side.numel).hi
    longest = max(
        proposed, _LONGEST_SIDE if extent is None else min(_LONGEST_SIDE, round_up_to_power_of_two(extent))
    )
    for size in iterate_powers_of_two(least, longest):
        divides = not side.whole or size == 1 or provably_divisible(side.numel, size)
        if divides and (side.programs is None or provably_le(ceildiv(side.numel, size), side.programs)):
            yield size


def _limits(
    sides: Sequence[Side], configs: Sequence[Config], target: Target, chunk: int
) -> tuple[tuple[Expr, Expr], ...]:
    warps = symbol(WARPS, lo=1)
    threads = warps * target.warp_size
    elements = multiply_all(_size(side, configs[0]) for side in sides)
    densest = max(_elements(sides, c) // (c.num_warps * target.warp_size) for c in configs)
    found = [
        (elements, threads * max(_MOST_PER_THREAD, densest)),
        # powers of two, so that this says: no more threads than elements, unless there is but one warp
        (threads, elements + (target.warp_size - 1)),
    ]
    if chunk > 1:
        found.append((threads * chunk, multiply_all(symbol(s.block, lo=1) for s in sides if s.reduced)))
    if any(name == RUN for name, _ in configs[0].meta):
        run = symbol(RUN, lo=1)
        # of what runs combine to each thread has one, or Triton's scans mix up copies; one run would leave
        # nothing to scan
        found.append((threads * run, elements))
        found.append((run * _SHORTEST_SCAN, multiply_all(_size(s, configs[0]) for s in sides if s.reduced)))
    return tuple((left, right) for left, right in found if not provably_le(left, right))


def _size(side: Side, config: Config) -> Expr:
    return as_expr(dict(config.meta)[side.block]) if side.fixed else symbol(side.block, lo=1)


def _elements(sides: Sequence[Side], config: Config) -> int:
    meta = dict(config.meta)
    count = 1
    for side in sides:
        count *= meta[side.block]
    return count


# Open numbers


def list_config_numbers(config: Config) -> dict[str, int]:
    """Return the parameters of `config` that mappings have, by name."""
    return {**dict(config.meta), WARPS: config.num_warps}


def open_numbers(configs: Sequence[Config], space: SearchSpace) -> dict[str, Number]:
    """Return the parameters of `configs`: open where they differ, or where `space` has other values."""
    known = [list_config_numbers(config) for config in configs]
    others = dict(space.values)
    found: dict[str, Number] = {}
    for name, first in known[0].items():
        values = tuple(dict.fromkeys((*(numbers[name] for numbers in known), *others.get(name, ()))))
        found[name] = first if len(values) == 1 else Open(name, (first, *sorted(set(values) - {first})))
    return found


def search_limits(
    numbers: Mapping[str, Number], configs: Sequence[Config], space: SearchSpace
) -> tuple[Directive, ...]:
    """Return the limits between the open ones of `numbers`, which are of `configs` and `space`.

    A limit that a candidate breaks is left out.
    """
    free = {name for name, _ in space.values}
    tied = tuple(n for n, number in numbers.items() if isinstance(number, Open) and n not in free)
    rows = dict.fromkeys(tuple(list_config_numbers(config)[name] for name in tied) for config in configs)
    found: list[Directive] = [Choose(names=tied, values=row) for row in rows] if tied else []
    known = [list_config_numbers(config) for config in configs]
    for left, right in space.limits:
        if any(evaluate(left, one) > evaluate(right, one) for one in known):
            continue
        ends = [_substitute_closed(side, numbers) for side in (left, right)]
        if not provably_le(*ends):
            found.append(Limit(left=ends[0], right=ends[1]))
    return tuple(found)


def _substitute_closed(side: Expr, numbers: Mapping[str, Number]) -> Expr:
    """`side` of a limit, with those of `numbers` that are not open."""
    known = ((symbol, numbers[symbol.name]) for symbol in side.free_symbols)
    return substitute(side, {symbol: as_expr(number) for symbol, number in known if isinstance(number, int)})
