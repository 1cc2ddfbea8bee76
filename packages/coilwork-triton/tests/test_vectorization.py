"""What is walked by rows, and where neighbouring threads touch neighbouring elements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, floordiv, maximum, symbol
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.scalar import load, placeholder
from coilwork_ir.target import get_target
from coilwork_triton.facts.vectorization import (
    Access,
    can_overread,
    find_uniform_width,
    has_scattered_loads,
    list_full_access_sizes,
    should_access_scalars,
    should_tile_rows,
)

GRIDS = get_target("sm_90").machine.grids


def rows(outer: Expr | int, inner: Expr | int) -> tuple[Range, Range]:
    return along("x0", outer), along("x1", inner)


def access(ranges: tuple[Range, Range], pitch: int, start: int = 0, itemsize: int = 2) -> Access:
    first, second = ranges
    return Access(index=first.symbol * pitch + second.symbol + start, itemsize=itemsize)


@pytest.mark.parametrize(
    ("inner", "pitches", "wanted"),
    [
        (50264, (50257, 50264), True),
        (4000, (4001, 4000), True),
        (50257, (50257, 50257), False),
        (4000, (4096, 4000), False),
        (40, (41, 40), False),
        # most of it is wide
        (1001, (1001, 1001, 1001, 1001, 1008), False),
    ],
)
def test_rows_that_lanes_do_not_divide(inner: int, pitches: tuple[int, ...], wanted: bool) -> None:
    space = rows(64, inner)
    assert should_tile_rows(space, [access(space, pitch) for pitch in pitches], GRIDS) is wanted


@pytest.mark.parametrize("outer", [64, symbol("n2", lo=1)])
def test_what_is_read_in_an_order_of_its_own_stays_flat_where_sizes_are_known(outer: Expr | int) -> None:
    space = rows(outer, 1024)
    enlarged = Access(index=space[0].symbol * 512 + floordiv(space[1].symbol + 1, 2), itemsize=2)
    touched = [enlarged, replace(access(space, 1024), store=True)]
    assert should_tile_rows(space, touched, GRIDS) is not isinstance(outer, int)
    assert should_access_scalars(space, touched, GRIDS, flat=True)


def test_rows_of_unknown_length_stay_flat() -> None:
    space = rows(64, symbol("n0", lo=1))
    assert not should_tile_rows(space, [access(space, 5001)], GRIDS)
    space = rows(64, symbol("n1", lo=512))
    assert should_tile_rows(space, [access(space, 5001)], GRIDS)


def test_what_is_read_again_does_not_count() -> None:
    space = rows(64, 1001)
    whole, bias = access(space, 1001), Access(index=space[1].symbol + as_expr(0), itemsize=4)
    assert not should_tile_rows(space, [whole, bias], GRIDS)
    assert not should_access_scalars(space, [whole, bias], GRIDS, flat=True)


def test_starts_and_element_sizes() -> None:
    space = rows(64, 1024)
    for start, itemsize, wanted in ((0, 4, False), (4, 4, False), (4, 2, True), (1, 4, True), (1, 16, False)):
        assert (
            should_access_scalars(space, [access(space, 1024, start, itemsize)], GRIDS, flat=True) is wanted
        )
        assert (
            should_access_scalars(space, [access(space, 1024, start, itemsize)], GRIDS, flat=False) is wanted
        )


@pytest.mark.parametrize(
    ("inner", "wanted"),
    [(4096, True), (3072, True), (3136, False), (512, False), (50264, True), (50257, False), (8000, False)],
)
def test_rows_of_whole_blocks_that_something_is_read_once_for(inner: int, wanted: bool) -> None:
    space = rows(64, inner)
    once = Access(index=space[0].symbol, itemsize=4)
    assert should_tile_rows(space, [access(space, inner), once], GRIDS) is wanted
    assert not should_tile_rows(space, [access(space, inner)], GRIDS)


def test_stores_end_where_rows_end_and_loads_where_their_16_bytes_do() -> None:
    space = rows(64, 1001)
    read = access(space, 1008)
    written = replace(read, store=True)
    assert not should_access_scalars(space, [read], GRIDS, flat=False)
    assert should_access_scalars(space, [read, written], GRIDS, flat=False)
    whole = rows(64, 1000)
    assert not should_access_scalars(whole, [replace(access(whole, 1008), store=True)], GRIDS, flat=False)


@pytest.mark.parametrize(
    ("length", "pitch", "start", "itemsize", "wanted"),
    [
        (1001, 1008, 0, 2, True),
        (1001, 1008, 8, 2, True),
        (1001, 1008, 4, 2, False),
        (1001, 1004, 0, 2, False),
        (1001, 1004, 0, 4, True),
        (1000, 1008, 0, 2, False),
        (1001, 1001, 0, 16, False),
    ],
)
def test_loads_that_run_on(length: int, pitch: int, start: int, itemsize: int, wanted: bool) -> None:
    space = rows(64, length)
    position = space[1].symbol
    assert can_overread(access(space, pitch, start, itemsize), position, as_expr(length)) is wanted
    strided = Access(index=space[0].symbol * 4096 + position * 2, itemsize=itemsize)
    assert not can_overread(strided, position, as_expr(length))


def test_what_comes_from_memory() -> None:
    space = rows(64, 100)
    touched = [access(space, 100), access(space, 100, itemsize=4), Access(index=space[1].symbol, itemsize=8)]
    assert list_full_access_sizes(space, touched) == (2, 4)


@pytest.mark.parametrize(
    ("step", "wanted"),
    [(1, False), (2, True), (3, True), (8, True), (-1, True), (9, False), (1000, False)],
)
def test_windows_that_move_by_a_few_elements(step: int, wanted: bool) -> None:
    space = rows(64, 56)
    window = [
        Access(index=space[0].symbol * 10_000 + space[1].symbol * step + k, itemsize=2)
        for k in range(0, 24, 8)
    ]
    stored = replace(access(space, 56), store=True)
    assert should_access_scalars(space, [*window, stored], GRIDS, flat=True) is wanted


def test_what_is_read_several_times_in_a_row() -> None:
    space = rows(64, 56)
    repeated = Access(index=space[0].symbol * 28 + floordiv(space[1].symbol, 2), itemsize=2)
    assert should_access_scalars(space, [repeated, replace(access(space, 56), store=True)], GRIDS, flat=True)


@pytest.mark.parametrize(
    ("step", "rows", "wanted"),
    [(32, 4_000_000, True), (8, 4_000_000, False), (32, 256, False)],
    ids=["sectors", "shared sectors", "a small table"],
)
def test_what_is_loaded_from_sectors_of_its_own(step: int, rows: int, wanted: bool) -> None:
    place = along("x0", rows)
    args = (
        arg("in0", DType.BF16, step * rows),
        arg("in1", DType.I64, rows),
        arg("out0", DType.BF16, rows),
    )
    label = load("in1", (place.symbol,), DType.I64)
    strided = load("in0", (step * place.symbol,), DType.BF16)
    chosen = load("in0", (placeholder(0),), DType.BF16, indirect=(label,))
    for value, expected in ((strided, wanted), (chosen, rows > 256)):
        kernel = Kernel(
            name="k",
            ranges=(place,),
            args=args,
            stores=(Store(buffer="out0", index=place.symbol, value=value),),
        )
        assert has_scattered_loads(kernel, (value,), get_target("sm_90").machine) is expected


@pytest.mark.parametrize(("planes", "wanted"), [(64, False), (1, True)])
def test_a_padding_of_planes_stores_16_bytes_per_thread(planes: int, wanted: bool) -> None:
    """What is loaded is narrow, but each element's place takes two divisions, which threads with neighbours
    share in part.
    """
    space = tuple(along(f"x{k}", extent) for k, extent in enumerate((planes, 120, 114)))
    plane, row, column = (r.symbol for r in space)
    inner = Access(index=plane * 13216 + row * 112 + column - 113, itemsize=2)
    stored = Access(index=plane * 13680 + row * 114 + column, itemsize=2, store=True)
    assert should_access_scalars(space, [inner, stored], GRIDS, flat=True) is wanted
    apart = Access(index=plane * 120 * 228 + row * 228 + column * 2, itemsize=2)
    assert should_access_scalars(space, [inner, apart, stored], GRIDS, flat=True)


@pytest.mark.parametrize(("planes", "wanted"), [(64, False), (1, True)])
def test_reflected_planes_store_16_bytes_per_thread(planes: int, wanted: bool) -> None:
    space = tuple(along(f"x{k}", extent) for k, extent in enumerate((planes, 66, 66)))
    plane, row, column = (r.symbol for r in space)
    reflected = [
        Access(index=plane * 4096 + row * 64 + maximum(column - k, k - column), itemsize=2) for k in (1, 2)
    ]
    stored = Access(index=plane * 4356 + row * 66 + column, itemsize=2, store=True)
    assert should_access_scalars(space, [reflected[0], stored], GRIDS, flat=True) is wanted
    # windows, and what is reduced, stay as they were
    assert should_access_scalars(space, [*reflected, stored], GRIDS, flat=True)
    summed = Access(index=plane * 66 + row, itemsize=2, store=True)
    assert should_access_scalars(space, [reflected[0], summed], GRIDS, flat=True)


@pytest.mark.parametrize(
    ("inner", "itemsize", "wanted"),
    [(196, 2, 4), (98, 2, 2), (49, 2, 1), (98, 4, 2), (200, 2, 8)],
)
def test_pieces_of_planes_are_read_as_wide_as_they_start(inner: int, itemsize: int, wanted: int) -> None:
    space = rows(64, inner)
    touched = [
        access(space, 32 * inner, 0, itemsize),
        replace(access(space, 32 * inner, 0, itemsize), store=True),
    ]
    assert find_uniform_width(space, touched, GRIDS, flat=True) == wanted


def test_widths_that_differ_leave_gaps() -> None:
    space = rows(64, 2730)
    row = access(space, 2730)
    assert find_uniform_width(space, [row, replace(row, store=True)], GRIDS, flat=False) == 2
    # a weight starts at 16 bytes whatever the row, and threads have as many elements as it takes
    weight = Access(index=space[1].symbol, itemsize=2)
    assert find_uniform_width(space, [row, weight], GRIDS, flat=False) == 1
    # rows start at 16 bytes but do not end there
    padded = access(rows(64, 1004), 1008)
    assert find_uniform_width(rows(64, 1004), [padded], GRIDS, flat=False) == 1
