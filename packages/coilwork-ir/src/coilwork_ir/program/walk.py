"""Questions about programs that emitters, planners and reports share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    CondCall,
    ExternCall,
    Instruction,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Reuse,
    SubprogramCall,
    WhileCall,
)
from coilwork_ir.streams import Copy, ForkStream, RecordEvent

# Libraries whose operators write what they are given only where their names end so.
_KNOWN: Final = frozenset(
    ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
)

# Every emitter asks this of every instruction, several times: a look-up is what it costs to find out.
_NESTED: Final[Mapping[type[Instruction], Callable[[Any], tuple[Program, ...]]]] = MappingProxyType(
    {
        CondCall: lambda call: (call.then, call.otherwise),
        WhileCall: lambda call: (call.condition, call.body),
        SubprogramCall: lambda call: (call.body,),
        Region: lambda region: tuple(nested for inner in region.body for nested in nested_programs(inner)),
    }
)
_DEFINED: Final[Mapping[type[Instruction], Callable[[Any], tuple[Buffer, ...]]]] = MappingProxyType(
    {
        **dict.fromkeys((Alloc, PoolView, Reuse, Reinterpret), lambda instruction: (instruction.buffer,)),
        **dict.fromkeys((CondCall, WhileCall, SubprogramCall), lambda call: call.outputs),
        ExternCall: lambda call: tuple(one for one in call.outputs if isinstance(one, Buffer)),
        Region: lambda region: tuple(buffer for inner in region.body for buffer in defined_buffers(inner)),
    }
)


def nested_programs(instruction: Instruction) -> tuple[Program, ...]:
    """Programs inside an instruction: branches, loops, and what is called."""
    find = _NESTED.get(type(instruction))
    return () if find is None else find(instruction)


def walk(program: Program) -> Iterator[Program]:
    """`program` and every program nested in it, outermost first."""
    yield program
    for instruction in program.instructions:
        for nested in nested_programs(instruction):
            yield from walk(nested)


def distinct_programs(program: Program) -> tuple[Program, ...]:
    """`program` and every program nested in it, each once, before those nested in itself."""
    found: list[Program] = []
    seen: set[int] = set()

    def visit(part: Program) -> None:
        seen.add(id(part))
        for instruction in reversed(part.instructions):
            for nested in reversed(nested_programs(instruction)):
                if id(nested) not in seen:
                    visit(nested)
        found.append(part)

    visit(program)
    return tuple(reversed(found))


def defined_buffers(instruction: Instruction) -> tuple[Buffer, ...]:
    """Buffers that `instruction` defines."""
    find = _DEFINED.get(type(instruction))
    return () if find is None else find(instruction)


def defined_values(instruction: Instruction) -> tuple[str, ...]:
    """Names that `instruction` defines which are no buffers: of a pool, stream or event."""
    match instruction:
        case AllocPool():
            return (instruction.pool,)
        case ForkStream():
            return (instruction.stream,)
        case RecordEvent():
            return (instruction.event,)
        case Region():
            return tuple(name for inner in instruction.body for name in defined_values(inner))
        case _:
            return ()


def as_call(instruction: Instruction) -> ExternCall | None:
    """The call of an operator that `instruction` is, or that does what it says; None if it is neither."""
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


def buffers(program: Program) -> dict[str, Buffer]:
    """Every buffer of `program` by name: inputs, constants, and what instructions define; nested
    ones aside.
    """
    found = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}
    found.update((constant.buffer.name, constant.buffer) for constant in program.constants)
    for instruction in program.instructions:
        found.update((buffer.name, buffer) for buffer in defined_buffers(instruction))
    return found


def all_kernels(program: Program) -> tuple[Kernel, ...]:
    """Kernels of `program` and of the programs nested in it, each name once."""
    found: dict[str, Kernel] = {}
    for part in distinct_programs(program):
        for kernel in part.kernels:
            found.setdefault(kernel.name, kernel)
    return tuple(found.values())
