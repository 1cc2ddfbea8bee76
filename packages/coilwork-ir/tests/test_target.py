"""The table of built-in targets."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from coilwork_ir.target import TARGETS, target


def test_the_promised_targets_are_there() -> None:
    wanted = {"sm_80", "sm_90", "gfx942", "x86-64-avx2", "x86-64-avx512", "aarch64-neon"}
    assert wanted <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_descriptions_are_plausible(name: str) -> None:
    found = target(name)
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
        target("sm_10")


def test_what_stays_in_a_cache_is_a_share_of_it() -> None:
    assert target("sm_90").resident_bytes == 24 << 20
    assert target("sm_80").resident_bytes == 16 << 20
    assert replace(target("sm_90"), l2_bytes=50 << 20).resident_bytes == 20 << 20


def test_descriptions_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        target("sm_90").warp_size = 64
    assert hash(target("sm_90")) == hash(target("sm_90"))


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
