"""The streams and events of one call of a program, by their numbers in its bytes: the native executor asks
for what it does to them.

Called by name from native/running/running.hpp.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import torch

from coilwork_runtime.streams import fork_stream, join_stream, record_event, synchronize_event, wait_event


class CallStreams:
    """Streams and events so far. Stream 0 is the call's own, torch's current one."""

    def __init__(self) -> None:
        self._streams: dict[int, torch.Stream | None] = {0: None}
        self._events: dict[int, torch.Event | None] = {}
        self._used = ExitStack()

    def order(self, what: int, number: int, other: int, device: str) -> None:
        """Do `what`, one of the wrapper's `native.encoding.Ordering`, to the stream or event `number`."""
        _ORDERS[what](self, number, other, device)

    def close(self) -> None:
        """Make the call's own stream torch's current one again."""
        self._used.close()

    def _fork(self, number: int, other: int, device: str) -> None:
        self._streams[number] = fork_stream(device, self._streams[other])

    def _record(self, number: int, other: int, device: str) -> None:
        self._events[number] = record_event(device, self._streams[other])

    def _wait(self, number: int, other: int, device: str) -> None:
        wait_event(self._events[number], self._streams[other])

    def _synchronize(self, number: int, other: int, device: str) -> None:
        synchronize_event(self._events[number])

    def _join(self, number: int, other: int, device: str) -> None:
        join_stream(self._streams.pop(number), self._streams[other])

    def _use(self, number: int, other: int, device: str) -> None:
        self._used.close()
        stream = self._streams[number]
        if stream is not None:
            self._used.enter_context(stream)


_ORDERS: Final = (
    CallStreams._fork,
    CallStreams._record,
    CallStreams._wait,
    CallStreams._synchronize,
    CallStreams._join,
    CallStreams._use,
)
