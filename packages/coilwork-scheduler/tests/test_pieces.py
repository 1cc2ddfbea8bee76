"""Axes in pieces: every point of the axes is in one piece, and pieces are about as many as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coilwork_ir.index import Expr, as_expr, as_int, evaluate, floordiv, get_extent, substitute, symbol
from coilwork_scheduler.splitting.pieces import Pieces, cut_axes, merge_axes

S0 = symbol("s0", lo=1)


def cut(
    extents: Sequence[Expr | int],
    wanted: float,
    *,
    order: Sequence[int] | None = None,
    hint: int = 64,
    skip: bool = True,
    held: int = 0,
) -> tuple[tuple[Expr, ...], Pieces | None]:
    axes = tuple(symbol(f"r{k}", extent=as_expr(e)) for k, e in enumerate(extents))
    sizes = {axis: evaluate(get_extent(axis), {"s0": hint}) for axis in axes}
    ordered = axes if order is None else tuple(axes[k] for k in order)
    return axes, cut_axes(axes, ordered, sizes, wanted=wanted, skip=skip, held=held)


def shape(symbols: Sequence[Expr], s0: int = 1) -> list[int]:
    return [evaluate(get_extent(s), {"s0": s0}) for s in symbols]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 13), st.just("s0"), st.just("8*s0")), min_size=1, max_size=3),
    st.floats(1, 40),
    st.integers(1, 20),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)
def test_every_point_is_in_one_piece(
    given_extents: list[int | str], wanted: float, hint: int, s0: int, backwards: bool, skip: bool
) -> None:
    named = {"s0": S0, "8*s0": S0 * 8}
    extents = [e if isinstance(e, int) else named[e] for e in given_extents]
    order = range(len(extents))[::-1] if backwards else None
    axes, pieces = cut(extents, wanted, order=order, hint=hint, skip=skip)
    if pieces is None:
        return
    assert sum(not c.even for c in pieces.cuts) <= 1
    uneven = pieces.uneven
    found = []
    for point in product(*(range(n) for n in shape((*pieces.outer, *pieces.inner), s0))):
        env = {s.name: p for s, p in zip((*pieces.outer, *pieces.inner), point, strict=True)} | {"s0": s0}
        if uneven is None or evaluate(uneven.position, env) < evaluate(get_extent(uneven.axis), env):
            found.append(tuple(evaluate(pieces.mapping.get(axis, axis), env) for axis in axes))
    assert sorted(found) == list(product(*(range(n) for n in shape(axes, s0))))


@pytest.mark.parametrize(
    ("extents", "wanted", "outer", "inner"),
    [
        ((256, 56, 56), 16, [16], [16, 56, 56]),
        ((4, 56, 56), 16, [4, 4], [14, 56]),
        ((1, 512, 512), 100, [128], [4, 512]),
        ((1 << 26,), 1056, [1024], [65536]),
        # no divisor fits a prime: the last piece is short
        ((509,), 16, [16], [32]),
    ],
)
def test_outer_axes_first_then_a_divisor(
    extents: tuple[int, ...], wanted: int, outer: list[int], inner: list[int]
) -> None:
    _, pieces = cut(extents, wanted)
    assert pieces is not None
    assert (shape(pieces.outer), shape(pieces.inner)) == (outer, inner)


def test_an_axis_of_unknown_size_stays_whole_where_the_others_have_enough_points() -> None:
    _, pieces = cut((S0, 56, 56), 14)
    assert pieces is not None
    assert pieces.uneven is None and shape(pieces.inner, 3) == [3, 4, 56]
    _, pieces = cut((S0, 56, 56), 14, skip=False)
    assert pieces is not None
    assert pieces.uneven is not None and pieces.outer[0].name == "r0_piece"


@pytest.mark.parametrize(("hint", "count"), [(10, S0 * 2), (100, S0), (10000, as_expr(16))])
def test_a_multiple_of_a_number_is_cut_evenly_though_its_size_is_unknown(hint: int, count: Expr) -> None:
    _, pieces = cut((S0 * 16,), 15, hint=hint)
    assert pieces is not None
    assert pieces.uneven is None and pieces.count is count


def test_nothing_to_cut_is_no_pieces() -> None:
    assert cut((1, 1), 8)[1] is None
    assert cut((64,), 1)[1] is None
    # every point a piece leaves nothing to reduce in one
    assert cut((4, 2), 8)[1] is None


def test_the_order_of_memory_says_which_axis_is_cut() -> None:
    axes, pieces = cut((64, 64), 8, order=(1, 0))
    assert pieces is not None
    assert [c.axis for c in pieces.cuts] == [axes[1]]


@pytest.mark.parametrize(
    ("extents", "wanted", "outer", "inner"),
    [
        # 33 pieces are wanted: 32 of 392 points would leave 120 lanes of 512 idle, 49 of 256 leave none
        ((12544,), 33, [49], [256]),
        # a prime number of points: the last piece is short
        ((12541,), 33, [49], [256]),
        # pieces that are not held in a block need not fill one
        ((1 << 20,), 33, [32], [32768]),
        # rows of 49 points: four of them fill 256 lanes better than three
        ((96, 49), 33, [24], [4, 49]),
    ],
)
def test_pieces_on_chip_fill_their_blocks(
    extents: tuple[int, ...], wanted: int, outer: list[int], inner: list[int]
) -> None:
    _, pieces = cut(extents, wanted, held=512)
    assert pieces is not None
    assert (shape(pieces.outer), shape(pieces.inner)) == (outer, inner)


IMAGES, ROWS, COLUMNS = (symbol(name, extent=n) for name, n in (("n", 4), ("h", 3), ("w", 5)))
CHANNEL = symbol("c", extent=8)


def test_images_and_their_points_are_one_axis_channels_last() -> None:
    offset = ((IMAGES * 3 + ROWS) * 5 + COLUMNS) * 8 + CHANNEL
    (whole,), mapping = merge_axes((IMAGES, ROWS, COLUMNS), (offset, offset + 7))
    assert as_int(get_extent(whole)) == 60
    over = substitute(offset, mapping)
    for point in range(60):
        n, h, w = point // 15, point // 5 % 3, point % 5
        env = {whole.name: point, "c": 2}
        assert evaluate(over, env) == evaluate(offset, {"n": n, "h": h, "w": w, "c": 2})
        assert [evaluate(mapping[a], env) for a in (IMAGES, ROWS, COLUMNS)] == [n, h, w]


def test_only_neighbours_that_lie_together_are_merged() -> None:
    # channels first: images are apart
    offset = ((IMAGES * 8 + CHANNEL) * 3 + ROWS) * 5 + COLUMNS
    axes, mapping = merge_axes((IMAGES, ROWS, COLUMNS), (offset,))
    assert axes[0] is IMAGES and as_int(get_extent(axes[1])) == 15
    assert set(mapping) == {ROWS, COLUMNS}


def test_what_one_offset_tells_apart_stays_apart() -> None:
    together = (IMAGES * 3 + ROWS) * 8 + CHANNEL
    assert merge_axes((IMAGES, ROWS), (together, IMAGES * 8 + CHANNEL)) == ((IMAGES, ROWS), {})
    assert merge_axes((IMAGES, ROWS), (together, floordiv(IMAGES, 2))) == ((IMAGES, ROWS), {})
