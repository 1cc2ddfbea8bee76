"""The meter of the predicted peak."""

from __future__ import annotations

import pytest

from coilwork_ir.index import Expr, as_expr, floordiv, maximum, symbol
from coilwork_scheduler.memory import liveness
from coilwork_scheduler.memory.liveness import MOST_CANDIDATES, PeakMeter

N, M = symbol("n", lo=0), symbol("m", lo=0)


def peak_of(*changes: Expr | int) -> Expr | None:
    """The peak when each of `changes` is allocated, and given back before the next one."""
    meter = PeakMeter()
    for change in map(as_expr, changes):
        meter.grow(change)
        meter.shrink(change)
    return meter.peak()


def test_nothing_is_a_peak_of_nothing() -> None:
    assert peak_of() is as_expr(0)


def test_the_largest_total_is_found_wherever_it_is() -> None:
    meter = PeakMeter()
    for size in (8, 8, -8, 16, -24, 20):
        if size < 0:
            meter.shrink(as_expr(-size))
        else:
            meter.grow(as_expr(size))
    assert meter.peak() is as_expr(24)
    assert peak_of(4, 30, 2) is as_expr(30)


def test_the_last_total_counts() -> None:
    meter = PeakMeter()
    for size in (1, 2, 3):
        meter.grow(as_expr(size))
    assert meter.peak() is as_expr(6)


def test_totals_that_no_size_decides_between_are_a_maximum() -> None:
    assert peak_of(4 * N, 8 * M, 2 * N) is maximum(4 * N, 8 * M)


def test_more_than_anyone_can_read_is_no_peak() -> None:
    sizes = [symbol(f"s{k}", lo=0) for k in range(MOST_CANDIDATES + 1)]
    assert peak_of(*sizes) is None
    assert peak_of(*sizes[:-1]) is maximum(*sizes[:-1])


def test_what_has_no_value_is_compared_by_proof() -> None:
    quotient = floordiv(M, N)
    assert peak_of(8 * quotient, 4 * quotient) is 8 * quotient


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Expr, Expr]]:
    """What the meter proves, or fails to prove."""
    asked: list[tuple[Expr, Expr]] = []
    provably_le = liveness.provably_le

    def noted(a: Expr, b: Expr) -> bool:
        asked.append((a, b))
        return provably_le(a, b)

    monkeypatch.setattr(liveness, "provably_le", noted)
    return asked


def test_totals_of_different_sizes_are_told_apart_without_proofs(proofs: list[tuple[Expr, Expr]]) -> None:
    # a quotient has no value where all sizes are at their least
    totals = [4 * N * N + maximum(N, 3), 8 * M * M + 4 * M * floordiv(4, M), 4 * N * M + 8 * floordiv(4, M)]
    assert peak_of(*totals) is maximum(*totals)
    assert not proofs


def test_values_spare_proofs_that_would_fail(proofs: list[tuple[Expr, Expr]]) -> None:
    meter = PeakMeter()
    for count in range(1, 100):
        meter.grow(count * N)
        meter.shrink((count - 1) * N)
    assert meter.peak() is not None
    # each total is the largest so far: that it is at least the one before is all that has to be proved
    assert len(proofs) == 98
