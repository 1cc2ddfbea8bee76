"""Made-up inputs of a program, for a module that runs by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, product
from typing import Final

from coilwork_ir.buffers import Buffer, Constant
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.program.nodes import CheckSize, Program
from coilwork_wrapper.python.expressions import dtype_text, index_text, tuple_text
from coilwork_wrapper.python.names import identifiers
from coilwork_wrapper.python.tree import Line, Rows, Statement, Suite

SIZES: Final = (16, 32, 64, 8, 4, 128, 2, 1, 3, 0)
"""What size symbols are taken to be, in order of preference, where their bounds and the program's checks allow."""
MOST_TRIES: Final = 10_000


def make_inputs(program: Program) -> Suite:
    """The function `make_inputs`."""
    symbols = _input_symbols(program)
    names = identifiers(symbol.name for symbol in symbols)
    sizes = sample_sizes(program)
    body: list[Statement] = [Line(f"{names[s.name]} = {sizes[s.name]}") for s in symbols]
    rows: list[str] = []
    for entry in program.inputs:
        if isinstance(entry, Buffer):
            rows.append(_random(entry, names) + f",  # {entry.name}")
        else:
            rows.append(f"{index_text(entry, names)},")
    body.append(Rows("return [", tuple(rows), "]") if rows else Line("return []"))
    return Suite("def make_inputs()", tuple(body))


def make_constants(constants: Iterable[Constant]) -> Suite:
    """The function `make_constants`."""
    pairs = tuple(f"{c.key!r}: {_random(c.buffer, {})}," for c in constants)
    return Suite("def make_constants()", (Rows("return {", pairs, "}"),))


def sample_sizes(program: Program) -> Mapping[str, int]:
    """A value for each size symbol of the inputs: within its bounds, and such that checks of sizes pass if some do."""
    symbols = _input_symbols(program)
    names = {symbol.name for symbol in symbols}
    checks = [
        check
        for check in program.instructions
        if isinstance(check, CheckSize)
        and {s.name for s in check.lhs.free_symbols | check.rhs.free_symbols} <= names
    ]
    choices = [_choices(symbol) for symbol in symbols]
    candidates = product(*choices)
    first = {symbol.name: options[0] for symbol, options in zip(symbols, choices, strict=True)}
    for values in islice(candidates, MOST_TRIES):
        sizes = dict(zip(first, values, strict=True))
        if all(_holds(check, sizes) for check in checks):
            return sizes
    return first


def _choices(symbol: Expr) -> tuple[int, ...]:
    low = symbol.lo if symbol.lo is not None else 0
    allowed = tuple(n for n in SIZES if n >= low and (symbol.hi is None or n <= symbol.hi))
    return allowed or (low,)


def _holds(check: CheckSize, sizes: Mapping[str, int]) -> bool:
    lhs, rhs = evaluate(check.lhs, sizes), evaluate(check.rhs, sizes)
    return {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}[check.relation]


def _input_symbols(program: Program) -> tuple[Expr, ...]:
    found: dict[str, Expr] = {}
    for entry in program.inputs:
        exprs = (*entry.shape, *entry.strides) if isinstance(entry, Buffer) else (entry,)
        for expr in exprs:
            for symbol in sorted(expr.free_symbols, key=lambda one: one.name):
                found.setdefault(symbol.name, symbol)
    return tuple(found.values())


def _random(buffer: Buffer, names: Mapping[str, str]) -> str:
    shape, strides = (
        tuple_text([index_text(e, names) for e in exprs]) for exprs in (buffer.shape, buffer.strides)
    )
    return f"rt.random_input({shape}, {strides}, {dtype_text(buffer.dtype)}, {buffer.device!r})"
