"""Run a compiled program one launch at a time, with its built kernels, and an observer of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loc import Origin
from coilwork_ir.program.interpreter import Hooks, Observe, Step, interpret_program
from coilwork_ir.program.nodes import (
    CheckLayout,
    CondCall,
    ExternCall,
    Launch,
    LoopCall,
    Program,
    Reinterpret,
    Return,
    SubprogramCall,
)
from coilwork_ir.program.walk import list_defined_buffers, list_kernels
from coilwork_ir.streams import Copy
from coilwork_runtime import generated

Launcher = Callable[..., Any]
Call = Callable[[list[Any]], Sequence[Any]]
"""Takes one list of inputs, which it empties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """A program with its kernels and constants.

    Attributes:
        program: what is run.
        launchers: built kernels, by name.
        constants: tensors of the program.
        wrote: names that each kernel's launch writes: positions among its arguments.
        reads: likewise, those that it reads.
    """

    program: Program
    launchers: Mapping[str, Launcher]
    constants: Mapping[str, Tensor]
    wrote: Mapping[str, tuple[int, ...]]
    reads: Mapping[str, tuple[int, ...]]

    def run(self, inputs: Sequence[Any], *, before: Observe | None, after: Observe | None) -> Sequence[Any]:
        """Return the program's results; fresh memory holds zeros, so that what a kernel leaves alone is no
        NaN.
        """
        hooks = Hooks(launch=self._launch, before=before, after=after, poison=False)
        return interpret_program(self.program, self._align_inputs(inputs), self.constants, hooks)

    def list_written(self, step: Step) -> tuple[str, ...]:
        """Return the buffers that `step` writes."""
        if isinstance(step, Launch):
            return tuple(step.args[position] for position in self.wrote[step.kernel])
        if isinstance(step, Copy):
            return (step.target,)
        named = tuple(buffer.name for buffer in list_defined_buffers(step))
        return (*named, *(name for _, name in step.out)) if isinstance(step, ExternCall) else named

    def read(self, step: Step) -> tuple[str, ...]:
        """Return the buffers that `step` reads; of a condition or loop none, what is in it reads them."""
        if isinstance(step, Launch):
            return tuple(step.args[position] for position in self.reads[step.kernel])
        if isinstance(step, Copy):
            return (step.source,)
        if not isinstance(step, ExternCall):
            return ()
        given = (*step.args, *(value for _, value in step.kwargs))
        return tuple(value.name for value in given if isinstance(value, Ref))

    def _launch(self, launch: Launch, tensors: Sequence[Tensor], sizes: Sequence[int]) -> None:
        self.launchers[launch.kernel](*tensors, *sizes)

    def _align_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs whose address the program makes sure of are copied if it is not aligned."""
        wanted = {i.buffer for i in self.program.instructions if isinstance(i, CheckLayout) and i.aligned}
        return [
            generated.ensure_aligned(value)[0]
            if isinstance(entry, Buffer) and entry.name in wanted and isinstance(value, Tensor)
            else value
            for entry, value in zip(self.program.inputs, inputs, strict=True)
        ]


def make_stepper(
    program: Program, launchers: Mapping[str, Launcher], constants: Mapping[str, Tensor]
) -> Stepper:
    """`program` ready to be run step by step."""
    wrote, reads = {}, {}
    for kernel in list_kernels(program):
        wrote[kernel.name] = tuple(i for i, arg in enumerate(kernel.args) if arg.role != "in")
        reads[kernel.name] = tuple(i for i, arg in enumerate(kernel.args) if arg.role != "out")
    return Stepper(program=program, launchers=launchers, constants=constants, wrote=wrote, reads=reads)


def list_steps(program: Program) -> list[Step]:
    """Launches, calls, copies, conditions and loops of `program`, in order; not those within others."""
    kinds = Launch | ExternCall | CondCall | LoopCall | SubprogramCall | Copy
    return [i for i in program.instructions if isinstance(i, kinds)]


def list_writers(stepped: Stepper, program: Program, name: str) -> list[Launch | ExternCall]:
    """Return the launches and calls of `program` that write the buffer `name`: of a view, its memory; of a
    branch, what is in it.
    """
    steps: list[Launch | ExternCall] = []
    for instruction in program.instructions:
        match instruction:
            case Launch() | ExternCall():
                steps += [instruction] if name in stepped.list_written(instruction) else []
            case Reinterpret() if instruction.buffer.name == name:
                steps += list_writers(stepped, program, instruction.source)
            case CondCall() | LoopCall() | SubprogramCall():
                for nested, inner in _list_inner_names(instruction, name):
                    steps += list_writers(stepped, nested, inner)
            case _:
                pass
    return steps


def _list_inner_names(region: CondCall | LoopCall | SubprogramCall, name: str) -> list[tuple[Program, str]]:
    """Return the names of the output `name` in the programs that make it: both branches, or the body of a
    loop or subprogram.
    """
    names = []
    for nested in (region.then, region.otherwise) if isinstance(region, CondCall) else (region.body,):
        returned = nested.instructions[-1]
        assert isinstance(returned, Return)
        for output, value in zip(region.outputs, returned.values, strict=True):
            if output.name == name and isinstance(value, Ref):
                names.append((nested, value.name))
    return names


def describe_culprits(stepped: Stepper, program: Program, step: Step, name: str) -> str:
    """Describe the kernels and calls of `step` in `program` that write the buffer `name`."""
    steps = [step] if isinstance(step, Launch | ExternCall) else list_writers(stepped, program, name)
    return "\n  kernel  ".join(map(describe, steps)) or "no kernel"


def describe(step: Launch | ExternCall) -> str:
    """Return the kernel or operator, and the operations and source lines that it computes."""
    what = f"kernel {step.kernel}" if isinstance(step, Launch) else f"call of {step.target}"
    return f"{what}, which computes {format_origins(step.origins)}"


def format_origins(origins: Sequence[Origin]) -> str:
    """One operation per line, with the line of source that it stands in."""
    if not origins:
        return "nothing that is known of"
    return "\n          ".join(
        f"{origin}" + (f": {origin.code}" if origin.code else "") for origin in origins
    )


def find_last_writers(stepped: Stepper) -> dict[str, int]:
    """Return the number of the last of the program's steps that writes each buffer, counted from 0."""
    steps = list_steps(stepped.program)
    return {name: number for number, step in enumerate(steps) for name in stepped.list_written(step)}
