"""Streams and events as programs use them: forked, recorded, waited for and joined; on devices without any,
nothing.

`None` is the stream that a call begins on, torch's current one, and whatever there is of a device that has no
streams: what it is given is done, or in order, anyhow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _has_streams(device: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


def fork_stream(device: str, after: torch.Stream | None = None) -> torch.Stream | None:
    """A stream of `device` whose work begins behind all that `after` was given so far."""
    place = torch.device(device)
    if not _has_streams(place):
        return None
    made = torch.Stream(place)
    made.wait_stream(torch.accelerator.current_stream(place) if after is None else after)
    return made


def record_event(device: str, stream: torch.Stream | None = None) -> torch.Event | None:
    """An event that is reached when all is done that `stream`, of `device`, was given so far."""
    place = torch.device(device)
    if not _has_streams(place):
        return None
    recorded: torch.Event = (
        torch.accelerator.current_stream(place) if stream is None else stream
    ).record_event()
    return recorded


def wait_event(event: torch.Event | None, stream: torch.Stream | None = None) -> None:
    """Let work that is put on `stream` from now on wait for `event`."""
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
