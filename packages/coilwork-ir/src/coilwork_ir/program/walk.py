"""Questions about programs that emitters, planners and reports share."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import (
    Alloc,
    CondCall,
    ExternCall,
    Instruction,
    PoolView,
    Program,
    Reinterpret,
    Reuse,
    WhileCall,
)


def nested_programs(instruction: Instruction) -> tuple[Program, ...]:
    """Programs inside a control-flow instruction."""
    match instruction:
        case CondCall():
            return (instruction.then, instruction.otherwise)
        case WhileCall():
            return (instruction.condition, instruction.body)
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
        case _:
            return ()


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
