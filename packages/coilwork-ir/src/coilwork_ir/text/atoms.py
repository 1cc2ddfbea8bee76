"""Text of numbers, symbols, buffers, call arguments and origins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    TorchValue,
    contiguous_strides,
)
from coilwork_ir.dtypes import DType, parse_dtype
from coilwork_ir.index import Expr, format_expr, symbol
from coilwork_ir.loc import Origin
from coilwork_ir.text.reader import Reader, quote

Symbols = dict[str, Expr]
T = TypeVar("T")


def format_list(items: Iterable[str]) -> str:
    """Items between parentheses."""
    return f"({', '.join(items)})"


def parse_list(reader: Reader, item: Callable[[], T]) -> tuple[T, ...]:
    """Items between parentheses."""
    reader.expect("(")
    found: list[T] = []
    while not reader.accept(")"):
        if found:
            reader.expect(",")
        found.append(item())
    return tuple(found)


def format_number(value: bool | int | float) -> str:
    """A literal that keeps its class: floats have a point, an exponent, or are `inf` or `nan`."""
    if isinstance(value, float) and math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return repr(value)


def parse_number(reader: Reader) -> bool | int | float:
    """Return what `format_number` wrote."""
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
    low = _bound(reader)
    reader.expect(",")
    high = _bound(reader)
    reader.expect("]")
    value = symbol(name, lo=low, hi=high)
    symbols[name] = value
    return value


def _bound(reader: Reader) -> int | None:
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
    """`%x: f32[s0, 4]`, with `{strides}` unless row-major, and `@device` unless on the CPU."""
    shape = ", ".join(format_expr(e) for e in buffer.shape)
    text = f"%{buffer.name}: {buffer.dtype.text}[{shape}]"
    if buffer.strides != contiguous_strides(buffer.shape):
        text += "{" + ", ".join(format_expr(e) for e in buffer.strides) + "}"
    return text if buffer.device == "cpu" else f"{text} @{buffer.device}"


def parse_buffer(reader: Reader, symbols: Symbols) -> Buffer:
    """Read a buffer declaration."""
    name = parse_ref(reader)
    reader.expect(":")
    dtype = parse_type(reader)
    shape = parse_indices(reader, symbols, "[", "]")
    strides = contiguous_strides(shape)
    if reader.peek("{"):
        strides = parse_indices(reader, symbols, "{", "}")
    device = "cpu"
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
    found: list[Expr] = []
    while not reader.accept(closing):
        if found:
            reader.expect(",")
        found.append(reader.index(symbols, f",{closing}"))
    return tuple(found)


# Arguments and results


def format_argument(value: Argument) -> str:
    """An argument of an external call. Index expressions stand in backquotes: plain integers are integers."""
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
    """Return what `format_argument` wrote."""
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
    """A result of a graph: `%name`, an index expression in backquotes, or `none`."""
    return format_argument(value)


def parse_output(reader: Reader, symbols: Symbols) -> GraphOutput:
    """Return what `format_output` wrote."""
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
    """Return what `format_origins` wrote."""
    found: list[Origin] = []
    while reader.accept("loc"):
        reader.expect("(")
        node, op, file = reader.string(), reader.string(), reader.string()
        reader.expect(":")
        line = reader.integer()
        found.append(
            Origin(node=node, op=op, file=file, line=line, code=reader.string(), module=reader.string())
        )
        reader.expect(")")
    return tuple(found)
