"""The harness of several ranks, over gloo: what it finds right, wrong and dead, and what its tables say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from integration_tests.ranks.comparing import compare
from integration_tests.ranks.measuring import intersect_spans, summarize_trace
from integration_tests.ranks.report import write_tables
from integration_tests.ranks.training import Setting, Step
from integration_tests.ranks.transformer import Scale
from integration_tests.ranks.world import Rank, World

CHECKS = "integration_tests.ranks.checks"
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(2, "cpu", patience_s=60) as made:
        yield made


def test_losses_of_uneven_dtensors_are_eagers(world: World) -> None:
    """Compiled in one graph, and none in eager mode, which `strict` forbids."""
    arguments = {"case": "uneven DTensors", "steps": 6}
    outcome = world.run(f"{CHECKS}:compare_curve", arguments, limit_s=LIMIT_S)
    assert outcome.error == ""
    assert [answer["error"] for answer in outcome.answers] == ["", ""]
    assert [(answer["graphs"], answer["breaks"]) for answer in outcome.answers] == [(1, 0)] * 2


def test_ranks_compile_each_kernel_once_between_them(world: World) -> None:
    outcome = world.run(f"{CHECKS}:count_compilations", {}, limit_s=LIMIT_S)
    assert outcome.error == ""
    assert [answer["error"] for answer in outcome.answers] == ["", ""]


def test_ranks_go_on_after_an_error_of_all(world: World) -> None:
    outcome = world.run(f"{CHECKS}:compare_curve", {"case": "no such", "steps": 1}, limit_s=LIMIT_S)
    assert outcome.error.startswith("rank ") and all("KeyError" in error for error in outcome.errors)
    assert world.run(f"{CHECKS}:meet", {}, limit_s=LIMIT_S).error == ""
    assert world.starts == 1


def test_a_rank_that_dies_is_an_error_of_the_others(world: World) -> None:
    outcome = world.run(f"{CHECKS}:die", {"rank": 1, "after": 1}, limit_s=LIMIT_S, grace_s=30.0)
    assert outcome.errors[1] == "died with exit status 3"
    assert "RuntimeError" in outcome.errors[0]
    assert world.starts == 1


def test_wrong_losses_are_found() -> None:
    def build(setting: Setting) -> Step:
        is_compiled = setting.compile(abs) is not abs

        def step(number: int) -> torch.Tensor:
            wrong = 1e-4 * number if is_compiled else 0.0
            return torch.tensor(1 / (number + 1) + wrong, dtype=setting.scale.dtype)

        return step

    scale = Scale(width=1, heads=1, layers=1, vocabulary=2, batch=1, length=1, dtype=torch.float32)
    assert not compare(Rank(0, 1, torch.device("cpu")), build, scale, steps=5).is_right
    with pytest.raises(ValueError, match="losses move by"):
        compare(Rank(0, 1, torch.device("cpu")), build, scale, steps=1)


def test_hidden_time_is_what_kernels_and_collectives_share() -> None:
    def event(name: str, start: float, length: float, kind: str = "kernel") -> dict[str, object]:
        return {"cat": kind, "name": name, "ts": start, "dur": length}

    events = [
        event("ncclDevKernel_AllReduce", 0, 1000), event("ncclDevKernel_AllGather", 500, 1500),
        event("gemm", 1800, 400), event("gemm", 1900, 100), event("Memcpy", 2500, 500, "gpu_memcpy"),
        event("nccl:all_reduce", 0, 9000, "gpu_user_annotation"),
    ]  # fmt: skip
    found = summarize_trace(events, 1)
    assert found["collectives_ms"] == 2.0 and found["kernels_ms"] == pytest.approx(0.9)
    assert found["hidden_ms"] == pytest.approx(0.2) and found["launches"] == 3
    assert intersect_spans([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]


def test_tables_show_errors_and_shares() -> None:
    records = [
        {"kind": "curve", "name": "DDP", "seconds": 3.0, "error": "", "answer": {"worst": 1e-7, "graphs": 3}},
        {"kind": "fuzz", "name": "flights", "seconds": 3.0, "error": "seed 4 differs", "answer": None},
        {"kind": "measured", "name": "DDP", "seconds": 3.0, "error": "", "answer": {
            "coilwork": {"ms": 2.0, "collectives_ms": 1.0, "hidden_ms": 0.25, "peak_bytes": 2e9},
            "eager": {"ms": 3.0},
        }},
    ]  # fmt: skip
    text = write_tables(records)
    assert "ok     DDP      3 s  worst 1e-07, graphs 3" in text
    assert "WRONG  flights  3 s  seed 4 differs" in text
    assert "2.00 | - | 3.00" in text and "25% | - | -" in text and "2.00 | - | -" in text
