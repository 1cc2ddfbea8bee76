"""How many rows, and how long ones, costs reckon with."""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.target import LEAST, Capabilities, RowWalks, Targets, target

ROWS = RowWalks(
    kept_bytes=4096,
    kept_across=128,
    columns=32,
    loop_row=2048,
    loop_threads=128,
    loop_elements=4,
    loop_sums=16,
    loop_values=24,
)


def test_more_values_shorten_the_row_that_is_kept() -> None:
    assert [ROWS.keeps(1024, values=values) for values in (1, 2, 3, 4)] == [True, True, True, False]
    assert ROWS.keeps(512, values=5) and not ROWS.keeps(513, values=5)


def test_rows_across_memory_are_kept_up_to_a_length_of_their_own() -> None:
    assert ROWS.keeps(128, across=True) and not ROWS.keeps(129, across=True)
    assert not RowWalks(kept_bytes=64, kept_across=128).keeps(128, across=True)


def test_rows_beside_sums_leave_registers_for_both() -> None:
    # 2,048 points are 16 for each thread
    assert ROWS.keeps_beside_sums(2048, sums=1, reads=0)
    assert not ROWS.keeps_beside_sums(2048, sums=1, reads=1)
    assert not ROWS.keeps_beside_sums(2048, sums=2, reads=0)
    assert ROWS.keeps_beside_sums(1, sums=4, reads=2) and not ROWS.keeps_beside_sums(1, sums=5, reads=0)
    assert not ROWS.keeps_beside_sums(2049, sums=0, reads=0)


def test_columns_are_reduced_side_by_side() -> None:
    assert ROWS.count_programs(100, across=False) == 100
    assert [ROWS.count_programs(rows, across=True) for rows in (1, 64, 100)] == [1, 2, 3]


def test_rows_are_blocks_of_neighbours_where_enough_lies_across() -> None:
    assert ROWS.are_across(across=2, along=1) and not ROWS.are_across(across=1, along=1)
    crossed = replace(ROWS, crossed_share=0.125)
    assert crossed.are_across(across=1, along=1) and crossed.are_across(across=1, along=6)
    assert not crossed.are_across(across=1, along=7) and not crossed.are_across(across=0, along=0)


def test_who_declares_nothing_can_do_the_least() -> None:
    h200, host = target("sm_90"), target("x86-64-avx2")
    found = Capabilities(rows=ROWS, cuts_rows=True)
    both = Targets(main=h200, by_device=(("cpu", host), ("cuda:0", h200)), declared=(("sm_90", found),))
    assert both.capabilities_of("cuda:0") is found and both.capabilities_of("cpu") is LEAST
    assert both.capabilities_of("cuda:1") is found
    assert both.have_whole_rows and not Targets(main=h200, declared=(("sm_90", found),)).have_whole_rows
    assert not LEAST.rows.keeps(1) and not LEAST.rows.keeps_beside_sums(1, sums=0, reads=0)
