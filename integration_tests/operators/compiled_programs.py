"""The programs that graphs compile to, kept while they run in eager mode: no kernel is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.job import Job
from coilwork.stages import Compiled
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.capture.eager_fallback import box_graph
from coilwork_ir.program import ExternCall, Program
from coilwork_ir.program.walk import walk
from coilwork_runtime.executor.choice import Driven


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """One graph as AOTAutograd captured it, its part in the user's function, and the program that it compiles
    to.
    """

    role: Role
    graph: torch.fx.GraphModule
    program: Program

    @property
    def calls(self) -> list[ExternCall]:
        """The operators that the program leaves to ATen, those of nested programs among them."""
        instructions = (one for part in walk(self.program) for one in part.instructions)
        return [one for one in instructions if isinstance(one, ExternCall)]


@contextmanager
def kept() -> Iterator[list[CompiledProgram]]:
    """A list to which every graph compiled meanwhile is added."""
    found: list[CompiledProgram] = []

    def keep(compiled: Compiled, job: Job, *_: object) -> Driven:
        found.append(CompiledProgram(role=job.role, graph=job.gm, program=compiled.program))
        return Driven(call=box_graph(job.gm), executor="eager", python_calls={})

    with mock.patch.object(compile_graph, "make_call", keep):
        yield found


def compile_afresh(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
    """`function` for Coilwork to compile when it is called; what cannot be compiled raises."""
    found: Callable[..., Any] = torch.compile(
        function, backend=partial(backend, options={"cache": False, "strict": True, **options})
    )
    return found
