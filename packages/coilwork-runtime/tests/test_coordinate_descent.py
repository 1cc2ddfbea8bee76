"""The search over tables of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_sample_kernels import rewrite, triton_kernel, version

from coilwork_runtime.triton_kernels.autotune.coordinate_descent import (
    Bench,
    Config,
    SearchResult,
    Space,
    Trial,
    descend,
    find_fastest_trial,
)

WIDTHS = tuple(2**k for k in range(12))
WARPS = (1, 2, 4, 8, 16)
SPACE = Space.from_spec(
    rewrite(
        triton_kernel(),
        configs=({"XBLOCK": 64, "YBLOCK": 64, "num_warps": 4},),
        versions=(version({"XBLOCK": WIDTHS, "YBLOCK": WIDTHS, "num_warps": WARPS}),),
    )
)
Cost = Callable[[int, int, int], float | None]


def config(x: int, y: int, warps: int) -> Config:
    return {"XBLOCK": x, "YBLOCK": y, "num_warps": warps}


@dataclass
class Table:
    """Times by a formula; None does not build. `asked` are the configurations of each round."""

    cost: Cost
    asked: list[list[Config]] = field(default_factory=list)
    said: list[tuple[int, float | None]] = field(default_factory=list)
    rounds: int = 1000
    again: Callable[[Trial, Trial], tuple[float, float]] | None = None

    def trial(self, c: Config) -> Trial:
        milliseconds = self.cost(c["XBLOCK"], c["YBLOCK"], c["num_warps"])
        return Trial(config=c, milliseconds=milliseconds, reason="" if milliseconds else "does not build")

    def evaluate(self, configs: Sequence[Config], current: Trial) -> list[Trial]:
        self.asked.append(list(configs))
        return [self.trial(c) for c in configs]

    def repeated(self, one: Trial, other: Trial) -> tuple[float, float]:
        assert one.milliseconds is not None and other.milliseconds is not None
        return one.milliseconds, other.milliseconds

    def search(self, *starts: Config, most: int = 1000) -> SearchResult | None:
        bench = Bench(
            evaluate=self.evaluate,
            again=self.again or self.repeated,
            told=lambda trials, best: self.said.append((trials, best.milliseconds)),
            over=lambda: len(self.asked) >= self.rounds,
        )
        return descend([self.trial(c) for c in starts], SPACE, bench, most=most)


def bowl(x: int, y: int, warps: int) -> float:
    """Least at 256, 4, 8; a power of two off costs a tenth."""
    off = abs(x.bit_length() - 9) + abs(y.bit_length() - 3) + abs(warps.bit_length() - 4)
    return 1.0 + 0.1 * off


def ravine(x: int, y: int, warps: int) -> float:
    """Along x * y = 1024 it gets cheaper towards 256; beside that it is dear."""
    if x * y != 1024:
        return 9.0
    return 2.0 + 0.1 * abs(x.bit_length() - 9)


def test_a_convex_table_is_descended_to_its_bottom() -> None:
    table = Table(bowl)
    found = table.search(config(32, 1, 4), config(1, 1, 1))
    assert found is not None and found.best.config == config(256, 4, 8)
    assert len(found.proposed) == 2
    asked = [tuple(c.items()) for batch in table.asked for c in batch]
    assert len(asked) == len(set(asked)) == len(found.tried)


def test_a_ravine_takes_two_parameters_at_once() -> None:
    found = Table(ravine).search(config(1024, 1, 4))
    assert found is not None and found.best.config == config(256, 4, 4)


def test_a_hole_is_stepped_over() -> None:
    found = Table(lambda x, y, warps: None if x == 64 else bowl(x, y, warps)).search(config(32, 4, 8))
    assert found is not None and found.best.config == config(256, 4, 8)


def test_a_local_minimum_is_where_it_ends() -> None:
    def two_valleys(x: int, y: int, warps: int) -> float:
        return 0.5 if x == 1 else bowl(x, y, warps)

    found = Table(two_valleys).search(config(512, 4, 8))
    assert found is not None and found.best.config == config(256, 4, 8)


def test_the_best_candidate_is_where_it_starts() -> None:
    table = Table(bowl)
    table.search(config(1, 1, 1), config(256, 4, 4), config(2, 1, 1))
    assert config(256, 4, 8) in table.asked[0]


def test_what_does_not_build_is_no_candidate() -> None:
    def holed(x: int, y: int, warps: int) -> float | None:
        return None if (x, y, warps) == (256, 4, 8) or x in (64, 128) else bowl(x, y, warps)

    found = Table(holed).search(config(32, 1, 4))
    assert found is not None and found.best.config["XBLOCK"] == 32
    assert any(trial.reason and trial.milliseconds is None for trial in found.tried)
    assert Table(lambda *_: None).search(config(32, 1, 4)) is None


def test_the_number_of_trials_is_bounded() -> None:
    for most in (0, 1, 3, 10):
        table = Table(bowl)
        found = table.search(config(32, 1, 4), most=most)
        assert found is not None and len(found.tried) == sum(map(len, table.asked)) <= most
        assert found.best.milliseconds is not None and found.best.milliseconds <= bowl(32, 1, 4)


def test_no_round_starts_when_time_is_up() -> None:
    table = Table(bowl, rounds=2)
    found = table.search(config(1, 1, 1))
    assert found is not None and len(table.asked) == 2
    assert found.best.milliseconds == pytest.approx(bowl(1, 1, 1) - 0.2)


def test_small_gains_and_gains_that_do_not_repeat_are_none() -> None:
    def flat(x: int, y: int, warps: int) -> float:
        return 1.0 if x == 32 else 0.985

    found = Table(flat).search(config(32, 1, 4))
    assert found is not None and found.best.config == config(32, 1, 4)
    lucky = Table(bowl, again=lambda one, other: (1.0, 1.0)).search(config(32, 1, 4))
    assert lucky is not None and lucky.best.config == config(32, 1, 4)


def test_the_next_best_wins_where_the_best_does_not_repeat() -> None:
    def again(one: Trial, other: Trial) -> tuple[float, float]:
        return (2.0, 1.0) if one.config["XBLOCK"] == 64 else (0.5, 1.0)

    def cost(x: int, y: int, warps: int) -> float:
        return {(64, 1, 4): 0.5, (32, 2, 4): 0.6}.get((x, y, warps), 1.0)

    found = Table(cost, again=again).search(config(32, 1, 4))
    assert found is not None and found.best.config == config(32, 2, 4)


def test_progress_is_told_round_by_round() -> None:
    table = Table(bowl)
    found = table.search(config(64, 4, 8))
    assert found is not None
    assert [trials for trials, _ in table.said] == sorted({trials for trials, _ in table.said})
    assert table.said[-1] == (1 + len(found.tried), 1.0)


def test_ties_go_to_the_earlier_candidate() -> None:
    trials = [Trial(config={"k": k}, milliseconds=ms) for k, ms in enumerate([1.0, 0.99, None, 1.1])]
    assert find_fastest_trial(trials) is trials[0]
    assert find_fastest_trial(trials[1:]) is trials[1]
    assert find_fastest_trial([trials[2]]) is None


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(WIDTHS), st.sampled_from(WIDTHS), st.sampled_from(WARPS)),
        st.floats(0.1, 10) | st.none(),
    ),
    st.tuples(st.sampled_from(WIDTHS), st.sampled_from(WIDTHS), st.sampled_from(WARPS)),
    st.integers(0, 60),
)
def test_any_table_ends_no_worse_than_it_starts(
    costs: dict[tuple[int, int, int], float | None], start: tuple[int, int, int], most: int
) -> None:
    found = Table(lambda *key: costs.get(key, 5.0)).search(config(*start), most=most)
    begin = costs.get(start, 5.0)
    assert (found is None) == (begin is None)
    if found is not None and begin is not None:
        assert found.best.milliseconds is not None and found.best.milliseconds <= begin
        assert len(found.tried) <= most
