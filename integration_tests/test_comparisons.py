"""The page of what was compared with eager: counts, what failed, and what of that passes now; and the
summaries it is made of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from integration_tests.comparison_summaries import (
    ProgramRun,
    add,
    load,
    of_modules,
    of_operators,
    of_programs,
    ranges,
)
from integration_tests.comparisons import page

ROOT = Path(__file__).resolve().parents[1]


def unit(op: str, status: str, detail: str = "", way: str = "forward") -> dict[str, Any]:
    key = f"{op}|{way}|float32"
    return {
        "op": op, "way": way, "dtype": "float32", "status": status, "detail": detail, "sample": "",
        "samples": 3, "unit": key,
    }  # fmt: skip


def seed(number: int, kind: str, detail: str = "") -> dict[str, Any]:
    return {"seed": number, "kind": kind, "level": "graph" if kind == "wrong" else "", "detail": detail}


OPERATORS = [
    unit("add", "ok"),
    unit("sub", "wrong", "result 0: 1 of 2 differ"),
    unit("cov", "eager"),
    unit("clamp", "strides", "(1, 2) instead of (2, 1)", way="hard"),
]
PROGRAMS = [
    *(seed(number, "ok") for number in (1, 2)),
    seed(3, "wrong", "result v0: 3 of 4 differ"),
    seed(7, "raises", 'File "/home/someone/code.py", line 3\nIndexError: out of | range\n\nSet SOMETHING=1'),
    seed(3, "ok"),
]
MODULES = [
    {"module": "nn.A", "sample": "nn.A(1)", "status": "ok", "good": True, "detail": ""},
    {
        "module": "nn.A",
        "sample": "nn.A(2)",
        "status": "wrong",
        "good": False,
        "detail": "output: 3 of 4 differ",
    },
    {"module": "nn.B", "sample": "nn.B()", "status": "refused", "good": True, "detail": "no"},
]


def test_consecutive_seeds_become_ranges() -> None:
    assert ranges([7, 1, 2, 3, 9, 8]) == [(1, 3), (7, 9)]
    assert ranges([]) == []


def test_the_page_shows_counts_and_failures() -> None:
    runs = [
        of_operators(OPERATORS, torch="2.1"),
        of_programs(PROGRAMS, torch="2.1"),
        of_modules(MODULES, torch="2.2"),
    ]
    text = page(runs)
    assert "with torch 2.2, 2.1, and" in text
    assert "| forward | 3 | 9 |" in text and "| hard | 1 | 3 |" in text
    assert "Failures: 2, 1 of them known, 0 in units that pass now." in text
    assert "- `sub` forward float32: wrong, result 0: 1 of 2 differ" in text
    assert "- cov forward float32: Dynamo compiles nothing" in text
    assert "| 1 to 3 | 3 | 2 | 0 | 0 | 0 | 1 |" in text and "| all | 4 | 2 | 0 | 0 | 0 | 2 |" in text
    assert "Failed when they ran first: 2; of these 1 pass now." in text
    assert "| 3 | wrong | graph | result v0: 3 of 4 differ | ok |" in text
    assert "| 7 | raises |  | IndexError: out of \\| range | raises |" in text
    assert "| sweep | modules | ok | refused | wrong |" in text and "| 1 | 2 | 1 | 1 | 1 |" in text
    assert "- nn.A(2): wrong, output: 3 of 4 differ" in text


def test_fixed_failures_are_counted_apart() -> None:
    later = of_operators([unit("sub", "ok"), unit("clamp", "strides", way="hard")], torch="2.1")
    text = page([of_operators(OPERATORS, torch="2.1"), later])
    assert "Failures: 2, 1 of them known, 1 in units that pass now." in text
    assert "result 0: 1 of 2 differ; passes now" in text


def test_messages_hold_no_folders() -> None:
    text = page([of_operators([unit("add", "wrong", "raised in /home/someone/deep/code.py:3")], torch="2.1")])
    assert "raised in code.py:3" in text and "someone" not in text


def test_summaries_round_trip(tmp_path: Path) -> None:
    runs = [
        of_operators(OPERATORS, torch="2.1"),
        of_programs(PROGRAMS, torch="2.1"),
        of_modules(MODULES, torch="2.1"),
    ]
    names = [add(run, tmp_path).name for run in [*runs, runs[1]]]
    assert names == ["operators-001.json", "programs-001.json", "modules-001.json", "programs-002.json"]
    assert page(load(tmp_path)) == page([*runs, runs[1]])


def test_a_seed_that_ran_before_is_not_counted_again(tmp_path: Path) -> None:
    first = of_programs(PROGRAMS, torch="2.1")
    later = of_programs([seed(7, "ok"), seed(2, "ok"), seed(8, "torch")], torch="2.1", before=[first])
    assert [(one["first"], one["last"]) for one in later.ranges] == [(8, 8)]
    text = page([first, later])
    assert "| all | 5 | 2 | 0 | 1 | 0 | 2 |" in text
    assert "Failed when they ran first: 2; of these 2 pass now." in text
    assert "IndexError: out of \\| range | ok |" in text


def test_the_page_is_up_to_date() -> None:
    runs = load(ROOT / "docs" / "comparisons")
    assert sum(isinstance(run, ProgramRun) for run in runs) > 0
    assert (ROOT / "docs" / "comparisons.md").read_text() == page(runs)
