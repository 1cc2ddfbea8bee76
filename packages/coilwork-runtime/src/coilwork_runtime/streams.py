"""Streams and events of programs: fork, record, wait, join. On devices without streams these do nothing.

`None` stands for the stream that a call begins on, torch's current one, and for every stream and event of a
device that has none. `CallStreams` keeps those of one call by their numbers in the program's bytes; the
native executor calls its methods by name (native/running/steps.hpp).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import torch


def _has_streams(device: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


def fork_stream(device: str, after: torch.Stream | None = None) -> torch.Stream | None:
    """Return a stream of `device` whose work begins behind all that `after` was given so far."""
    place = torch.device(device)
    if not _has_streams(place):
        return None
    stream = torch.Stream(place)
    stream.wait_stream(torch.accelerator.current_stream(place) if after is None else after)
    return stream


def record_event(device: str, stream: torch.Stream | None = None) -> torch.Event | None:
    """Return an event that is reached when all is done that `stream`, of `device`, was given so far."""
    place = torch.device(device)
    if not _has_streams(place):
        return None
    recorded: torch.Event = (
        torch.accelerator.current_stream(place) if stream is None else stream
    ).record_event()
    return recorded


def wait_event(event: torch.Event | None, stream: torch.Stream | None = None) -> None:
    """Let work that is put on `stream` from now on wait for `event`; on the current stream if it is None."""
    if event is not None:
        (torch.accelerator.current_stream(event.device) if stream is None else stream).wait_event(event)


def synchronize_event(event: torch.Event | None) -> None:
    """Return when `event` is reached."""
    if event is not None:
        event.synchronize()


def join_stream(stream: torch.Stream | None, into: torch.Stream | None = None) -> None:
    """Let work that is put on `into` from now on wait for all of `stream`."""
    if stream is not None:
        (torch.accelerator.current_stream(stream.device) if into is None else into).wait_stream(stream)


def on_stream(stream: torch.Stream | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function`, with what it does put on `stream`."""
    if stream is None:
        return function(*args, **kwargs)
    with stream:
        return function(*args, **kwargs)


# ---- streams of one call ----


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
