"""Compiled models called often at changing sizes: `benchmarks.many_calls`, bounded."""

from __future__ import annotations

import shutil

import pytest
import torch

from benchmarks.many_calls import run

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


@pytest.mark.parametrize(("training", "calls"), [(False, 20_000), (True, 2_000)])
def test_many_calls_neither_leak_nor_change_results(training: bool, calls: int) -> None:
    torch._dynamo.reset()
    marks = list(run(calls, training=training, options={"executor": "native"}))
    assert [mark.calls for mark in marks][-1] == calls
    assert marks[-1].resident_bytes - marks[0].resident_bytes < 4 << 20
