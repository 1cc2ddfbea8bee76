"""Text of the parts of an external call that loop IR and programs spell alike."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.buffers import Argument, Buffer, ResultPath, SymbolOutput
from coilwork_ir.index import Expr
from coilwork_ir.text.atoms import (
    Symbols,
    format_list,
    parse_argument,
    parse_buffer,
    parse_list,
    parse_ref,
    parse_symbol,
)
from coilwork_ir.text.reader import Reader

Keyword = tuple[str, Argument]


def read_call_arguments(reader: Reader, symbols: Symbols) -> tuple[tuple[Argument, ...], tuple[Keyword, ...]]:
    """`(%x, 1.0, dim = 2)`: positional arguments, then keywords."""
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
    """Return what `format_paths` writes."""
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
