"""Core ATen operators and prims are generated or taken apart, but for those of which the page says why they
are not.
"""

from __future__ import annotations

from integration_tests.operators.core_operators import REASONS, core_operators, core_section
from integration_tests.operators.coverage import renewed


def test_calls_have_reasons() -> None:
    assert [one.name for one in core_operators() if one.kind == "ATen" and one.reason is None] == []


def test_no_reason_is_stale() -> None:
    calls = {one.name.rpartition(".")[0] for one in core_operators() if one.kind == "ATen"}
    calls |= {one.name for one in core_operators() if one.kind == "ATen"}
    assert {name for names in REASONS.values() for name in names.split()} <= calls


def test_rows_of_operators_are_renewed_beside_the_section() -> None:
    rows = [("abs", "generated", "generated", ""), ("mm", "ATen", "mixed", "`aten.mm.out`")]
    table = "".join(f"| `{name}` | {one} | {other} | {calls} |\n" for name, one, other, calls in rows)
    new = ("mm", "generated", "generated", "")
    assert renewed(table + core_section(), [new]) == [rows[0], new]
