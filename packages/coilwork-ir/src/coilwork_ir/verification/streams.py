"""The verifier's rules on streams and events: they exist where they are named, and all streams are joined."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.streams import (
    OWN,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
    is_host,
)
from coilwork_ir.verification.rules import Place, Rule

STREAM_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "stream-exists": Rule(
            "a stream is named between its `fork` and its `join`, and forked once", "fork the stream before"
        ),
        "stream-device": Rule(
            "an event or a stream is of the device of the stream that it is made of", "name that device"
        ),
        "stream-joined": Rule("every stream is joined before the end", "join the stream before `return`"),
        "event-recorded": Rule(
            "an event is recorded once, before it is waited for", "record the event before"
        ),
    }
)


class StreamChecker:
    """Follows which streams and events there are."""

    def __init__(self) -> None:
        self._devices: dict[str, str] = {}
        self._forked: set[str] = set()
        self._events: dict[str, str] = {}

    def is_known(self, name: str) -> bool:
        """Tell if `name` is that of a stream or event, or was."""
        return name in self._forked or name in self._events

    def check_stream(self, stream: str, place: Place, device: str | None = None) -> None:
        """Check that `stream` is there, and of `device`.

        Raises:
            VerifyError: it is not.
        """
        if stream == OWN:
            return
        if stream not in self._devices:
            gone = "was joined" if stream in self._forked else "was never forked"
            place.fail("stream-exists", f"%{stream} {gone}")
        if device is not None and self._devices[stream] != device:
            place.fail("stream-device", f"%{stream} is of {self._devices[stream]}, not {device}")

    def _check_kind(self, waiting: str, device: str, place: Place) -> None:
        """A stream of the host is the host itself, which waits by `await … on host` alone."""
        if is_host(self._devices.get(waiting, device)) != is_host(device):
            place.fail(
                "stream-device", f"%{waiting} is of {self._devices[waiting]}, which waits for {device}"
            )

    def follow(self, instruction: StreamInstruction, place: Place) -> None:
        """Take `instruction` into account.

        Raises:
            VerifyError: it breaks one of `STREAM_RULES`.
        """
        match instruction:
            case ForkStream(stream=stream, device=device):
                self.check_stream(instruction.after, place, device)
                if self.is_known(stream) or stream == OWN:
                    place.fail("stream-exists", f"%{stream} is forked a second time")
                self._forked.add(stream)
                self._devices[stream] = device
            case RecordEvent(event=event):
                self.check_stream(instruction.stream, place, instruction.device)
                if self.is_known(event):
                    place.fail("event-recorded", f"%{event} is recorded a second time")
                self._events[event] = instruction.device
            case WaitEvent(event=event, stream=stream):
                if event not in self._events:
                    place.fail("event-recorded", f"%{event} was never recorded")
                if stream is not None:
                    self.check_stream(stream, place)
                    self._check_kind(stream, self._events[event], place)
            case JoinStream(stream=stream):
                self.check_stream(stream, place)
                self.check_stream(instruction.into, place)
                if stream == OWN or stream == instruction.into:
                    place.fail(
                        "stream-exists", "a stream is joined into itself, or the call's own into another"
                    )
                self._check_kind(instruction.into, self._devices[stream], place)
                del self._devices[stream]

    def finish(self, place: Place) -> None:
        """Check that all streams were joined.

        Raises:
            VerifyError: one was not.
        """
        if self._devices:
            place.fail("stream-joined", f"%{next(iter(self._devices))} is still there")
