"""Memory in flight: what operators go on reading or writing after their calls have returned, and until when.

A collective starts in one call and ends in another, which waits for a result of it. A flight is one such operation: the
memory that it uses meanwhile, and the part of that memory that has to be waited for. Several flights may use one piece of memory. A wait
for memory ends every flight that has to be waited for there; a flight with several such pieces ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Flight(Generic[K]):
    """One operation: the memory that it uses, and what is still to be waited for; never anything: it does not end."""

    memory: tuple[K, ...]
    pending: dict[K, None]


class InFlight(Generic[K]):
    """The flights at one place of a walk over instructions. Keys name pieces of memory, not buffers."""

    def __init__(self) -> None:
        self._flights: dict[K, list[_Flight[K]]] = {}

    def start(self, memory: Iterable[K], until: Iterable[K]) -> None:
        """An operation begins to use `memory`, until all of `until` was waited for."""
        pending = dict.fromkeys(until)
        flight = _Flight(tuple(dict.fromkeys((*memory, *pending))), pending)
        for key in flight.memory:
            self._flights.setdefault(key, []).append(flight)

    def wait(self, keys: Iterable[K]) -> tuple[K, ...]:
        """A call waits for `keys`; the memory of the flights that end there, each once."""
        ended: dict[K, None] = {}
        for key in keys:
            for flight in tuple(self._flights.get(key, ())):
                if key not in flight.pending:
                    continue
                del flight.pending[key]
                if not flight.pending:
                    ended.update(dict.fromkeys(flight.memory))
                    self._end(flight)
        return tuple(ended)

    def _end(self, flight: _Flight[K]) -> None:
        for key in flight.memory:
            left = [other for other in self._flights[key] if other is not flight]
            if left:
                self._flights[key] = left
            else:
                del self._flights[key]

    def __contains__(self, key: K) -> bool:
        """True if an operation still uses the memory `key`."""
        return key in self._flights

    def awaits(self, key: K) -> bool:
        """True if an operation writes the memory `key`, which is to be waited for."""
        return any(key in flight.pending for flight in self._flights.get(key, ()))

    def list_waits(self, key: K) -> tuple[K, ...]:
        """The memory to wait for until no operation uses `key`, without what cannot be waited for."""
        return tuple(dict.fromkeys(k for flight in self._flights.get(key, ()) for k in flight.pending))

    def memory(self) -> tuple[K, ...]:
        """All memory that operations still use."""
        return tuple(self._flights)
