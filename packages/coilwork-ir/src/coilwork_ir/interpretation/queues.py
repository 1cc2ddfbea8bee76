"""Streams of an interpreted program: what is put on one runs at once, or as late and in any order as its
waits allow.

In turns at random a program shows whether its waits say enough: results depend on the turns where they do
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from coilwork_ir.streams import (
    OWN,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
    is_host,
)

Work: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place on a stream: behind so many of its items."""

    stream: str
    position: int


class Queues:
    """The streams of one run. `turns` chooses whose turn it is; without it work is done when it is given."""

    def __init__(self, turns: Random | None) -> None:
        self._turns = turns
        self._items: dict[str, list[Work | _Mark]] = {OWN: []}
        self._done: dict[str, int] = {OWN: 0}
        self._events: dict[str, _Mark] = {}
        # those of the host, which does at once what it is given
        self._host: set[str] = set()

    @property
    def is_at_once(self) -> bool:
        """True if work is done when it is given."""
        return self._turns is None

    def put(self, stream: str, work: Work) -> None:
        """Give `stream` some work."""
        if self._turns is None or stream in self._host:
            work()
            return
        self._items[stream].append(work)
        for _ in range(self._turns.randrange(3)):
            self._take_turn()

    def follow(self, instruction: StreamInstruction) -> None:
        """Do what `instruction` says."""
        match instruction:
            case ForkStream(stream=stream, device=device, after=after):
                if is_host(device):
                    self._host.add(stream)
                self._items[stream] = [self._end(after)]
                self._done[stream] = 0
            case RecordEvent(event=event, stream=stream):
                self._events[event] = self._end(stream)
            case WaitEvent(event=event, stream=None):
                self._run_to(self._events[event])
            case WaitEvent(event=event, stream=str(stream)):
                self._items[stream].append(self._events[event])
            case JoinStream(stream=stream, into=into):
                self._items[into].append(self._end(stream))

    def synchronize(self, stream: str = OWN) -> None:
        """Wait until all that `stream` was given is done."""
        self._run_to(self._end(stream))

    def finish(self) -> None:
        """Wait until all is done."""
        for stream in self._items:
            self.synchronize(stream)

    def _end(self, stream: str) -> _Mark:
        return _Mark(stream, len(self._items[stream]))

    def _run_to(self, mark: _Mark) -> None:
        while self._done[mark.stream] < mark.position:
            self._take_turn()

    def _take_turn(self) -> None:
        """Do the next of some stream's items that can be done."""
        ready = [stream for stream in self._items if self._is_ready(stream)]
        if not ready:
            return
        stream = ready[0] if self._turns is None else self._turns.choice(ready)
        item = self._items[stream][self._done[stream]]
        self._done[stream] += 1
        if not isinstance(item, _Mark):
            item()

    def _is_ready(self, stream: str) -> bool:
        position = self._done[stream]
        if position == len(self._items[stream]):
            return False
        item = self._items[stream][position]
        return not isinstance(item, _Mark) or self._done[item.stream] >= item.position
