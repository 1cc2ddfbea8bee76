"""Units, verdicts and the progress file of a sweep: what is counted, and what is done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration_tests.operators.calls import WAYS
from integration_tests.operators.database import operators
from integration_tests.operators.exceptions import KNOWN, KnownException
from integration_tests.operators.sweep import read_progress
from integration_tests.operators.units import DTYPES, Unit, chosen_names, units
from integration_tests.operators.verdicts import (
    FAILURES,
    MEANING,
    NOT_OURS,
    VERDICTS,
    is_failure,
    others,
    pairs,
    table,
)


def record(op: str, status: str, *, way: str = "forward", dtype: str = "float32") -> dict[str, Any]:
    unit = Unit(op=op, way=way, dtype=dtype)
    return {"op": op, "way": way, "dtype": dtype, "status": status, "samples": 3, "unit": unit.key}


def test_every_status_has_a_meaning_and_every_meaning_a_side() -> None:
    assert set(MEANING.values()) == set(VERDICTS)
    assert {"equal", *NOT_OURS, *FAILURES} == set(VERDICTS)


def test_a_pair_is_as_bad_as_its_worst_way() -> None:
    records = [
        record("add", "ok"),
        record("add", "strides", way="dynamic"),
        record("add", "skipped", way="backward"),
    ]
    assert pairs(records) == {("add", "float32"): "wrong"}


def test_a_pair_with_one_way_compared_is_equal() -> None:
    assert pairs([record("add", "ok"), record("add", "skipped", way="backward")]) == {
        ("add", "float32"): "equal"
    }


def test_the_table_counts_pairs_and_rejections() -> None:
    records = [
        record("add", "ok"),
        record("mul", "wrong"),
        record("mul", "ok", dtype="int64"),
        record("add", "ok", way="errors", dtype=""),
        record("mul", "accepted", way="errors", dtype=""),
    ]
    text = table(records)
    assert "equal: 2 of 3 pairs compared, 66.67 %" in text
    assert "rejected for 1 operators (6 calls), accepted for 1" in text


def test_what_others_do_is_told_once_per_way() -> None:
    records = [
        {**record("add", "torch"), "detail": "1 instead of 2\nmore"},
        {**record("add", "torch", dtype="int64"), "detail": "3 instead of 4"},
        {**record("mul", "eager"), "detail": ""},
        record("mul", "wrong", way="dynamic"),
    ]
    assert others(records) == [
        "add forward float32,int64: aot_eager, in which nothing is ours, does so too: 1 instead of 2",
        "mul forward float32: Dynamo compiles nothing",
    ]


def test_the_shards_are_all_operators() -> None:
    database = operators()
    parts = [chosen_names(database, shard=f"{k}/4", only="") for k in range(4)]
    assert sorted(name for part in parts for name in part) == sorted(database)


def test_units_of_one_dtype_come_before_those_of_the_next() -> None:
    database = operators()
    found = units(
        database, ["add", "nonzero"], ways=["forward", "errors", "backward"], dtypes=DTYPES, device="cpu"
    )
    assert [unit.key for unit in found[:5]] == [
        "add|forward|float32",
        "nonzero|forward|float32",
        "add|errors|",
        "nonzero|errors|",
        "add|backward|float32",
    ]
    assert sum(unit.way == "errors" for unit in found) == 2
    assert {unit.dtype for unit in found if unit.way == "backward"} == {"float32"}


def test_an_operator_without_float32_is_tried_in_all_ways_all_the_same() -> None:
    found = units(operators(), ["bitwise_and"], ways=["forward", "dynamic"], dtypes=DTYPES, device="cpu")
    assert [unit.dtype for unit in found if unit.way == "dynamic"] == ["int64"]


def test_progress_without_the_failures_and_the_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    records = [record("add", "ok"), record("mul", "wrong"), record("mul", "ok", way="dynamic")]
    path.write_text("".join(json.dumps(one) + "\n" for one in records) + '{"op": "su')
    assert read_progress(path, again=False) == records
    assert read_progress(path, again=True) == [records[0], records[2]]
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("op", "way", "dtype", "status", "covered"),
    [
        ("sum", "forward", "int64", "strides", True),
        ("prod", "dynamic", "int64", "strides", False),
        ("add", "forward", "int64", "strides", False),
        ("sum", "forward", "int64", "wrong", False),
    ],
)
def test_exceptions_are_patterns(op: str, way: str, dtype: str, status: str, covered: bool) -> None:
    known = KnownException(
        ops="sum prod*", ways="forward", dtypes="int*", statuses="strides", reason="for the test"
    )
    assert known.covers(op, way, dtype, status) is covered


def test_known_exceptions_have_reasons_and_are_of_operators() -> None:
    names = operators()
    for known in KNOWN:
        assert known.reason.endswith(".")
        assert set(known.statuses.split()) <= {status for status in MEANING if MEANING[status] in FAILURES}
        assert any(
            known.covers(name, way, dtype, known.statuses.split()[0])
            for name in names
            for way in (*WAYS, "errors")
            for dtype in DTYPES
        )


def test_failures_are_what_is_ours() -> None:
    assert is_failure(record("add", "wrong")) and is_failure(record("add", "died"))
    assert not is_failure(record("add", "torch")) and not is_failure(record("add", "eager"))
