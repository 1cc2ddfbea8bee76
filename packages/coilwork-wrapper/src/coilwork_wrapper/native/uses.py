"""Which buffers are plain memory: only kernels and further views touch them, so no tensor has to stand for
them.
"""

from __future__ import annotations

from coilwork_ir.buffers import Argument, Ref, references
from coilwork_ir.program.nodes import CondCall, ExternCall, Program, Return, SubprogramCall, WhileCall
from coilwork_ir.program.regions import straight
from coilwork_ir.streams import Copy


def tensors_needed(program: Program) -> frozenset[str]:
    """Names of the buffers of `program` that operators, nested programs and the caller are given."""
    names: set[str] = set()
    for instruction in straight(program.instructions):
        match instruction:
            case ExternCall():
                arguments: tuple[Argument, ...] = (
                    *instruction.args,
                    *(value for _, value in instruction.kwargs),
                    *(Ref(name) for _, name in instruction.out),
                )
            case CondCall():
                arguments = (Ref(instruction.predicate), *instruction.operands)
            case WhileCall():
                arguments = (*instruction.carried, *instruction.extra)
            case SubprogramCall():
                arguments = instruction.operands
            case Copy():
                arguments = (Ref(instruction.source), Ref(instruction.target))
            case Return():
                arguments = instruction.values
            case _:
                continue
        names.update(name for argument in arguments for name in references(argument))
    return frozenset(names)
