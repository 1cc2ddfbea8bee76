"""The page of what was compared with eager: counts, what failed, and what of that passes now."""

from __future__ import annotations

from typing import Any

from integration_tests.comparisons import page, ranges


def unit(op: str, status: str, detail: str = "", way: str = "forward") -> dict[str, Any]:
    key = f"{op}|{way}|float32"
    return {
        "op": op, "way": way, "dtype": "float32", "status": status, "detail": detail, "sample": "", "samples": 3, "unit": key,
    }  # fmt: skip


def seed(number: int, kind: str, detail: str = "") -> dict[str, Any]:
    return {"seed": number, "kind": kind, "level": "graph" if kind == "wrong" else "", "detail": detail}


def test_seeds_that_follow_one_another() -> None:
    assert ranges([7, 1, 2, 3, 9, 8]) == [(1, 3), (7, 9)]
    assert ranges([]) == []


def test_counts_and_failures_are_told() -> None:
    operators = [
        unit("add", "ok"),
        unit("sub", "wrong", "result 0: 1 of 2 differ"),
        unit("cov", "eager"),
        unit("clamp", "strides", "(1, 2) instead of (2, 1)", way="hard"),
    ]
    programs = [
        *(seed(number, "ok") for number in (1, 2)),
        seed(3, "wrong", "result v0: 3 of 4 differ"),
        seed(
            7, "raises", 'File "/home/someone/code.py", line 3\nIndexError: out of | range\n\nSet SOMETHING=1'
        ),
        seed(3, "ok"),
    ]
    text = page(operators, programs)
    assert "| forward | 3 | 9 |" in text and "| hard | 1 | 3 |" in text
    assert "Failures: 2, 1 of them known." in text
    assert "- `sub` forward float32: wrong, result 0: 1 of 2 differ" in text
    assert "- cov forward float32: Dynamo compiles nothing" in text
    assert "| 1 to 3 | 3 | 2 | 0 | 0 | 0 | 1 |" in text and "| all | 4 | 2 | 0 | 0 | 0 | 2 |" in text
    assert "Failed when they ran first: 2; of these 1 pass now." in text
    assert "| 3 | wrong | graph | result v0: 3 of 4 differ | ok |" in text
    assert "| 7 | raises |  | IndexError: out of \\| range | raises |" in text


def test_folders_are_left_out() -> None:
    text = page([unit("add", "wrong", "raised in /home/someone/deep/code.py:3")], [])
    assert "raised in code.py:3" in text and "someone" not in text
