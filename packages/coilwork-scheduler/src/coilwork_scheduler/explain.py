"""The record of decisions as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.kernels import Decision


def explain(decisions: Iterable[Decision]) -> str:
    """One line per decision: verdict, rule, subjects, reason, numbers; columns are aligned."""
    rows = [
        (
            "yes" if decision.accepted else "no",
            decision.rule,
            ", ".join(f"%{subject}" for subject in decision.subjects),
            decision.reason,
            " ".join(f"{name}={value:g}" for name, value in decision.numbers),
        )
        for decision in decisions
    ]
    table = [("done", "rule", "buffers", "reason", "numbers"), *rows]
    widths = [max(len(row[k]) for row in table) for k in range(5)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines) + "\n"
