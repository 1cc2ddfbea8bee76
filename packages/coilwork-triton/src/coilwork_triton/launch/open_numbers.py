"""Candidates and the search space around them, as the open numbers of a mapping, and the limits between
these.

    ?XBLOCK in 512 64 128 256 1024
    ?num_warps in 4 1 2 8

A number is named as the parameter that launches it, and its first value is the first candidate's. Parameters
in which candidates differ, but which no search may vary, are chosen together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coilwork_ir.index import Expr, as_expr, evaluate, provably_le, substitute
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.mapping import Choose, Directive, Limit, Number, Open
from coilwork_triton.launch.parameters import WARPS


def numbers_of(config: Config) -> dict[str, int]:
    """The parameters of `config` that mappings have, by name."""
    return {**dict(config.meta), WARPS: config.num_warps}


def open_numbers(configs: Sequence[Config], space: SearchSpace) -> dict[str, Number]:
    """The parameters of `configs`: open where they differ, or where `space` has other values."""
    known = [numbers_of(config) for config in configs]
    others = dict(space.values)
    found: dict[str, Number] = {}
    for name, first in known[0].items():
        values = tuple(dict.fromkeys((*(numbers[name] for numbers in known), *others.get(name, ()))))
        found[name] = first if len(values) == 1 else Open(name, (first, *sorted(set(values) - {first})))
    return found


def limits_between(
    numbers: Mapping[str, Number], configs: Sequence[Config], space: SearchSpace
) -> tuple[Directive, ...]:
    """Return what has to hold of the open ones of `numbers` together, if they are of `configs` and `space`.

    A candidate that a limit of the search forbids may be launched all the same, and the limit is none.
    """
    free = {name for name, _ in space.values}
    tied = tuple(n for n, number in numbers.items() if isinstance(number, Open) and n not in free)
    rows = dict.fromkeys(tuple(numbers_of(config)[name] for name in tied) for config in configs)
    found: list[Directive] = [Choose(names=tied, values=row) for row in rows] if tied else []
    known = [numbers_of(config) for config in configs]
    for left, right in space.limits:
        if any(evaluate(left, one) > evaluate(right, one) for one in known):
            continue
        ends = [_with_closed(side, numbers) for side in (left, right)]
        if not provably_le(*ends):
            found.append(Limit(left=ends[0], right=ends[1]))
    return tuple(found)


def _with_closed(side: Expr, numbers: Mapping[str, Number]) -> Expr:
    """`side` of a limit, with those of `numbers` that are not open."""
    known = ((symbol, numbers[symbol.name]) for symbol in side.free_symbols)
    return substitute(side, {symbol: as_expr(number) for symbol, number in known if isinstance(number, int)})
