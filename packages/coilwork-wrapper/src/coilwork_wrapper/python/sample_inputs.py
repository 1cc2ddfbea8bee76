"""Made-up inputs of a program, for a module that runs by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, product
from typing import Final

from coilwork_ir.buffers import Buffer, Constant
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.program.nodes import CheckSize, Program
from coilwork_ir.syntax.python import (
    Assign,
    Dict,
    Expression,
    Function,
    List,
    Name,
    Noted,
    Number,
    Return,
    Rows,
    Statement,
    Tuple,
    method,
)
from coilwork_wrapper.python.scope import get_torch_dtype, index_expression, make_identifiers, quote

SIZES: Final = (16, 32, 64, 8, 4, 128, 2, 1, 3, 0)
"""What size symbols are taken to be, in order of preference, where their bounds and the program's checks
allow.
"""
MOST_TRIES: Final = 10_000


def make_inputs(program: Program) -> Function:
    """Return the function `make_inputs`."""
    symbols = _input_symbols(program)
    names = make_identifiers(symbol.name for symbol in symbols)
    sizes = sample_sizes(program)
    body: list[Statement] = [Assign((names[s.name],), Number(sizes[s.name])) for s in symbols]
    rows: list[Expression] = []
    for entry in program.inputs:
        if isinstance(entry, Buffer):
            rows.append(Noted(_random(entry, names), entry.name))
        else:
            rows.append(index_expression(entry, names))
    body.append(Return((Rows(List(tuple(rows))),)))
    return Function("make_inputs", (), tuple(body))


def make_constants(constants: Iterable[Constant]) -> Function:
    """Return the function `make_constants`."""
    pairs = tuple((quote(c.key), _random(c.buffer, {})) for c in constants)
    return Function("make_constants", (), (Return((Rows(Dict(pairs)),)),))


def sample_sizes(program: Program) -> Mapping[str, int]:
    """Return a value for each size symbol of the inputs: within its bounds, and such that checks of sizes
    pass if some do.
    """
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
    symbols: dict[str, Expr] = {}
    for entry in program.inputs:
        exprs = (*entry.shape, *entry.strides) if isinstance(entry, Buffer) else (entry,)
        for expr in exprs:
            if expr.is_const:
                continue
            for symbol in sorted(expr.free_symbols, key=lambda one: one.name):
                symbols.setdefault(symbol.name, symbol)
    return tuple(symbols.values())


def _random(buffer: Buffer, names: Mapping[str, str]) -> Expression:
    layout = (
        Tuple(tuple(index_expression(e, names) for e in exprs)) for exprs in (buffer.shape, buffer.strides)
    )
    details = (get_torch_dtype(buffer.dtype), quote(buffer.device))
    return method(Name("rt"), "random_input", *layout, *details)
