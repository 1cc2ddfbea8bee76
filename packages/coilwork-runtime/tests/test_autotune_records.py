"""Records of what searches found."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from runtime_sample_kernels import rewrite, triton_kernel, version

from coilwork_cache import MemoryStore, TuningCache
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config, SearchResult, Trial
from coilwork_runtime.triton_kernels.autotune.records import recall, record_key, remember

SPEC = rewrite(
    triton_kernel(),
    configs=({"XBLOCK": 256, "num_warps": 4},),
    versions=(version({"XBLOCK": (64, 128, 256, 512), "num_warps": (1, 2, 4)}, ("32*num_warps", "XBLOCK")),),
)
DEVICE = "a GPU"


def found(x: int, warps: int = 4) -> SearchResult:
    proposed = Trial(config=SPEC.configs[0], milliseconds=2.0, registers=32, threads=128)
    best = Trial(config={"XBLOCK": x, "num_warps": warps}, milliseconds=1.0, registers=40, threads=128)
    return SearchResult(best=best, proposed=(proposed,), tried=(best,))


def config(x: int, warps: int = 4) -> Config:
    return {"XBLOCK": x, "num_warps": warps}


def test_each_magnitude_of_sizes_has_its_own() -> None:
    store = MemoryStore()
    remember(store, SPEC, DEVICE, [1000], found(512))
    remember(store, SPEC, DEVICE, [5000], found(128))
    remember(store, SPEC, DEVICE, [1010], found(256))
    assert recall(store, SPEC, DEVICE) == {(10,): config(256), (13,): config(128)}


def test_kernels_and_devices_do_not_share() -> None:
    store = MemoryStore()
    remember(store, SPEC, DEVICE, [], found(512))
    assert recall(store, SPEC, DEVICE) == {(): config(512)}
    assert recall(store, SPEC, "another") == {}
    for other in (
        dataclasses.replace(SPEC, source=SPEC.source + "\n"),
        rewrite(SPEC, args=("*in:f32", "*out:f32", "size:i32")),
        dataclasses.replace(SPEC, target="sm_80"),
    ):
        assert recall(store, other, DEVICE) == {}
    # what may be tried is no part of what a kernel is
    assert recall(store, rewrite(SPEC, versions=()), DEVICE) == {}
    assert recall(None, SPEC, DEVICE) == {}


def test_the_record_says_what_was_measured() -> None:
    store = MemoryStore()
    remember(store, SPEC, DEVICE, [1000], found(512))
    record: Any = TuningCache(store).get(record_key(SPEC, DEVICE))
    assert (record["kernel"], record["device"]) == (SPEC.name, DEVICE)
    (entry,) = record["searches"]
    assert entry["sizes"] == [1000] and entry["mapping"] == "tile x0 by 512\nwarps 4"
    assert [trial["mapping"] for trial in (entry["best"], *entry["proposed"], *entry["tried"])] == [
        "tile x0 by 512\nwarps 4",
        "tile x0 by 256\nwarps 4",
        "tile x0 by 512\nwarps 4",
    ]
    assert entry["best"]["milliseconds"] == 1.0 and entry["best"]["registers"] == 40
    assert [trial["milliseconds"] for trial in entry["proposed"] + entry["tried"]] == [2.0, 1.0]


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"searches": 3},
        {"searches": [3]},
        {"searches": [{"mapping": 3, "magnitudes": []}]},
        {"searches": [{"mapping": "tile x0 by 64", "magnitudes": 3}]},
    ],
)
def test_a_damaged_record_is_dropped(damage: dict[str, Any]) -> None:
    store = MemoryStore()
    key = record_key(SPEC, DEVICE)
    TuningCache(store).put(key, damage)
    assert recall(store, SPEC, DEVICE) == {}
    assert store.get(key) is None
    TuningCache(store).put(key, damage)
    remember(store, SPEC, DEVICE, [], found(128))
    assert recall(store, SPEC, DEVICE) == {(): config(128)}


def test_a_configuration_that_the_kernel_does_not_allow_is_not_taken() -> None:
    for wrong in (config(8192), config(64, 4), config(64, 8)):
        store = MemoryStore()
        trial = Trial(config=wrong, milliseconds=1.0)
        remember(store, SPEC, DEVICE, [], SearchResult(best=trial, proposed=(), tried=(trial,)))
        assert recall(store, SPEC, DEVICE) == {}


def test_a_mapping_that_is_none_of_the_kernels_is_not_taken() -> None:
    store = MemoryStore()
    remember(store, SPEC, DEVICE, [], found(128))
    key = record_key(SPEC, DEVICE)
    tuning = TuningCache(store)
    known = json.dumps(tuning.get(key))
    for other in ("tile x0 by 128", "loop r0 by 128\\nwarps 4", "tile x0 by ?XBLOCK in 128 256\\nwarps 4"):
        tuning.put(key, json.loads(known.replace("tile x0 by 128\\nwarps 4", other)))
        assert recall(store, SPEC, DEVICE) == {}
    tuning.put(key, json.loads(known))
    assert recall(store, SPEC, DEVICE) == {(): config(128)}
