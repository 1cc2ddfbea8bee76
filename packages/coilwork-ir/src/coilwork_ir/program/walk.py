"""Walks over programs that emitters, planners and reports share: kernels, buffers, values and sizes.

The second part says which sizes programs and instructions take from their surroundings, and which they bind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, SymbolOutput
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    CondCall,
    ExternCall,
    Instruction,
    Launch,
    LoopCall,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.streams import Copy, ForkStream, RecordEvent

# ---- Instructions and buffers ----


# Libraries whose operators write what they are given only where their names end so.
_KNOWN: Final = frozenset(
    ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
)

# Every emitter asks this of every instruction, several times: a look-up is what it costs to find out.
_NESTED: Final[Mapping[type[Instruction], Callable[[Any], tuple[Program, ...]]]] = MappingProxyType(
    {
        CondCall: lambda call: (call.then, call.otherwise),
        LoopCall: lambda call: (call.body,) if call.condition is None else (call.condition, call.body),
        SubprogramCall: lambda call: (call.body,),
        Region: lambda region: tuple(
            nested for inner in region.body for nested in list_nested_programs(inner)
        ),
    }
)
_DEFINED: Final[Mapping[type[Instruction], Callable[[Any], tuple[Buffer, ...]]]] = MappingProxyType(
    {
        **dict.fromkeys((Alloc, PoolView, Reuse, Reinterpret), lambda instruction: (instruction.buffer,)),
        **dict.fromkeys((CondCall, LoopCall, SubprogramCall), lambda call: call.outputs),
        ExternCall: lambda call: tuple(output for output in call.outputs if isinstance(output, Buffer)),
        Region: lambda region: tuple(
            buffer for inner in region.body for buffer in list_defined_buffers(inner)
        ),
    }
)


def list_nested_programs(instruction: Instruction) -> tuple[Program, ...]:
    """Return the programs inside `instruction`: branches, bodies and conditions of loops, subprograms."""
    find = _NESTED.get(type(instruction))
    return () if find is None else find(instruction)


def walk(program: Program) -> Iterator[Program]:
    """`program` and every program nested in it, outermost first."""
    yield program
    for instruction in program.instructions:
        for nested in list_nested_programs(instruction):
            yield from walk(nested)


def list_distinct_programs(program: Program) -> tuple[Program, ...]:
    """`program` and every program nested in it, each once, before those nested in itself."""
    programs: list[Program] = []
    seen: set[int] = set()

    def visit(part: Program) -> None:
        seen.add(id(part))
        for instruction in reversed(part.instructions):
            for nested in reversed(list_nested_programs(instruction)):
                if id(nested) not in seen:
                    visit(nested)
        programs.append(part)

    visit(program)
    return tuple(reversed(programs))


def list_defined_buffers(instruction: Instruction) -> tuple[Buffer, ...]:
    """Buffers that `instruction` defines."""
    find = _DEFINED.get(type(instruction))
    return () if find is None else find(instruction)


def list_defined_values(instruction: Instruction) -> tuple[str, ...]:
    """Names that `instruction` defines which are no buffers: of a pool, stream or event."""
    match instruction:
        case AllocPool():
            return (instruction.pool,)
        case ForkStream():
            return (instruction.stream,)
        case RecordEvent():
            return (instruction.event,)
        case Region():
            return tuple(name for inner in instruction.body for name in list_defined_values(inner))
        case _:
            return ()


def find_call(instruction: Instruction) -> ExternCall | None:
    """Return the call of an operator that `instruction` is, or that does what it says; None if it is
    neither.
    """
    match instruction:
        case ExternCall():
            return instruction
        case Copy():
            return ExternCall(
                target="aten.copy_.default",
                args=(Ref(instruction.target), Ref(instruction.source), instruction.non_blocking),
                stream=instruction.stream,
                origins=instruction.origins,
            )
        case _:
            return None


def may_write_operands(call: ExternCall) -> bool:
    """Tell if `call` may write what it is given beside `out`: in place, or as libraries' operators may."""
    namespace, _, operator = call.target.partition(".")
    return namespace not in _KNOWN or operator.partition(".")[0].endswith("_")


def index_buffers(program: Program) -> dict[str, Buffer]:
    """Return every buffer of `program` by name: inputs, constants, and what instructions define; nested
    ones aside.
    """
    known = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}
    known.update((constant.buffer.name, constant.buffer) for constant in program.constants)
    for instruction in program.instructions:
        known.update((buffer.name, buffer) for buffer in list_defined_buffers(instruction))
    return known


def list_kernels(program: Program) -> tuple[Kernel, ...]:
    """Kernels of `program` and of the programs nested in it, each name once."""
    kernels: dict[str, Kernel] = {}
    for part in list_distinct_programs(program):
        for kernel in part.kernels:
            kernels.setdefault(kernel.name, kernel)
    return tuple(kernels.values())


# ---- Sizes ----


def check_bound(program: Program) -> None:
    """Refuse a whole program that uses a size symbol without a value.

    Raises:
        EmitError: `unbound-symbol`.
    """
    unbound = list_outer_symbols(program)
    if unbound:
        raise EmitError("unbound-symbol", f"size {unbound[0].name} is not bound in program @{program.name}")


def list_outer_symbols(program: Program) -> tuple[Expr, ...]:
    """Return the symbols that `program` uses and does not bind, in the order of their first use."""
    bound = {symbol.name for symbol in list_program_symbols(program)}
    inputs = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}
    symbols: dict[str, Expr] = {}
    seen: set[Expr] = set()
    for instruction in program.instructions:
        if type(instruction) is Launch and not instruction.sizes:
            continue
        for expr in _list_needed_expressions(instruction, inputs):
            if expr in seen:
                continue
            for symbol in _symbols((expr,), seen):
                if symbol.name not in bound:
                    symbols.setdefault(symbol.name, symbol)
    return tuple(symbols.values())


def list_used_symbols(instruction: Instruction) -> tuple[Expr, ...]:
    """Symbols that `instruction` needs, in the order of first use; of a region, those of its boundary."""
    if isinstance(instruction, Region):
        return instruction.symbols
    return tuple(dict.fromkeys(_symbols(_list_needed_expressions(instruction, {}), set())))


def _symbols(expressions: Iterable[Expr], seen: set[Expr]) -> Iterator[Expr]:
    """Symbols of `expressions` that are not `seen`."""
    for expr in expressions:
        if expr in seen:
            continue
        seen.add(expr)
        if expr.is_const:
            continue
        # an expression's symbols come as a set; names give them an order
        yield from sorted(expr.free_symbols, key=lambda symbol: symbol.name)


def list_program_symbols(program: Program) -> tuple[Expr, ...]:
    """Symbols that inputs, `bind` instructions and calls give values, in order, each once."""
    symbols: dict[str, Expr] = {}
    for entry in program.inputs:
        if isinstance(entry, Expr) and entry.is_symbol:
            symbols.setdefault(entry.name, entry)
    for instruction in program.instructions:
        for symbol in iterate_bound_symbols(instruction):
            symbols.setdefault(symbol.name, symbol)
    return tuple(symbols.values())


def iterate_bound_symbols(instruction: Instruction) -> Iterator[Expr]:
    """Symbols that `instruction` gives values."""
    match instruction:
        case BindSymbol(symbol=symbol):
            yield symbol
        case ExternCall():
            yield from (symbol for symbol, _, _ in instruction.binds)
            yield from (output.symbol for output in instruction.outputs if isinstance(output, SymbolOutput))
        case Region():
            for inner in instruction.body:
                yield from iterate_bound_symbols(inner)
        case _:
            pass


def _list_needed_expressions(instruction: Instruction, inputs: dict[str, Buffer]) -> Iterator[Expr]:
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
        case LoopCall():
            arguments = (*instruction.carried, *instruction.extra)
            if instruction.rounds is not None:
                yield instruction.rounds
        case Return():
            arguments = instruction.values
        case Region():
            yield from instruction.symbols
            return
        case _:
            pass
    for argument in arguments:
        yield from _walk_argument(argument)
    for nested in list_nested_programs(instruction):
        yield from list_outer_symbols(nested)
    for buffer in list_defined_buffers(instruction):
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
