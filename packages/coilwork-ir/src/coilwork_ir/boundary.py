"""What is known of a program's inputs and results beyond what its graph says: the frontend tells, and the
scheduler and the memory planner count on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What the caller of a program promises and takes.

    Attributes:
        aligned: inputs that kernels may take to start at multiples of 16 bytes, as the program sees to.
        updated: others, which the program overwrites, and whose alignment its caller sees to.
        donated: inputs whose memory the program may have.
        likely: values of size symbols by name, for costs only.
        marked_results: so many of the first results may come back as negated or conjugated; None: all.
    """

    aligned: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    donated: tuple[str, ...] = ()
    likely: tuple[tuple[str, int], ...] = ()
    marked_results: int | None = 0

    def nest(self) -> Boundary:
        """That of a nested graph, whose inputs nobody aligns or gives away."""
        return replace(self, aligned=(), updated=(), donated=(), marked_results=0)


NOTHING_KNOWN: Final = Boundary()
"""That of a graph of which nobody says anything."""
