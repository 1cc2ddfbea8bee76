"""Reading what graphs, kernels and programs have in common: what they declare, and their checks."""

from __future__ import annotations

from typing import Final

from coilwork_ir.buffers import Constant, GraphInput
from coilwork_ir.index import Expr
from coilwork_ir.loops.nodes import Check, CheckError
from coilwork_ir.text.atoms import Symbols, parse_buffer, parse_symbol
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import Values, parse_value

_ERRORS: Final[tuple[CheckError, ...]] = ("IndexError", "ZeroDivisionError")


def read_header(
    reader: Reader, symbols: Symbols
) -> tuple[tuple[Expr, ...], tuple[GraphInput, ...], tuple[Constant, ...]]:
    """Return what `format_header` wrote; the symbols are added to `symbols`."""
    declared: list[Expr] = []
    inputs: list[GraphInput] = []
    constants: list[Constant] = []
    while True:
        if reader.accept("symbol"):
            declared.append(parse_symbol(reader, symbols))
        elif reader.accept("input"):
            if reader.accept("size"):
                reader.expect("`")
                inputs.append(reader.index(symbols, "`"))
                reader.expect("`")
            else:
                inputs.append(parse_buffer(reader, symbols))
        elif reader.accept("constant"):
            key = reader.string()
            constants.append(Constant(buffer=parse_buffer(reader, symbols), key=key))
        else:
            return tuple(declared), tuple(inputs), tuple(constants)


def read_checks(reader: Reader, values: Values) -> tuple[Check, ...]:
    """Return what `format_checks` wrote."""
    found: list[Check] = []
    while reader.accept("check"):
        condition = parse_value(reader, values)
        error = next((one for one in _ERRORS if reader.accept(one)), None)
        if error is None:
            reader.expect("RuntimeError")
        found.append(Check(condition=condition, message=reader.string(), error=error or "RuntimeError"))
    return tuple(found)
