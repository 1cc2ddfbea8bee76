"""The wrapper `fx`: programs as graph modules, and how these are saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import coilwork_wrapper.layouts as layouts
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.walk import check_bound, list_kernels
from coilwork_ir.wrapper import Launcher, WrapOptions
from coilwork_wrapper.fx_emitter import FxEmitter
from coilwork_wrapper.runtime_interface import Surface

PROGRAM: Final = "program.txt"
KERNELS: Final = "kernels.bin"
CONSTANTS: Final = "constants.pt"
CODE: Final = "fx.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class FxArtifact:
    """A graph module, called with one list, which it empties.

    Attributes:
        graph: the module.
        program: it runs this.
        sources: texts of its kernels.
        constants: tensors by key.
    """

    graph: torch.fx.GraphModule
    program: Program
    sources: Mapping[str, KernelSource]
    constants: Mapping[str, torch.Tensor]

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = self.graph(*values)
        return results

    def save(self, folder: Path, /) -> None:
        """Write the program, its kernels, its constants, and the graph's code for people. `FxWrapper.load`
        reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        kernels = list_kernels(self.program)
        (folder / PROGRAM).write_text(format_program(self.program), encoding="utf-8")
        (folder / KERNELS).write_bytes(write_kernels((self.sources[k.name], k.origins) for k in kernels))
        (folder / CODE).write_text(self.graph.code, encoding="utf-8")
        torch.save(dict(self.constants), folder / CONSTANTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FxWrapper:
    """Programs as `torch.fx.GraphModule`.

    A package that wants another graph subclasses `FxEmitter`, overrides what it wants otherwise, and
    registers `FxWrapper(name="its name", emitter=ItsEmitter)`.

    Attributes:
        name: the value of the option `wrapper`.
        emitter: the class whose methods add the nodes of each instruction.
    """

    name: str = "fx"
    emitter: type[FxEmitter] = FxEmitter

    def refuses(self, program: Program) -> str:
        """Why there is no graph of `program`: a size symbol without a value."""
        try:
            check_bound(program)
        except EmitError as error:
            return str(error)
        return ""

    def emit(self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions) -> FxArtifact:
        """The graph, which calls the kernels that `options` build, and `options.runtime` for all else."""
        check_bound(program)
        graph = self.emitter(
            program=program,
            launchers=options.build(),
            constants=options.constants,
            runtime=layouts if options.runtime is None else options.runtime,
        ).run()
        options.write(CODE, graph.code)
        return FxArtifact(graph=graph, program=program, sources=sources, constants=options.constants)

    def load(
        self,
        folder: Path,
        build: Callable[[bytes], Mapping[str, Launcher]],
        *,
        runtime: Surface = layouts,
    ) -> torch.fx.GraphModule:
        """The graph module that `save` wrote to `folder`.

        `build` builds kernels from their manifests and texts, as `coilwork_ir.kernel_source` writes them.
        """
        return self.emitter(
            program=parse_program((folder / PROGRAM).read_text(encoding="utf-8")),
            launchers=build((folder / KERNELS).read_bytes()),
            constants=torch.load(folder / CONSTANTS, weights_only=True),
            runtime=runtime,
        ).run()


FX: Final = FxWrapper()
