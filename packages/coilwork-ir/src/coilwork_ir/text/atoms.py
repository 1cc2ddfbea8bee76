"""Text of what the forms of all three IRs are made of.

Numbers, symbols, buffers, arguments and origins come first, then the parts of an external call that loop IR
and programs spell alike, then the instructions on streams:

    fork %s "cuda:0"
    record %e "cuda:0" on %s
    await %e on host
    copy %x to %y nonblocking on %s
    join %s
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from coilwork_ir.buffers import (
    DEFAULT_DEVICE,
    Argument,
    Buffer,
    DeviceValue,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    ResultPath,
    SymbolOutput,
    TorchValue,
    make_contiguous_strides,
)
from coilwork_ir.dtypes import DType, parse_dtype
from coilwork_ir.index import Expr, format_expr, symbol
from coilwork_ir.loc import Origin
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, StreamInstruction, WaitEvent
from coilwork_ir.text.reader import Reader, quote

# ---- Numbers, buffers and origins ----


Symbols = dict[str, Expr]
T = TypeVar("T")


def format_list(items: Iterable[str]) -> str:
    """Items between parentheses."""
    return f"({', '.join(items)})"


def parse_list(reader: Reader, item: Callable[[], T]) -> tuple[T, ...]:
    """Items between parentheses."""
    reader.expect("(")
    items: list[T] = []
    while not reader.accept(")"):
        if items:
            reader.expect(",")
        items.append(item())
    return tuple(items)


def format_number(value: bool | int | float) -> str:
    """Return a literal that keeps its class: floats have a point, an exponent, or are `inf` or `nan`."""
    if isinstance(value, float) and math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return repr(value)


def parse_number(reader: Reader) -> bool | int | float:
    """Read the text that `format_number` writes."""
    if reader.accept("True"):
        return True
    if reader.accept("False"):
        return False
    return reader.number()


# Symbols


def format_symbol(value: Expr) -> str:
    """`s0 in [2, inf]`: a size symbol with its bounds."""
    low = "-inf" if value.lo is None else str(value.lo)
    high = "inf" if value.hi is None else str(value.hi)
    return f"{value.name} in [{low}, {high}]"


def parse_symbol(reader: Reader, symbols: Symbols) -> Expr:
    """Read a symbol and add it to `symbols`."""
    name = reader.name()
    reader.expect("in")
    reader.expect("[")
    low = _read_bound(reader)
    reader.expect(",")
    high = _read_bound(reader)
    reader.expect("]")
    value = symbol(name, lo=low, hi=high)
    symbols[name] = value
    return value


def _read_bound(reader: Reader) -> int | None:
    value = reader.number()
    return None if isinstance(value, float) else value


def format_range(value: Expr) -> str:
    """`i0: 4*s0`: a range symbol with its extent."""
    if value.extent is None:
        raise ValueError(f"range symbol {value.name} has no extent")
    return f"{value.name}: {format_expr(value.extent)}"


def parse_range(reader: Reader, symbols: Symbols) -> Expr:
    """Read a range symbol and add it to `symbols`."""
    name = reader.name()
    reader.expect(":")
    value = symbol(name, extent=reader.index(symbols, ",|]\n"))
    symbols[name] = value
    return value


# Buffers


def format_buffer(buffer: Buffer) -> str:
    """`%x: f32[s0, 4]`, with `{strides}` unless row-major, and `@device` unless it is the default one."""
    shape = ", ".join(format_expr(e) for e in buffer.shape)
    text = f"%{buffer.name}: {buffer.dtype.text}[{shape}]"
    if buffer.strides != make_contiguous_strides(buffer.shape):
        text += "{" + ", ".join(format_expr(e) for e in buffer.strides) + "}"
    return text if buffer.device == DEFAULT_DEVICE else f"{text} @{buffer.device}"


def parse_buffer(reader: Reader, symbols: Symbols) -> Buffer:
    """Read a buffer declaration."""
    name = parse_ref(reader)
    reader.expect(":")
    dtype = parse_type(reader)
    shape = parse_indices(reader, symbols, "[", "]")
    strides = make_contiguous_strides(shape)
    if reader.peek("{"):
        strides = parse_indices(reader, symbols, "{", "}")
    device = DEFAULT_DEVICE
    if reader.accept("@"):
        device = reader.name()
        if reader.accept(":"):
            device = f"{device}:{reader.integer()}"
    return Buffer(name=name, dtype=dtype, shape=shape, strides=strides, device=device)


def parse_ref(reader: Reader) -> str:
    """Read `%name`."""
    reader.expect("%")
    return reader.name()


def parse_type(reader: Reader) -> DType:
    """Read an element type."""
    at = reader.at
    try:
        return parse_dtype(reader.name())
    except ValueError as error:
        raise reader.error(str(error), at) from error


def parse_indices(reader: Reader, symbols: Symbols, opening: str, closing: str) -> tuple[Expr, ...]:
    """Index expressions between brackets."""
    reader.expect(opening)
    indices: list[Expr] = []
    while not reader.accept(closing):
        if indices:
            reader.expect(",")
        indices.append(reader.index(symbols, f",{closing}"))
    return tuple(indices)


# Arguments and results


def format_argument(value: Argument) -> str:
    """Return an argument of an external call. Index expressions stand in backquotes: plain integers are
    integers.
    """
    match value:
        case Ref(name):
            return f"%{name}"
        case Item(name):
            return f"item %{name}"
        case Expr():
            return f"`{format_expr(value)}`"
        case DType():
            return f"type {value.text}"
        case TorchValue(attribute):
            return f"torch {quote(attribute)}"
        case DeviceValue(device):
            return f"device {quote(device)}"
        case ListValue(items):
            return "[" + ", ".join(format_argument(item) for item in items) + "]"
        case str():
            return quote(value)
        case complex():
            return f"complex {format_number(value.real)} {format_number(value.imag)}"
        case None:
            return "none"
        case _:
            return format_number(value)


def parse_argument(reader: Reader, symbols: Symbols) -> Argument:
    """Read the text that `format_argument` writes."""
    if reader.peek("%"):
        return Ref(parse_ref(reader))
    if reader.peek('"'):
        return reader.string()
    if reader.accept("`"):
        value = reader.index(symbols, "`")
        reader.expect("`")
        return value
    if reader.accept("["):
        items: list[Argument] = []
        while not reader.accept("]"):
            if items:
                reader.expect(",")
            items.append(parse_argument(reader, symbols))
        return ListValue(tuple(items))
    for word, read in _WORDS:
        if reader.accept(word):
            return read(reader)
    return parse_number(reader)


def _parse_complex(reader: Reader) -> Argument:
    real = float(reader.number())
    return complex(real, float(reader.number()))


_WORDS: tuple[tuple[str, Callable[[Reader], Argument]], ...] = (
    ("none", lambda reader: None),
    ("item", lambda reader: Item(parse_ref(reader))),
    ("type", parse_type),
    ("torch", lambda reader: TorchValue(reader.string())),
    ("device", lambda reader: DeviceValue(reader.string())),
    ("complex", _parse_complex),
)


def format_output(value: GraphOutput) -> str:
    """Return a result of a graph: `%name`, an index expression in backquotes, or `none`."""
    return format_argument(value)


def parse_output(reader: Reader, symbols: Symbols) -> GraphOutput:
    """Read the text that `format_output` writes."""
    at = reader.at
    value = parse_argument(reader, symbols)
    if value is None or isinstance(value, Ref | Expr):
        return value
    raise reader.error("expected %name, `size` or none", at)


# Origins


def format_origins(origins: Sequence[Origin]) -> str:
    """`loc("mul" "aten.mul.Tensor" "model.py":12 "y = a * b" "layers.0")` for each, preceded by a space."""
    return "".join(
        f" loc({quote(o.node)} {quote(o.op)} {quote(o.file)}:{o.line} {quote(o.code)} {quote(o.module)})"
        for o in origins
    )


def parse_origins(reader: Reader) -> tuple[Origin, ...]:
    """Read the text that `format_origins` writes."""
    origins: list[Origin] = []
    while reader.accept("loc"):
        reader.expect("(")
        node, op, file = reader.string(), reader.string(), reader.string()
        reader.expect(":")
        line = reader.integer()
        origins.append(
            Origin(node=node, op=op, file=file, line=line, code=reader.string(), module=reader.string())
        )
        reader.expect(")")
    return tuple(origins)


# ---- External calls ----


Keyword = tuple[str, Argument]


def read_call_arguments(reader: Reader, symbols: Symbols) -> tuple[tuple[Argument, ...], tuple[Keyword, ...]]:
    """Read `(%x, 1.0, dim = 2)`; return the positional arguments, then the keywords."""
    args: list[Argument] = []
    kwargs: list[Keyword] = []
    reader.expect("(")
    while not reader.accept(")"):
        if args or kwargs:
            reader.expect(",")
        keyword = reader.keyword()
        if keyword is None:
            args.append(parse_argument(reader, symbols))
        else:
            kwargs.append((keyword, parse_argument(reader, symbols)))
    return tuple(args), tuple(kwargs)


def read_binds(reader: Reader, symbols: Symbols) -> tuple[tuple[Expr, int, int], ...]:
    """`binds (u0 in [0, inf] of 0 1)`: symbol, number of the result, dimension. Declares the symbols."""
    if not reader.accept("binds"):
        return ()

    def one() -> tuple[Expr, int, int]:
        value = parse_symbol(reader, symbols)
        reader.expect("of")
        return value, reader.integer(), reader.integer()

    return parse_list(reader, one)


def format_paths(paths: Sequence[ResultPath]) -> tuple[str, ...]:
    """`paths ([0], [1, 0])`, or nothing."""
    if not paths:
        return ()
    return (f"paths {format_list(f'[{_steps(path)}]' for path in paths)}",)


def _steps(path: ResultPath) -> str:
    return ", ".join(map(str, path))


def read_paths(reader: Reader) -> tuple[ResultPath, ...]:
    """Read the text that `format_paths` writes."""
    if not reader.accept("paths"):
        return ()

    def one() -> ResultPath:
        steps: list[int] = []
        reader.expect("[")
        while not reader.accept("]"):
            if steps:
                reader.expect(",")
            steps.append(reader.integer())
        return tuple(steps)

    return parse_list(reader, one)


def read_result(reader: Reader, symbols: Symbols) -> Buffer | SymbolOutput | None:
    """`%y: f32[4]`, `size u0 in [0, inf]`, or `_` for a result nobody uses."""
    if reader.accept("_"):
        return None
    if reader.accept("size"):
        return SymbolOutput(symbol=parse_symbol(reader, symbols))
    return parse_buffer(reader, symbols)


def format_flight(in_flight: Sequence[str], until: Sequence[str], waits: Sequence[str]) -> tuple[str, ...]:
    """`in_flight (%x, %y) until (%y) waits (%z)`, the parts that are not empty."""
    parts = (("in_flight", in_flight), ("until", until), ("waits", waits))
    return tuple(f"{word} {format_list(f'%{name}' for name in names)}" for word, names in parts if names)


def read_flight(reader: Reader) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Parse what `format_flight` writes: `in_flight`, `until` and `waits`."""

    def names(word: str) -> tuple[str, ...]:
        return parse_list(reader, lambda: parse_ref(reader)) if reader.accept(word) else ()

    return names("in_flight"), names("until"), names("waits")


# ---- Streams ----


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
