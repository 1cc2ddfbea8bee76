"""Which size symbols a nested program takes from its surroundings."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_ir.buffers import Argument, Buffer, ListValue, SymbolOutput
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import (
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    CondCall,
    ExternCall,
    Instruction,
    Launch,
    PoolView,
    Program,
    Reinterpret,
    Return,
    WhileCall,
)
from coilwork_ir.program.walk import defined_buffers, nested_programs


def check_bound(program: Program) -> None:
    """Refuse a whole program that uses a size symbol without a value.

    Raises:
        EmitError: `unbound-symbol`.
    """
    unbound = outer_symbols(program)
    if unbound:
        raise EmitError("unbound-symbol", f"size {unbound[0].name} is not bound in program @{program.name}")


def outer_symbols(program: Program) -> tuple[Expr, ...]:
    """Symbols that `program` uses and does not bind, in the order of their first use."""
    bound = {symbol.name for symbol in bound_symbols(program)}
    inputs = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}
    found: dict[str, Expr] = {}
    seen: set[Expr] = set()
    for instruction in program.instructions:
        for expr in _expressions(instruction, inputs):
            if expr.is_const or expr in seen:
                continue
            seen.add(expr)
            # an expression's symbols come as a set; names give them an order
            for symbol in sorted(expr.free_symbols, key=lambda one: one.name):
                if symbol.name not in bound:
                    found.setdefault(symbol.name, symbol)
    return tuple(found.values())


def bound_symbols(program: Program) -> tuple[Expr, ...]:
    """Symbols that inputs, `bind` instructions and calls give values, in order, each once."""
    found: dict[str, Expr] = {}
    for entry in program.inputs:
        if isinstance(entry, Expr) and entry.is_symbol:
            found.setdefault(entry.name, entry)
    for instruction in program.instructions:
        match instruction:
            case BindSymbol(symbol=symbol):
                found.setdefault(symbol.name, symbol)
            case ExternCall():
                for symbol, _, _ in instruction.binds:
                    found.setdefault(symbol.name, symbol)
                for output in instruction.outputs:
                    if isinstance(output, SymbolOutput):
                        found.setdefault(output.symbol.name, output.symbol)
            case _:
                pass
    return tuple(found.values())


def _expressions(instruction: Instruction, inputs: dict[str, Buffer]) -> Iterator[Expr]:
    """Expressions whose values `instruction` needs."""
    arguments: tuple[Argument, ...] = ()
    match instruction:
        case CheckLayout():
            yield from _layout(inputs[instruction.buffer])
        case AllocPool():
            yield instruction.size_bytes
        case PoolView():
            yield instruction.offset_bytes
        case Reinterpret():
            yield instruction.offset
        case Launch():
            yield from instruction.sizes
        case CheckSize():
            yield from (instruction.lhs, instruction.rhs)
        case ExternCall():
            arguments = (*instruction.args, *(value for _, value in instruction.kwargs))
        case CondCall():
            arguments = instruction.operands
        case WhileCall():
            arguments = (*instruction.carried, *instruction.extra)
        case Return():
            arguments = instruction.values
        case _:
            pass
    for argument in arguments:
        yield from _in_argument(argument)
    for nested in nested_programs(instruction):
        yield from outer_symbols(nested)
    for buffer in defined_buffers(instruction):
        yield from _layout(buffer)


def _layout(buffer: Buffer) -> Iterator[Expr]:
    yield from buffer.shape
    yield from buffer.strides


def _in_argument(argument: Argument) -> Iterator[Expr]:
    match argument:
        case Expr():
            yield argument
        case ListValue(items):
            for item in items:
                yield from _in_argument(item)
        case _:
            pass
