"""Sizes that programs and instructions take from their surroundings, and those that they bind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    Region,
    Reinterpret,
    Return,
    SubprogramCall,
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
        for symbol in _symbols(_expressions(instruction, inputs), seen):
            if symbol.name not in bound:
                found.setdefault(symbol.name, symbol)
    return tuple(found.values())


def used_symbols(instruction: Instruction) -> tuple[Expr, ...]:
    """Symbols that `instruction` needs, in the order of first use; of a region, those of its boundary."""
    if isinstance(instruction, Region):
        return instruction.symbols
    return tuple(dict.fromkeys(_symbols(_expressions(instruction, {}), set())))


def _symbols(expressions: Iterable[Expr], seen: set[Expr]) -> Iterator[Expr]:
    """Symbols of `expressions` that are not `seen`."""
    for expr in expressions:
        if expr.is_const or expr in seen:
            continue
        seen.add(expr)
        # an expression's symbols come as a set; names give them an order
        yield from sorted(expr.free_symbols, key=lambda one: one.name)


def bound_symbols(program: Program) -> tuple[Expr, ...]:
    """Symbols that inputs, `bind` instructions and calls give values, in order, each once."""
    found: dict[str, Expr] = {}
    for entry in program.inputs:
        if isinstance(entry, Expr) and entry.is_symbol:
            found.setdefault(entry.name, entry)
    for instruction in program.instructions:
        for symbol in symbols_bound_by(instruction):
            found.setdefault(symbol.name, symbol)
    return tuple(found.values())


def symbols_bound_by(instruction: Instruction) -> Iterator[Expr]:
    """Symbols that `instruction` gives values."""
    match instruction:
        case BindSymbol(symbol=symbol):
            yield symbol
        case ExternCall():
            yield from (symbol for symbol, _, _ in instruction.binds)
            yield from (output.symbol for output in instruction.outputs if isinstance(output, SymbolOutput))
        case Region():
            for inner in instruction.body:
                yield from symbols_bound_by(inner)
        case _:
            pass


def _expressions(instruction: Instruction, inputs: dict[str, Buffer]) -> Iterator[Expr]:
    """Expressions whose values `instruction` needs."""
    arguments: tuple[Argument, ...] = ()
    match instruction:
        case CheckLayout():
            if instruction.buffer in inputs:
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
        case CondCall() | SubprogramCall():
            arguments = instruction.operands
        case WhileCall():
            arguments = (*instruction.carried, *instruction.extra)
        case Return():
            arguments = instruction.values
        case Region():
            yield from instruction.symbols
            return
        case _:
            pass
    for argument in arguments:
        yield from _walk_argument(argument)
    for nested in nested_programs(instruction):
        yield from outer_symbols(nested)
    for buffer in defined_buffers(instruction):
        yield from _layout(buffer)


def _layout(buffer: Buffer) -> Iterator[Expr]:
    yield from buffer.shape
    yield from buffer.strides


def _walk_argument(argument: Argument) -> Iterator[Expr]:
    match argument:
        case Expr():
            yield argument
        case ListValue(items):
            for item in items:
                yield from _walk_argument(item)
        case _:
            pass
