"""The page about the cost of calls: ratios with and without Dynamo's share, and a measurement in a process of
its own.
"""

from __future__ import annotations

import pytest

from benchmarks import breakdown, calls


def test_the_page_shows_ratios_with_and_without_dynamo() -> None:
    cost = {"dynamo": 10.0, "aot": 12.0, "inductor": 50.0, "python": 40.0, "native": 20.0}
    found = {(b, c): {"us": cost[b], "launches": 50} for b in calls.BACKENDS for c in calls.CASES}
    page = calls.page(found, "python -m benchmarks.calls")
    rows = [line for line in page.splitlines() if line.startswith("| 50 kernels")]
    assert rows == [
        "| 50 kernels that wait for each other | 10.0 | 12.0 | 50.0 | 50 | 40.0 | 20.0 | 50 | 0.40 | 0.25 |"
    ]
    assert "`python -m benchmarks.calls`" in page


def test_a_case_is_measured_in_its_own_process() -> None:
    found = calls.measure_apart("native", "one")
    assert found["us"] > 0 and found["launches"] == 1


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_model_call_is_broken_down_by_kind(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakdown, "SECONDS", 0.0)
    # as eager multiplies: other calls have the dispatcher between
    table = breakdown.breakdown("gpt2", train=train, options={"numerics": "eager"})
    assert f"outside of {3 if train else 1} programs" in table
    for kind in ("inputs", "instructions", "kernels", "aten.addmm.out, C function"):
        assert any(line.endswith(f"  {kind}") for line in table.splitlines()), kind
