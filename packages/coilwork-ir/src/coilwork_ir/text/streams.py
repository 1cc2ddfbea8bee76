"""Text of streams, events and copies, which schedules and programs spell alike.

fork %s "cuda:0"
record %e "cuda:0" on %s
await %e on host
copy %x to %y nonblocking on %s
join %s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, StreamInstruction, WaitEvent
from coilwork_ir.text.atoms import format_origins, parse_origins, parse_ref
from coilwork_ir.text.reader import Reader, quote

_HOST: Final = "host"


def format_on(stream: str | None) -> str:
    """` on %s`, or nothing for the call's own stream."""
    return f" on {_HOST}" if stream is None else _spell_stream("on", stream)


def _spell_stream(word: str, stream: str) -> str:
    return "" if stream == OWN else f" {word} %{stream}"


def read_on(reader: Reader) -> str:
    """Parse what `format_on` writes of a stream."""
    return _read_named(reader, "on")


def _read_named(reader: Reader, word: str) -> str:
    return parse_ref(reader) if reader.accept(word) else OWN


def format_stream_instruction(instruction: StreamInstruction | Copy, *, origins: bool) -> str:
    """Text of `instruction`, one line."""
    match instruction:
        case ForkStream():
            after = _spell_stream("after", instruction.after)
            return f"fork %{instruction.stream} {quote(instruction.device)}{after}"
        case RecordEvent():
            head = f"record %{instruction.event} {quote(instruction.device)}"
            return head + format_on(instruction.stream)
        case WaitEvent():
            return f"await %{instruction.event}{format_on(instruction.stream)}"
        case JoinStream():
            return f"join %{instruction.stream}{_spell_stream('into', instruction.into)}"
        case Copy():
            word = " nonblocking" if instruction.non_blocking else ""
            head = f"copy %{instruction.source} to %{instruction.target}{word}{format_on(instruction.stream)}"
            return head + (format_origins(instruction.origins) if origins else "")


def _read_fork(reader: Reader) -> ForkStream:
    return ForkStream(stream=parse_ref(reader), device=reader.string(), after=_read_named(reader, "after"))


def _read_record(reader: Reader) -> RecordEvent:
    return RecordEvent(event=parse_ref(reader), device=reader.string(), stream=read_on(reader))


def _read_await(reader: Reader) -> WaitEvent:
    event = parse_ref(reader)
    if not reader.accept("on"):
        return WaitEvent(event=event)
    return WaitEvent(event=event, stream=None if reader.accept(_HOST) else parse_ref(reader))


def _read_join(reader: Reader) -> JoinStream:
    return JoinStream(stream=parse_ref(reader), into=_read_named(reader, "into"))


def _read_copy(reader: Reader) -> Copy:
    source = parse_ref(reader)
    reader.expect("to")
    target = parse_ref(reader)
    non_blocking = reader.accept("nonblocking")
    stream = read_on(reader)
    return Copy(
        source=source, target=target, non_blocking=non_blocking, stream=stream, origins=parse_origins(reader)
    )


STREAM_STEPS: Final[Mapping[str, Callable[[Reader], StreamInstruction]]] = MappingProxyType(
    {"fork": _read_fork, "record": _read_record, "await": _read_await, "join": _read_join}
)
"""What reads an instruction on streams behind its first word."""
STREAM_READERS: Final[Mapping[str, Callable[[Reader], StreamInstruction | Copy]]] = MappingProxyType(
    {**STREAM_STEPS, "copy": _read_copy}
)
"""The same, and copies."""
