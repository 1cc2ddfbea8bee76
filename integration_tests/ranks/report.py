"""The tables that the command prints, of records as they stand in its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
ORDER = ("coilwork", "inductor", "eager")


def write_tables(records: Sequence[Record]) -> str:
    """Every check on a line, then the table of times."""
    checks = [record for record in records if record["kind"] != "measured"]
    measured = [record for record in records if record["kind"] == "measured"]
    parts = [_align([_check_row(record) for record in checks])] if checks else []
    if measured:
        head = ("case", "ms ours | inductor | eager", "collectives ms", "hidden", "kernels ms", "peak GB")
        rows = [_measured_row(record) for record in measured]
        parts.append(_align([head, *rows]))
    return "\n\n".join(parts)


def _check_row(record: Record) -> tuple[str, ...]:
    answer = record.get("answer") or {}
    said = ", ".join(
        f"{name} {value:.2g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in answer.items()
        if name not in ("error", "limit", "move", "losses", "held_bytes")
    )
    outcome = "ok" if not record["error"] else "WRONG"
    error = " ".join(record["error"].split())[:300]
    return outcome, record["name"], f"{record['seconds']:.0f} s", error or said


def _measured_row(record: Record) -> tuple[str, ...]:
    answer = record.get("answer") or {}
    if not answer:
        return record["name"], record["error"].split("\n")[0][:90], "", "", "", ""

    def each(name: str, scale: float, digits: int) -> str:
        values = [answer.get(backend, {}).get(name) for backend in ORDER]
        return " | ".join("-" if value is None else f"{value * scale:.{digits}f}" for value in values)

    shares = []
    for backend in ORDER:
        found = answer.get(backend, {})
        spent = found.get("collectives_ms")
        shares.append(f"{100 * found['hidden_ms'] / spent:.0f}%" if spent else "-")
    return (
        record["name"],
        each("ms", 1, 2),
        each("collectives_ms", 1, 2),
        " | ".join(shares),
        each("kernels_ms", 1, 2),
        each("peak_bytes", 1e-9, 2),
    )


def _align(rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
