"""Mappings as the runtime reads them: what is open, and what closes it."""

from __future__ import annotations

from coilwork_runtime.triton_kernels.versions import close_mapping, read_choice, read_values

SORTED = """tile x0 by ?XBLOCK in 2 1 4
keep r0 by 512
sort r0 by ?SORT_THREADS in 64 32 width 4 keys float
select r0 first 8 sharing 2 spread ?SORT_THREADS in 64 32
warps ?num_warps in 2 1
choose SORT_THREADS, num_warps as 64, 2
choose SORT_THREADS, num_warps as 32, 1
limit `512*XBLOCK` at most `2048*num_warps`"""
CLOSED = """tile x0 by 4
keep r0 by 512
sort r0 by 32 width 4 keys float
select r0 first 8 sharing 2 spread 32
warps 1"""
CHOSEN = {"XBLOCK": 4, "SORT_THREADS": 32, "num_warps": 1}


def test_open_numbers_but_those_chosen_together_are_what_a_search_may_vary() -> None:
    assert read_values(SORTED) == {"XBLOCK": (1, 2, 4)}
    assert read_values(CLOSED) == {}


def test_a_closed_mapping_tells_what_was_chosen() -> None:
    assert close_mapping(SORTED, CHOSEN | {"R0_BLOCK": 512}) == CLOSED
    assert read_choice(SORTED, CLOSED) == CHOSEN
    assert read_choice(CLOSED, CLOSED) == {}


def test_another_kernels_mapping_tells_nothing() -> None:
    # one number of a name is chosen once
    assert read_choice(SORTED, CLOSED.replace("spread 32", "spread 64")) is None
    assert read_choice(SORTED, CLOSED.replace("keep", "loop")) is None
    assert read_choice(SORTED, CLOSED + "\ncontract") is None
    assert read_choice(SORTED, SORTED) is None
