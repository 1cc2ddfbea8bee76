"""Align iteration spaces: find one set of ranges that two groups can both run over.

Three ways, in this order:

- By access: both touch one buffer, at plain range symbols per dimension. Ranges at the same dimension are the
  same range, in whatever order each group has them. A reduction of pieces goes through a dimension with two
  of its ranges, and a group without reductions follows it.
- By element: both go through all of one buffer once, and the row-major order of its elements orders the
  ranges of each, as a reduction of columns in pieces of `[B*T, C]` and what makes `[B, T, C]`.
- By row order: both lists of extents, read row-major, have a common refinement, as `[B*T, C]` and
  `[B, T, C]`. It is found by matching products from the outermost dimension inwards. Sizes may be symbolic if
  the quotients are provably exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, as_expr, find_coefficients, floordiv, get_extent, get_extents, mod, symbol
from coilwork_scheduler.fusion_group import Bound, Group

_ONE: Final = as_expr(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A common space; `first` and `second` give the two groups' ranges over it, and are empty where nothing
    changes.

    In a space that is `interleaved`, a piece belongs with its left neighbour to a range of one group and with
    its right neighbour to a range of the other, as where `[128, 64]` and `[64, 128]` meet in `[64, 2, 64]`.
    Right where one is the other reshaped; otherwise it scatters what one of them touches. `sequential` and
    `bound` are those of `Group`.
    """

    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    first: Mapping[Expr, Expr]
    second: Mapping[Expr, Expr]
    interleaved: bool = False
    sequential: tuple[Expr, ...] = ()
    bound: Bound | None = None

    def __post_init__(self) -> None:
        # two ranges that are one would go through a diagonal only
        ranges = (*self.parallel, *self.sequential, *self.reduced)
        assert len(frozenset(ranges)) == len(ranges), f"a range twice in {ranges}"


@dataclass(frozen=True, slots=True)
class Refinement:
    """Extents of the pieces, and which pieces each dimension of the two lists is made of, outermost
    first.
    """

    pieces: tuple[Expr, ...]
    first: tuple[tuple[int, ...], ...]
    second: tuple[tuple[int, ...], ...]

    @property
    def interleaved(self) -> bool:
        """True if a range of one list and a range of the other overlap without one holding the other."""
        # `first` and `second` list neighbouring pieces, so two ranges overlap where one starts inside the
        # other
        return _starts_inside(self.first, self.second) or _starts_inside(self.second, self.first)


def _starts_inside(ours: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]) -> bool:
    """Tell if a range of `ours` starts inside a range of `theirs` and ends behind it."""
    last = {piece: pieces[-1] for pieces in theirs for piece in pieces[1:]}
    return any(pieces[0] in last and pieces[-1] > last[pieces[0]] for pieces in ours if pieces)


def refine_extents(first: Sequence[Expr], second: Sequence[Expr]) -> Refinement | None:
    """Return the coarsest common refinement of two row-major lists of extents; `None` if there is none that
    can be shown.
    """
    pieces: list[Expr] = []
    made: tuple[list[list[int]], list[list[int]]] = ([[] for _ in first], [[] for _ in second])
    at_first = at_second = 0
    rest_first = rest_second = _ONE
    while True:
        if rest_first is _ONE and at_first < len(first):
            rest_first = first[at_first]
            at_first += 1
        if rest_second is _ONE and at_second < len(second):
            rest_second = second[at_second]
            at_second += 1
        if rest_first is _ONE and rest_second is _ONE:
            break
        if rest_first is _ONE or rest_second is _ONE:
            return None
        piece = rest_second
        quotient = _quotient(rest_first, rest_second)
        if quotient is not None:
            rest_first, rest_second = quotient, _ONE
        else:
            quotient = _quotient(rest_second, rest_first)
            if quotient is None:
                return None
            piece = rest_first
            rest_first, rest_second = _ONE, quotient
        made[0][at_first - 1].append(len(pieces))
        made[1][at_second - 1].append(len(pieces))
        pieces.append(piece)
    return Refinement(tuple(pieces), tuple(map(tuple, made[0])), tuple(map(tuple, made[1])))


def _quotient(a: Expr, b: Expr) -> Expr | None:
    """`a / b` if it is provably exact."""
    if a is b:
        return _ONE
    if a.is_const and b.is_const and (b.value == 0 or a.value % b.value):
        return None
    quotient = floordiv(a, b)
    return quotient if quotient * b is a else None


def find_alignments(
    first: Group, second: Group, shared: Sequence[tuple[tuple[Expr, ...], tuple[Expr, ...]]], tag: str
) -> Iterator[Alignment]:
    """Common spaces of two groups, likely ones first.

    `shared` are pairs of coordinates at which the two touch one buffer; `tag` makes names of new ranges
    unique.
    """
    if second.reduced and not first.reduced:
        for found in find_alignments(second, first, [(b, a) for a, b in shared], tag):
            yield Alignment(
                parallel=found.parallel,
                reduced=found.reduced,
                first=found.second,
                second=found.first,
                interleaved=found.interleaved,
            )
        return
    seen: set[tuple[tuple[Expr, Expr], ...]] = set()
    for ours, theirs in shared:
        paired = _pair_ranges(first, second, ours, theirs)
        if paired is not None and tuple(paired.items()) not in seen:
            seen.add(tuple(paired.items()))
            yield Alignment(
                parallel=first.parallel, reduced=first.reduced, first={}, second=_drop_identity(paired)
            )
        elif paired is None and not second.reduced:
            orders = _orders(first, second, ours, theirs)
            whole = orders and refine_extents(get_extents(orders[0]), get_extents(orders[1]))
            if orders and whole:
                yield _align_elementwise(first, second, whole, tag, *orders)
    yield from _row_major(first, second, tag)


def _pair_ranges(
    first: Group, second: Group, ours: tuple[Expr, ...], theirs: tuple[Expr, ...]
) -> dict[Expr, Expr] | None:
    """Return the second group's ranges as ranges of the first, if equal dimensions of an access tell all of
    them.
    """
    if len(ours) != len(theirs):
        return None
    pairs: dict[Expr, Expr] = {}
    covered: set[Expr] = set()
    digits: list[tuple[Expr, Expr]] = []
    for a, b in zip(ours, theirs, strict=True):
        if a.is_const and a is b:
            continue
        through = _find_ranges(a, b)
        if b in pairs or not covered.isdisjoint(through):
            return None
        if not through:
            digits.append((a, b))
        pairs[b] = a
        covered |= through
    if digits:
        through = _find_digit_ranges(digits)
        if not through or not covered.isdisjoint(through):
            return None
        covered |= through
    if set(pairs) != {*second.parallel, *second.reduced}:
        return None
    if second.reduced:
        # reductions must run along the same ranges in the same order
        if tuple(pairs[s] for s in second.reduced) != first.reduced:
            return None
        return pairs if covered == {*first.parallel, *first.reduced} else None
    whole = covered == {*first.parallel, *first.reduced}
    return pairs if whole or covered == set(first.parallel) else None


def _find_ranges(a: Expr, b: Expr) -> frozenset[Expr]:
    """Return the ranges with which `a` goes once through the extent of the range symbol `b`; none if it does
    not.

    That is one range, or an outer and an inner one: `outer * extent(inner) + inner`.
    """
    if not b.is_symbol or b.extent is None:
        return frozenset()
    return _count_up(a, b.extent)


def _count_up(a: Expr, extent: Expr) -> frozenset[Expr]:
    """Return the one or two ranges with which `a` counts from 0 to `extent`; none if it does not."""
    if a.is_symbol:
        return frozenset((a,)) if a.extent is extent else frozenset()
    ranges = [s for s in a.free_symbols if s.extent is not None]
    if len(ranges) != 2:
        return frozenset()
    for outer, inner in (ranges, ranges[::-1]):
        size = get_extent(inner)
        if outer * size + inner is a and get_extent(outer) * size is extent:
            return frozenset(ranges)
    return frozenset()


def _find_digit_ranges(pairs: Sequence[tuple[Expr, Expr]]) -> frozenset[Expr]:
    """Return the ranges with which the first ones of `pairs` go, as the digits of one number, through the
    range symbols beside them; none if they do not.

    Pieces of columns that were merged read so what has a range for each: pictures, rows and columns of them.
    """
    number, stride = as_expr(0), _ONE
    for digit, whole in reversed(pairs):
        if not whole.is_symbol or whole.extent is None:
            return frozenset()
        number, stride = number + digit * stride, stride * whole.extent
    ranges = _count_up(number, stride)
    place, found = number, []
    for _, whole in reversed(pairs):
        found.append(mod(place, get_extent(whole)))
        place = floordiv(place, get_extent(whole))
    digits = [digit for digit, _ in reversed(pairs)]
    return ranges if all(a is b for a, b in zip(digits, found, strict=True)) else frozenset()


def _orders(
    first: Group, second: Group, ours: tuple[Expr, ...], theirs: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]] | None:
    """Return the ranges of each group, outermost first, in the row-major order of the elements that both
    touch at `ours` and `theirs`.

    `None` unless each goes through every element once, as the digits of a number go through all numbers.
    """
    if len(ours) != len(theirs):
        return None
    places, others, stride = as_expr(0), as_expr(0), _ONE
    for a, b in zip(reversed(ours), reversed(theirs), strict=True):
        places, others = places + stride * a, others + stride * b
        plain = next((e for e in (a, b) if e.is_symbol and e.extent is not None), None)
        if plain is not None:
            stride = stride * get_extent(plain)
        elif not (a.is_const and a is b):
            return None
    mine = _read_digits(places, (*first.parallel, *first.reduced))
    others_of = _read_digits(others, second.parallel)
    return None if mine is None or others_of is None else (mine, others_of)


def _read_digits(place: Expr, ranges: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """`ranges`, outermost first, if `place` is the number of which they are the digits."""
    found = find_coefficients(place, ranges)
    if found is None or not found[1].is_const or found[1].value != 0:
        return None
    by_stride = dict(zip(found[0], ranges, strict=True))
    order: list[Expr] = []
    stride = _ONE
    while len(order) < len(ranges):
        inner = by_stride.pop(stride, None)
        if inner is None:
            return None
        order.append(inner)
        stride = stride * get_extent(inner)
    return tuple(reversed(order))


def _row_major(first: Group, second: Group, tag: str) -> Iterator[Alignment]:
    if second.reduced:
        outer = refine_extents(get_extents(first.parallel), get_extents(second.parallel))
        inner = refine_extents(get_extents(first.reduced), get_extents(second.reduced))
        if outer is None or inner is None:
            return
        yield _refine_alignment(
            (first.parallel, first.reduced), (second.parallel, second.reduced), (outer, inner), tag
        )
        return
    if first.reduced:
        both = (*first.parallel, *first.reduced)
        whole = refine_extents(get_extents(both), get_extents(second.parallel))
        if whole is not None:
            yield _align_elementwise(first, second, whole, tag, both, second.parallel)
    outer = refine_extents(get_extents(first.parallel), get_extents(second.parallel))
    if outer is not None:
        # with reductions: the second group computes once per row
        inner = Refinement(get_extents(first.reduced), tuple((k,) for k in range(len(first.reduced))), ())
        yield _refine_alignment((first.parallel, first.reduced), (second.parallel, ()), (outer, inner), tag)


def _refine_alignment(
    first: tuple[tuple[Expr, ...], tuple[Expr, ...]],
    second: tuple[tuple[Expr, ...], tuple[Expr, ...]],
    parts: tuple[Refinement, Refinement],
    tag: str,
) -> Alignment:
    spaces: list[tuple[Expr, ...]] = []
    maps: tuple[dict[Expr, Expr], dict[Expr, Expr]] = ({}, {})
    for ours, theirs, part, prefix in zip(first, second, parts, "pq", strict=True):
        symbols = make_piece_symbols(ours, part.first, part.pieces, f"{prefix}{tag}_")
        spaces.append(symbols)
        maps[0].update(split_over(ours, part.first, symbols))
        maps[1].update(split_over(theirs, part.second, symbols))
    return Alignment(
        parallel=spaces[0],
        reduced=spaces[1],
        first=_drop_identity(maps[0]),
        second=_drop_identity(maps[1]),
        interleaved=any(part.interleaved for part in parts),
    )


def _align_elementwise(
    first: Group,
    second: Group,
    whole: Refinement,
    tag: str,
    ours: tuple[Expr, ...],
    theirs: tuple[Expr, ...],
) -> Alignment:
    """Return the second group runs along all ranges of the first, reduced ones included; `whole` refines the
    two in the orders given.
    """
    symbols = make_piece_symbols(ours, whole.first, whole.pieces, f"p{tag}_")
    cut = {own: [symbols[k] for k in pieces] for own, pieces in zip(ours, whole.first, strict=True)}
    return Alignment(
        parallel=tuple(piece for own in first.parallel for piece in cut[own]),
        reduced=tuple(piece for own in first.reduced for piece in cut[own]),
        first=_drop_identity(split_over(ours, whole.first, symbols)),
        second=_drop_identity(split_over(theirs, whole.second, symbols)),
        interleaved=whole.interleaved,
    )


def make_piece_symbols(
    ours: tuple[Expr, ...], parts: tuple[tuple[int, ...], ...], extents: tuple[Expr, ...], prefix: str
) -> tuple[Expr, ...]:
    """Return a symbol per piece of `extents`: one of `ours`, whose pieces `parts` lists, where a range stays
    whole.

    Others are named by `prefix`, unlike any of `ours`: symbols of one name and extent are one symbol.
    """
    symbols: list[Expr | None] = [None] * len(extents)
    for own, pieces in zip(ours, parts, strict=True):
        if len(pieces) == 1:
            symbols[pieces[0]] = own
    names = {own.name for own in ours}
    while any(f"{prefix}{k}" in names for k, s in enumerate(symbols) if s is None):
        prefix += "_"
    return tuple(symbol(f"{prefix}{k}", extent=extents[k]) if s is None else s for k, s in enumerate(symbols))


def split_over(
    ours: tuple[Expr, ...], parts: tuple[tuple[int, ...], ...], symbols: tuple[Expr, ...]
) -> dict[Expr, Expr]:
    """Return the ranges `ours`, whose pieces `parts` lists, in terms of the pieces' `symbols`."""
    result: dict[Expr, Expr] = {}
    for own, pieces in zip(ours, parts, strict=True):
        value = as_expr(0)
        for k in pieces:
            value = value * get_extent(symbols[k]) + symbols[k]
        result[own] = value
    return result


def _drop_identity(mapping: dict[Expr, Expr]) -> dict[Expr, Expr]:
    return {} if all(s is e for s, e in mapping.items()) else mapping
