"""Streams, events and copies: the instructions of schedules and programs that say what runs beside what.

A call begins on a stream of its own, named "". `ForkStream` makes another: what a launch or copy puts on it
runs beside the rest. Order comes from events alone: one is recorded on a stream and waited for on another, or
by the host, which goes through the instructions. `JoinStream` waits for all of a stream, and ends it. A
stream of the host is the host itself. `coilwork_ir.inflight_memory` says what follows for memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.loc import UNKNOWN, Origin

OWN: Final = ""
"""The stream that a call begins on: torch's current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStream:
    """`stream` is a stream of `device`. What it is given runs behind all that `after` was given so far."""

    stream: str
    device: str
    after: str = OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """`event` is reached when all is done that `stream`, of `device`, was given so far."""

    event: str
    device: str
    stream: str = OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEvent:
    """Work given to `stream` from here on runs behind `event`. `None`: the host waits, and then goes on."""

    event: str
    stream: str | None = OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStream:
    """Work given to `into` from here on runs behind all of `stream`, which is gone."""

    stream: str
    into: str = OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The elements of `source` become those of `target`, of the same type and shape, on whatever devices.

    With `non_blocking` the host goes on before its memory was read or written: that is in use until the host
    waited for an event behind the copy.
    """

    source: str
    target: str
    non_blocking: bool = False
    stream: str = OWN
    origins: tuple[Origin, ...] = UNKNOWN


StreamInstruction: TypeAlias = ForkStream | RecordEvent | WaitEvent | JoinStream


def is_host(device: str) -> bool:
    """Tell if the host itself works in memory on `device`, at once."""
    return has_trait(device, HOST_MEMORY)
