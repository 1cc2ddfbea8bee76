"""Choosing among candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coilwork_cache import JsonValue, MemoryStore, TuningCache, content_key
from coilwork_runtime.triton_kernels.autotune.candidate_selection import (
    find_fastest,
    make_expendable_arguments,
    make_selection_key,
    select_candidate,
)
from coilwork_runtime.triton_kernels.compilation import GpuBinary

KEY = content_key("tuning", "k")


def test_noise_does_not_unseat_the_best_guess() -> None:
    assert find_fastest([1.0, 0.994, 1.2]) == 0
    assert find_fastest([1.0, 0.99, 1.2]) == 1
    # a clock's tick is a larger share of short ones
    assert find_fastest([0.004, 0.0039]) == 0
    assert find_fastest([0.004, 0.0036]) == 1
    assert find_fastest([1.0, 0.9, 0.8]) == 2
    assert find_fastest([1.0]) == 0


def test_updated_tensors_are_copied_and_others_are_not() -> None:
    state, source, target = torch.zeros(4), torch.ones(4), torch.zeros(4)
    args = make_expendable_arguments([state, source, target, 4], ["inout", "in", "out"])
    assert args[0].data_ptr() != state.data_ptr() and torch.equal(args[0], state)
    assert args[1] is source and args[2] is target and args[3] == 4


def test_an_output_in_the_memory_of_an_input_is_copied() -> None:
    x = torch.arange(8.0)
    args = make_expendable_arguments([x[:4], x[4:]], ["in", "out"])
    assert args[0].data_ptr() == x.data_ptr()
    assert args[1].data_ptr() != x[4:].data_ptr()


def test_copies_keep_the_layout() -> None:
    x = torch.zeros(3, 4).t()
    (copy,) = make_expendable_arguments([x], ["inout"])
    assert copy.stride() == x.stride() and copy.shape == x.shape


def test_a_damaged_record_is_dropped_and_measured_again() -> None:
    store = MemoryStore()
    times = iter([2.0, 1.0] * 6)

    def measure(call: Callable[[], None]) -> float:
        call()
        return next(times)

    mappings = ("warps 4", "warps 8")
    damaged: tuple[dict[str, JsonValue], ...] = ({}, {"mapping": 3}, {"mapping": "warps 16"})
    for damage in damaged:
        TuningCache(store).put(KEY, damage)
        trials = [lambda *_: None, lambda *_: None]
        assert select_candidate(trials, [], [], measure=measure, store=store, key=KEY, mappings=mappings) == 1
        assert TuningCache(store).get(KEY) == {
            "mapping": "warps 8",
            "candidates": ["warps 4", "warps 8"],
            "milliseconds": [2.0, 1.0],
        }
        # in any order of candidates
        turned = mappings[::-1]
        assert select_candidate(trials, [], [], measure=measure, store=store, key=KEY, mappings=turned) == 0


def test_a_guess_that_something_disturbed_once_is_kept() -> None:
    times = iter([9.0, 2.0, 1.0, 2.0])
    trials = [lambda *_: None, lambda *_: None]
    mappings = ("warps 4", "warps 8")
    chosen = select_candidate(
        trials, [], [], measure=lambda _: next(times), store=None, key=KEY, mappings=mappings
    )
    assert chosen == 0 and next(times, None) is None


def test_a_kernel_that_tells_no_mapping_is_timed_every_time() -> None:
    store, times = MemoryStore(), iter([2.0, 1.0, 2.0, 1.0, 1.0, 2.0])
    trials = [lambda *_: None, lambda *_: None]
    chosen = [
        select_candidate(
            trials, [], [], measure=lambda _: next(times), store=store, key=KEY, mappings=(None, None)
        )
        for _ in range(2)
    ]
    assert chosen == [1, 0] and store.get(KEY) is None


def test_keys_differ_by_code_device_and_size_class() -> None:
    one = GpuBinary(image=b"1", name="k", shared_bytes=0, threads=32)
    two = GpuBinary(image=b"2", name="k", shared_bytes=0, threads=32)
    keys = {
        make_selection_key([one], "a", [1000]),
        make_selection_key([two], "a", [1000]),
        make_selection_key([one], "b", [1000]),
        make_selection_key([one], "a", [2000]),
        make_selection_key([one, two], "a", [1000]),
    }
    assert len(keys) == 5
    assert make_selection_key([one], "a", [1000]) == make_selection_key([one], "a", [1010])
