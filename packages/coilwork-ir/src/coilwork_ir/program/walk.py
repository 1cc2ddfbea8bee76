"""Questions about programs that emitters, planners and reports share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
    WhileCall,
)
from coilwork_ir.streams import Copy, ForkStream, RecordEvent

# Libraries whose operators write what they are given only where their names end so.
_KNOWN: Final = frozenset(
    ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
)


def nested_programs(instruction: Instruction) -> tuple[Program, ...]:
    """Programs inside a control-flow instruction."""
    match instruction:
        case CondCall():
            return (instruction.then, instruction.otherwise)
        case WhileCall():
            return (instruction.condition, instruction.body)
        case Region():
            return tuple(nested for inner in instruction.body for nested in nested_programs(inner))
        case _:
            return ()


def walk(program: Program) -> Iterator[Program]:
    """`program` and every program nested in it, outermost first."""
    yield program
    for instruction in program.instructions:
        for nested in nested_programs(instruction):
            yield from walk(nested)


def defined_buffers(instruction: Instruction) -> tuple[Buffer, ...]:
    """Buffers that `instruction` defines."""
    match instruction:
        case Alloc() | PoolView() | Reuse() | Reinterpret():
            return (instruction.buffer,)
        case ExternCall():
            return tuple(o for o in instruction.outputs if isinstance(o, Buffer))
        case CondCall() | WhileCall():
            return instruction.outputs
        case Region():
            return tuple(buffer for inner in instruction.body for buffer in defined_buffers(inner))
        case _:
            return ()


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
    """Every buffer of `program` by name: inputs, constants, and what instructions define; nested ones aside."""
    found = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}
    found.update((constant.buffer.name, constant.buffer) for constant in program.constants)
    for instruction in program.instructions:
        found.update((buffer.name, buffer) for buffer in defined_buffers(instruction))
    return found


def all_kernels(program: Program) -> tuple[Kernel, ...]:
    """Kernels of `program` and of the programs nested in it, each name once."""
    found: dict[str, Kernel] = {}
    for part in walk(program):
        for kernel in part.kernels:
            found.setdefault(kernel.name, kernel)
    return tuple(found.values())
