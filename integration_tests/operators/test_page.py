"""The page of sweeps: what is merged, counted and told of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration_tests.operators.page import Results, merged, page, read
from integration_tests.operators.units import Unit

HERE, THERE = "a CPU of 4 cores, torch 2.0.0", "two cards, torch 2.1.0"


def record(
    op: str, status: str, *, way: str = "forward", dtype: str = "float32", **more: Any
) -> dict[str, Any]:
    unit = Unit(op=op, way=way, dtype=dtype)
    told = {"op": op, "way": way, "dtype": dtype, "status": status, "unit": unit.key}
    return {**told, "samples": 3, "detail": "", "sample": "", **more}


FIRST = Results(
    place=HERE,
    records=[
        record("add", "ok"),
        record("mul", "timeout", detail="", sample="float32[2]"),
        record("mul", "wrong", way="backward", detail="1 instead of 2"),
        record("mul", "ok", dtype="int64"),
        record(
            "div",
            "torch",
            detail="BackendCompilerFailed: backend='<a.B object at 0x7f>' raised:\nTypeError: a | b",
        ),
        record("__rmod__", "wrong", dtype="int64", detail="-1 instead of 1"),
        record("add", "ok", way="errors", dtype=""),
    ],
)
AGAIN = Results(place=THERE, records=[record("mul", "ok", samples=700)])


def test_the_last_of_a_unit_counts() -> None:
    found = merged([FIRST, AGAIN])
    assert [one["status"] for one in found if one["unit"] == "mul|forward|float32"] == ["ok"]
    assert len(found) == len(FIRST.records)


def test_pairs_are_counted_by_type_and_by_way() -> None:
    lines = page([[FIRST, AGAIN]], {}).splitlines()
    assert "## A CPU of 4 cores, torch 2.0.0" in lines
    assert "| type | pairs | equal | wrong | torch's own | share equal |" in lines
    assert "| `float32` | 3 | 1 | 1 | 1 | 50.00 % |" in lines
    assert "| all | 5 | 2 | 2 | 1 | 50.00 % |" in lines
    assert "| `forward` | 5 | 3 | 1 | 1 | 75.00 % |" in lines
    assert any("those of 1 operators (3 calls), and accepts some of 0;" in line for line in lines)


def test_what_was_measured_again_is_told() -> None:
    text = page([[FIRST, AGAIN]], {})
    assert f"On {THERE}:\n\n- `mul` forward float32: timeout before, now equal (700 samples)\n" in text
    assert "50.00 %**, of 1 units what was measured again (below).\n" in text
    assert "easured again" not in page([[FIRST]], {})


def test_exceptions_come_with_their_reasons() -> None:
    text = page([[FIRST, AGAIN]], {"mul|backward|float32": "mended since"})
    assert "- `mul` backward float32: wrong; 1 instead of 2 (mended since)\n" in text
    assert "- `__rmod__` forward int64: wrong; known: the remainder of a division by 0" in text
    assert "| `div` | forward | float32 | TypeError: a \\| b |\n" in text
    assert "- `mul` forward float32: timeout; float32[2]\n" in page([[FIRST]], {})


def test_where_files_were_made_is_given_or_recorded(tmp_path: Path) -> None:
    given, recorded = tmp_path / "given.jsonl", tmp_path / "recorded.jsonl"
    given.write_text(json.dumps(record("add", "ok")) + "\n")
    recorded.write_text(json.dumps(record("add", "ok", place=THERE)) + "\n")
    found = read(f"{given}={HERE}+{recorded}")
    assert [results.place for results in found] == [HERE, THERE]
    with pytest.raises(SystemExit, match="does not say where"):
        read(str(given))
