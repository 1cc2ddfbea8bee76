"""Refinements of extents."""

from __future__ import annotations

import pytest
from known_values import number_of

from coilwork_ir.index import Expr, as_expr, substitute, symbol
from coilwork_scheduler.fusion.alignment import find_alignments, refine_extents
from coilwork_scheduler.fusion_group import Group


def sizes(*values: Expr | int) -> tuple[Expr, ...]:
    return tuple(as_expr(v) for v in values)


B, T, C = (symbol(name, lo=2) for name in ("b", "t", "c"))


@pytest.mark.parametrize(
    ("first", "second", "pieces"),
    [
        (sizes(6), sizes(2, 3), sizes(2, 3)),
        (sizes(12, 2), sizes(4, 6), sizes(4, 3, 2)),
        (sizes(), sizes(), sizes()),
        ((B * T, C), (B, T, C), (B, T, C)),
        ((B * T * C,), (B, T * C), (B, T * C)),
        ((B * 8,), (B, sizes(8)[0]), (B, sizes(8)[0])),
    ],
)
def test_the_pieces_of_two_spaces_make_up_both(
    first: tuple[Expr, ...], second: tuple[Expr, ...], pieces: tuple[Expr, ...]
) -> None:
    found = refine_extents(first, second)
    assert found is not None and found.pieces == pieces
    for extents, made in ((first, found.first), (second, found.second)):
        for extent, numbers in zip(extents, made, strict=True):
            product = as_expr(1)
            for k in numbers:
                product = product * found.pieces[k]
            assert product is extent


@pytest.mark.parametrize(
    ("first", "second"),
    [(sizes(4, 6), sizes(6, 4)), (sizes(4), sizes(5)), ((B, T), (T, B)), (sizes(4), sizes())],
)
def test_no_common_refinement(first: tuple[Expr, ...], second: tuple[Expr, ...]) -> None:
    assert refine_extents(first, second) is None


@pytest.mark.parametrize(
    ("first", "second", "interleaved"),
    [
        (sizes(128, 64), sizes(64, 128), True),
        (sizes(2, 24), sizes(12, 4), True),
        (sizes(6, 4), sizes(2, 3, 4), False),
        (sizes(6, 4), sizes(24), False),
        (sizes(6, 2, 4), sizes(2, 3, 8), False),
    ],
)
def test_spaces_in_which_ranges_of_both_are_cut_across(
    first: tuple[Expr, ...], second: tuple[Expr, ...], interleaved: bool
) -> None:
    found = refine_extents(first, second)
    assert found is not None and found.interleaved == interleaved


@pytest.mark.parametrize(
    ("rows", "stride", "follows"),
    [
        # two ranges go through all rows, once
        (64, 16, True),
        # there are more rows, or the ranges overlap
        (65, 16, False),
        (64, 8, False),
    ],
)
def test_a_group_follows_a_reduction_of_pieces(rows: int, stride: int, follows: bool) -> None:
    column, piece, point = (symbol(f"p{k}", extent=n) for k, n in enumerate((4, 4, 16)))
    row, other = symbol("i0", extent=rows), symbol("i1", extent=4)
    pieces = Group(members=(), parallel=(column, piece), reduced=(point,))
    rowwise = Group(members=(), parallel=(row, other), reduced=())
    read = (piece * stride + point, column)
    found = list(find_alignments(pieces, rowwise, [(read, (row, other))], "t"))
    assert [a for a in found if a.second == {row: read[0], other: column}] == found[: 1 if follows else 0]


@pytest.mark.parametrize(
    ("batch", "length", "piece", "pieces"),
    [
        # pieces within a sequence; sequences within a piece
        (4, 64, 16, 16),
        (16, 16, 64, 4),
    ],
)
def test_a_sum_of_pieces_through_a_view(batch: int, length: int, piece: int, pieces: int) -> None:
    column, which, point = symbol("c", extent=5), symbol("p", extent=pieces), symbol("r", extent=piece)
    i, j, k = symbol("i", extent=batch), symbol("j", extent=length), symbol("k", extent=5)
    sums = Group(members=(), parallel=(which, column), reduced=(point,))
    makes = Group(members=(), parallel=(i, j, k), reduced=())
    row = which * piece + point
    read, written = (row // length, row % length, column), (i, j, k)
    same = [
        found
        for found in find_alignments(sums, makes, [(read, written)], "t")
        if all(
            substitute(a, found.first) is substitute(b, found.second)
            for a, b in zip(read, written, strict=True)
        )
    ]
    assert same
    assert all(number_of(s.extent) > 1 for found in same for s in (*found.parallel, *found.reduced))


def test_no_common_space_of_a_sum_through_a_view_of_half() -> None:
    column, which, point = symbol("c", extent=5), symbol("p", extent=8), symbol("r", extent=16)
    i, j, k = symbol("i", extent=4), symbol("j", extent=64), symbol("k", extent=5)
    sums = Group(members=(), parallel=(which, column), reduced=(point,))
    makes = Group(members=(), parallel=(i, j, k), reduced=())
    row = which * 16 + point
    shared = [((row // 64, row % 64, column), (i, j, k))]
    assert list(find_alignments(sums, makes, shared, "t")) == []


def merged_pictures(
    images: int, height: int, width: int, piece: int, pieces: int
) -> tuple[Group, Group, tuple[Expr, ...], tuple[Expr, ...]]:
    """Sums of a channel over pieces of all points of all pictures, and what makes each point of them: the
    coordinates at which both touch `[images, channels, height, width]`.
    """
    channel, which, point = symbol("c", extent=5), symbol("p", extent=pieces), symbol("r", extent=piece)
    n, c, h, w = (symbol(f"i{k}", extent=e) for k, e in enumerate((images, 5, height, width)))
    sums = Group(members=(), parallel=(which, channel), reduced=(point,))
    makes = Group(members=(), parallel=(n, c, h, w), reduced=())
    place = which * piece + point
    read = (place // (height * width), channel, place // width % height, place % width)
    return sums, makes, read, (n, c, h, w)


@pytest.mark.parametrize(
    ("images", "height", "width", "piece", "pieces"),
    [
        # pieces begin within pictures, within rows of them, and hold several pictures
        (64, 14, 14, 256, 49),
        (4, 3, 10, 5, 24),
        (6, 2, 2, 12, 2),
    ],
)
def test_a_sum_of_pieces_of_merged_pictures(
    images: int, height: int, width: int, piece: int, pieces: int
) -> None:
    sums, makes, read, written = merged_pictures(images, height, width, piece, pieces)
    found = next(iter(find_alignments(sums, makes, [(read, written)], "t")))
    assert (found.parallel, found.reduced, found.first) == (sums.parallel, sums.reduced, {})
    assert tuple(substitute(b, found.second) for b in written) == read


@pytest.mark.parametrize(
    ("height", "pieces"),
    [
        # pieces end before the last picture, and rows are left out of each
        (14, 48),
        (15, 49),
    ],
)
def test_no_common_space_with_pieces_of_other_pictures(height: int, pieces: int) -> None:
    sums, makes, read, _ = merged_pictures(64, 14, 14, 256, pieces)
    n, c, h, w = (symbol(f"i{k}", extent=e) for k, e in enumerate((64, 5, height, 14)))
    makes = Group(members=(), parallel=(n, c, h, w), reduced=())
    assert list(find_alignments(sums, makes, [(read, (n, c, h, w))], "t")) == []
