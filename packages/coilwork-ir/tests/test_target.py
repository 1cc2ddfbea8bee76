"""Targets, and what generators declare for them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from coilwork_ir.target import LEAST, TARGETS, Capabilities, RowWalks, Targets, get_target


def test_the_promised_targets_are_there() -> None:
    wanted = {"sm_80", "sm_90", "gfx942", "x86-64-avx2", "x86-64-avx512", "aarch64-neon"}
    assert wanted <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_descriptions_are_plausible(name: str) -> None:
    found = get_target(name)
    assert found.name == name
    assert found.is_gpu == (found.kind != "cpu")
    assert (
        found.multiprocessors > 0 and found.l2_bytes > 0 and found.bandwidth_gb_s > 0 and found.launch_us > 0
    )
    assert found.vector_bytes in (16, 32, 64)
    if found.is_gpu:
        assert found.warp_size in (32, 64)
        assert found.max_threads_per_block % found.warp_size == 0
        assert found.registers_per_multiprocessor > 0
    else:
        assert found.warp_size == found.max_threads_per_block == 1
        assert found.registers_per_multiprocessor == 0


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown target 'sm_10'; built in: sm_80, sm_90"):
        get_target("sm_10")


def test_what_stays_in_a_cache_is_a_share_of_it() -> None:
    assert get_target("sm_90").resident_bytes == 24 << 20
    assert get_target("sm_80").resident_bytes == 16 << 20
    assert replace(get_target("sm_90"), l2_bytes=50 << 20).resident_bytes == 20 << 20


def test_descriptions_are_values() -> None:
    name = "warp_size"
    with pytest.raises(FrozenInstanceError):
        setattr(get_target("sm_90"), name, 64)
    assert hash(get_target("sm_90")) == hash(get_target("sm_90"))


def test_key_text_is_the_same_in_every_process() -> None:
    program = "from coilwork_ir.target import TARGETS; print(*(one.key_text for one in TARGETS.values()))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(6)
    }
    assert len(texts) == 1


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
    h200, host = get_target("sm_90"), get_target("x86-64-avx2")
    found = Capabilities(rows=ROWS, cuts_rows=True)
    both = Targets(main=h200, by_device=(("cpu", host), ("cuda:0", h200)), declared=(("sm_90", found),))
    assert both.capabilities_of("cuda:0") is found and both.capabilities_of("cpu") is LEAST
    assert both.capabilities_of("cuda:1") is found
    assert both.have_whole_rows and not Targets(main=h200, declared=(("sm_90", found),)).have_whole_rows
    assert not LEAST.rows.keeps(1) and not LEAST.rows.keeps_beside_sums(1, sums=0, reads=0)
