"""Units in parts: the samples of one that has many are checked by whichever workers are free.

How many samples a unit has is known once a worker has made them. It tells, and goes on with the first part;
the other parts come before all units that nobody has begun.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from integration_tests.operators.units import Unit

# Samples that one worker checks: a multiple of how many are compiled together, of fixed sizes and of open
# ones.
SAMPLES: Final = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The samples of `unit` from `first` on, `SAMPLES` of them or what is left."""

    unit: Unit
    first: int = 0


class Parts:
    """What is left to do. Threads take parts of it, and say what those consist of."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._waiting = deque(parts)
        self._unknown: set[Part] = set()
        self._changed = threading.Condition()

    def take(self) -> Part | None:
        """What to do next; None if there is nothing, and nothing will come of what others have taken."""
        with self._changed:
            while not self._waiting and self._unknown:
                self._changed.wait()
            if not self._waiting:
                return None
            part = self._waiting.popleft()
            if part.first == 0:
                self._unknown.add(part)
            return part

    def tell(self, part: Part, samples: int) -> None:
        """The unit of `part`, the first one, has so many samples (0: it came to nothing). Only the first
        telling counts.
        """
        with self._changed:
            if part in self._unknown:
                self._unknown.remove(part)
                others = [Part(unit=part.unit, first=first) for first in range(SAMPLES, samples, SAMPLES)]
                self._waiting.extendleft(reversed(others))
            self._changed.notify_all()

    def give_back(self, part: Part) -> None:
        """`part` was not finished."""
        with self._changed:
            self._waiting.appendleft(part)

    def __len__(self) -> int:
        return len(self._waiting)


def parts_left(units: Sequence[Unit], records: Sequence[Mapping[str, Any]]) -> list[Part]:
    """What `records` hold no outcome of: the rest of units that were begun, then units as a whole."""
    begun: dict[str, set[int]] = defaultdict(set)
    samples: dict[str, int] = {}
    for record in records:
        begun[record["unit"]].add(record.get("first", 0))
        samples[record["unit"]] = max(samples.get(record["unit"], 0), record.get("of", 0))
    rest = [
        Part(unit=unit, first=first)
        for unit in units
        if unit.key in begun
        for first in range(0, samples[unit.key], SAMPLES)
        if first not in begun[unit.key]
    ]
    return rest + [Part(unit=unit) for unit in units if unit.key not in begun]
