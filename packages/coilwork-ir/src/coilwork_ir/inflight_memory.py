"""Memory in use: what reads or writes it after the instruction that began it, and until when.

Two things do. An operator may go on behind its call, as collectives do: it starts in one call and ends in
another, which waits for a result of it. A flight is one such operation: the memory that it uses meanwhile,
and the part of that memory that has to be waited for. Several flights may use one piece of memory. A wait for
memory ends every flight that has to be waited for there; a flight with several such pieces ends with the last
of them.

And what is put on a stream runs beside what is put on another, until an event orders the two. Each stream has
a clock: how much of each stream is done where its next work begins (vector clocks: Mattern 1988; as detectors
of races keep them: Flanagan and Freund, FastTrack, 2009). The host, which goes through the instructions, is
one more of them: work begins behind all it has done, and it goes on at once.

Each piece of memory has a home: where it is allocated and given back, the call's own stream or the host. It
is in use until no flight has it and all that used it is behind its home's clock. Planner and verifier ask
this one class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
    is_host,
)

K = TypeVar("K", bound=Hashable)

HOST: Final = None
Actor: TypeAlias = str | None
"""A stream by name, or the host."""
_Clock: TypeAlias = dict[Actor, int]


@dataclass(slots=True)
class _Flight(Generic[K]):
    """One operation: the memory that it uses, and what is still to be waited for; never anything: it does not
    end.
    """

    memory: tuple[K, ...]
    pending: dict[K, None]


@dataclass(slots=True)
class _Uses:
    """The last use of memory that writes, and those that read what it wrote: how far each actor was."""

    written: _Clock = field(default_factory=dict)
    read: _Clock = field(default_factory=dict)


class InFlight(Generic[K]):
    """The memory in use at one place of a walk over instructions. Keys name pieces of memory, not buffers."""

    def __init__(self) -> None:
        self._flights: dict[K, list[_Flight[K]]] = {}
        # nothing of what follows is kept until the first stream or copy that the host does not wait for
        self._clocks: dict[Actor, _Clock] = {}
        self._events: dict[str, _Clock] = {}
        self._uses: dict[K, _Uses] = {}
        self._on_host: set[K] = set()
        self._host_streams: set[Actor] = set()
        self._open: dict[K, None] = {}

    # Operations that go on behind their calls

    def start(self, memory: Iterable[K], until: Iterable[K]) -> None:
        """Note that an operation uses `memory` from now on, until all of `until` was waited for.

        If `until` is empty, the use never ends.
        """
        pending = dict.fromkeys(until)
        flight = _Flight(tuple(dict.fromkeys((*memory, *pending))), pending)
        for key in flight.memory:
            self._flights.setdefault(key, []).append(flight)

    def wait(self, keys: Iterable[K]) -> tuple[K, ...]:
        """Return a call waits for `keys`; the memory of the flights that end there, each once."""
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

    def is_flying(self, key: K) -> bool:
        """Tell if an operation that goes on behind its call uses the memory `key`."""
        return key in self._flights

    def awaits(self, key: K) -> bool:
        """Tell if an operation writes the memory `key`, which is to be waited for."""
        return any(key in flight.pending for flight in self._flights.get(key, ()))

    def list_waits(self, key: K) -> tuple[K, ...]:
        """Return the memory to wait for until no operation uses `key`, without what cannot be waited for."""
        return tuple(dict.fromkeys(k for flight in self._flights.get(key, ()) for k in flight.pending))

    # Work on streams

    def open_streams(self) -> None:
        """Follow streams from here on; else that begins with the first of them."""
        self._begin()

    def reach(self, stream: Actor) -> int:
        """Count the uses of the call's own stream that are done where the next work of `stream` begins."""
        return self._issue(stream).get(OWN, 0)

    def place_on_host(self, key: K) -> None:
        """The memory `key` is the host's: it is given back when the host is behind all that uses it."""
        self._on_host.add(key)

    def follow(self, instruction: StreamInstruction) -> tuple[K, ...]:
        """Take an instruction on streams into account; the memory that is in use no more, each once."""
        self._begin()
        match instruction:
            case ForkStream(stream=stream, device=device, after=after):
                if is_host(device):
                    self._host_streams.add(stream)
                else:
                    self._clocks[stream] = dict(self._issue(after))
                return ()
            case RecordEvent(event=event, device=device, stream=stream):
                self._events[event] = dict(self._issue(HOST if is_host(device) else stream))
                return ()
            case WaitEvent(event=event, stream=waiting):
                _merge(self._issue(waiting), self._events[event])
            case JoinStream(stream=stream, into=into):
                _merge(self._issue(into), self._issue(stream))
                self._clocks.pop(stream, None)
        return self._close()

    def use(self, actor: Actor, reads: Iterable[K], writes: Iterable[K]) -> tuple[K, ...]:
        """Work of `actor` reads and writes memory; that of it which other work may use at the same time."""
        if not self._clocks:
            return ()
        clock = self._issue(actor)
        actor = HOST if actor in self._host_streams else actor
        clock[actor] = clock.get(actor, 0) + 1
        races: dict[K, None] = {}
        for key in reads:
            uses = self._uses.setdefault(key, _Uses())
            if not _is_behind(clock, uses.written):
                races[key] = None
            uses.read[actor] = clock[actor]
            self._open_if_busy(key)
        for key in writes:
            uses = self._uses.setdefault(key, _Uses())
            if not (_is_behind(clock, uses.written) and _is_behind(clock, uses.read)):
                races[key] = None
            self._uses[key] = _Uses(written={actor: clock[actor]})
            self._open_if_busy(key)
        return tuple(races)

    def copy(self, copy: Copy, source: K, target: K) -> tuple[K, ...]:
        """Note the uses that a copy makes of memory, as `use` does.

        A copy that blocks lets the host wait for the copy's stream.
        """
        if copy.non_blocking:
            self._begin()
        actor = HOST if {source, target} <= self._on_host else copy.stream
        races = self.use(actor, (source,), (target,))
        if self._clocks and not copy.non_blocking:
            _merge(self._clocks[HOST], self._issue(actor))
        return races

    def _open_if_busy(self, key: K) -> None:
        if not self._is_at_rest(key):
            self._open[key] = None

    def _begin(self) -> None:
        if not self._clocks:
            self._clocks = {OWN: {}, HOST: {}}

    def _issue(self, actor: Actor) -> _Clock:
        """Return the clock of `actor`, whom the host gives something now. The host has no streams but
        itself.
        """
        if actor is HOST or actor in self._host_streams:
            return self._clocks[HOST]
        clock = self._clocks[actor]
        _merge(clock, self._clocks[HOST])
        return clock

    def _close(self) -> tuple[K, ...]:
        """Return the memory that no stream uses any more."""
        closed = tuple(key for key in self._open if self._is_at_rest(key))
        for key in closed:
            del self._open[key]
        return tuple(key for key in closed if key not in self._flights)

    def _is_at_rest(self, key: K) -> bool:
        """Tell if all that used `key` on streams is behind its home's clock."""
        uses = self._uses.get(key)
        if uses is None:
            return True
        home = self._issue(HOST if key in self._on_host else OWN)
        return _is_behind(home, uses.written) and _is_behind(home, uses.read)

    # Both

    def __contains__(self, key: K) -> bool:
        """Tell if the memory `key` is in use: by an operation, or on a stream that its home is not behind."""
        return key in self._flights or not self._is_at_rest(key)

    def memory(self) -> tuple[K, ...]:
        """Return all memory that is in use."""
        busy = (key for key in self._open if not self._is_at_rest(key))
        return tuple(dict.fromkeys((*self._flights, *busy)))


def _merge(clock: _Clock, other: _Clock) -> None:
    for actor, count in other.items():
        if clock.get(actor, 0) < count:
            clock[actor] = count


def _is_behind(clock: _Clock, uses: _Clock) -> bool:
    return all(clock.get(actor, 0) >= count for actor, count in uses.items())
