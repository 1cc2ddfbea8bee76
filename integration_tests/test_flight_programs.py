"""Programs that communicate, in each of the ways that torch has, give eager's results whoever drives them."""

from __future__ import annotations

from integration_tests.flight_runs import programs_on, run

# between them, each kind of call that a driver writes: lists of results, none, operands that are results,
# branches, open sizes, two graphs
EVERY_DRIVER = (
    "functional_sum", "coalesced", "in_place", "batch_between_two", "in_a_branch", "of_any_size",
    "differentiable",
)  # fmt: skip


def test_communicating_programs_agree_over_two_processes() -> None:
    outcomes = list(run(drivers=("native",)))
    assert [outcome for outcome in outcomes if outcome[2]] == []
    assert len(outcomes) == len(programs_on("cpu"))


def test_communicating_programs_agree_in_other_drivers() -> None:
    names = [program.name for program in programs_on("cpu") if program.name in EVERY_DRIVER]
    drivers = ("python", "fx", "cpp")
    outcomes = list(run(names, drivers))
    assert [outcome for outcome in outcomes if outcome[2]] == []
    assert len(outcomes) == len(drivers) * len(names)
