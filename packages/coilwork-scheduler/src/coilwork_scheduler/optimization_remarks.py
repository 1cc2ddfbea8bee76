"""Optimisation remarks: the record of decisions with their reasons, and a table of them for people."""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.kernels import Decision


class Remarks:
    """Collects decisions; keeps those accepted and rejected apart, so that neither crowds out the other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[Decision] = []
        self._accepted = 0
        self._rejected = 0

    def note(
        self, rule: str, subjects: tuple[str, ...], accepted: bool, reason: str, **numbers: float
    ) -> None:
        """Record one decision, unless there are too many of its kind."""
        count = self._accepted if accepted else self._rejected
        if count >= self._limit // 2:
            return
        if accepted:
            self._accepted += 1
        else:
            self._rejected += 1
        self._kept.append(
            Decision(
                rule=rule, subjects=subjects, accepted=accepted, reason=reason, numbers=tuple(numbers.items())
            )
        )

    def extend(self, decisions: Iterable[Decision]) -> None:
        """Record `decisions` in order, as far as there are not too many of their kinds."""
        for d in decisions:
            self.note(d.rule, d.subjects, d.accepted, d.reason, **dict(d.numbers))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All that was kept, in order."""
        return tuple(self._kept)


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
