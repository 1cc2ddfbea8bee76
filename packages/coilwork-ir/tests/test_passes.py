"""Tables of passes run in order, are observed, print themselves, and notice an order without reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coilwork_ir.passes import Before, Pass, PassTable

TABLE: PassTable[int, int] = PassTable(
    passes=(
        Pass(name="add", run=lambda value, by: value + by, why="numbers grow"),
        Pass(name="keep", run=lambda value, by: value, why="nothing to do"),
        Pass(name="double", run=lambda value, by: 2 * value, why="they grow faster"),
    ),
    order=(Before("add", "keep", "of no account"), Before("keep", "double", "of no account either")),
)


def test_passes_run_in_order_and_are_observed() -> None:
    seen: list[tuple[str, int, int]] = []
    assert TABLE.run(1, 3, observe=lambda *step: seen.append(step)) == 8
    assert seen == [("add", 1, 4), ("keep", 4, 4), ("double", 4, 8)]


def test_a_selection_runs_those_alone() -> None:
    some = TABLE.select("double", "add")
    assert some.names == ("add", "double") and some.run(1, 3) == 8 and some.order == ()
    with pytest.raises(ValueError, match="there is no pass halve; passes: add, keep, double"):
        TABLE.select("add", "halve")


def test_a_table_in_order_has_no_violations() -> None:
    assert TABLE.violations() == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (replace(TABLE, order=TABLE.order[:1]), "nothing says why keep runs before double"),
        (replace(TABLE, passes=TABLE.passes[::-1]), "add must run before keep: of no account"),
        (replace(TABLE, passes=TABLE.passes[:2]), "there is no pass double"),
        (replace(TABLE, passes=(*TABLE.passes, TABLE.passes[0])), "add runs twice"),
    ],
)
def test_violations_say_what_is_wrong(table: PassTable[int, int], message: str) -> None:
    assert message in table.violations()


def test_the_table_prints_itself() -> None:
    assert str(TABLE).splitlines() == [
        "1. add: numbers grow",
        "   before keep: of no account",
        "2. keep: nothing to do",
        "   before double: of no account either",
        "3. double: they grow faster",
    ]
