"""The set of programs that arithmetic bounds: what it has, how it judges, and its page."""

from __future__ import annotations

from functools import partial
from threading import Lock

import pytest
import torch
from torch.nn import functional

from benchmarks.compute_bound.case import Case
from benchmarks.compute_bound.products import activate, linear
from benchmarks.compute_bound.programs import CASES, KINDS
from benchmarks.compute_bound.report import describe, find_mean, find_ratio, summarise, write_page
from benchmarks.compute_bound.timing import time_case


def record(**times: float) -> dict[str, dict[str, object]]:
    return {way: {"us": us, "off": 1e-3, "kernels": [], "error": ""} for way, us in times.items()}


def test_names_are_unique_and_there_are_enough() -> None:
    assert len(CASES) == sum(map(len, KINDS.values())) >= 80


def test_the_best_of_all_others_is_what_counts() -> None:
    assert find_ratio(record(eager=30.0, inductor=20.0, autotune=10.0, coilwork=8.0)) == 1.25
    assert find_ratio(record(eager=30.0, coilwork=0.0)) is None
    assert find_mean((0.5, 2.0)) == pytest.approx(1.0)


def test_pages_name_what_falls_behind() -> None:
    first, second = (name for name in list(CASES)[:2])
    records = {
        first: record(eager=9.0, inductor=10.0, coilwork=10.0),
        second: record(inductor=20.0, coilwork=10.0),
    }
    page = write_page(records, "python -m benchmarks.compute_bound", "a GPU")
    assert f"| {CASES[first].name} | 9.0 | 10.0 | 10.0 | 0.90 | 1.0e-03 |" in page
    assert summarise(records)[0].endswith("least 0.90, 1 below 0.97")
    assert "x0.90" in describe(first, records[first])


def test_results_are_judged_beside_float64() -> None:
    case = Case(name="small", build=linear(partial(activate, functional.silu), 8, 8, 8, "b"), trains=True)
    timings = time_case(case, ("eager",), Lock(), "cpu")
    # bf16 has 8 bits
    assert 1e-5 < timings["eager"].off < 2e-2 and not timings["eager"].error
    assert torch.get_float32_matmul_precision() == "highest"
