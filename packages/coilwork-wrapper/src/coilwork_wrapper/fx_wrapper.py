"""The wrapper `fx`: programs as graph modules, and how these are saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from coilwork_wrapper.kernel_operators import define_operators
from coilwork_wrapper.runtime_interface import Surface
from coilwork_wrapper.triton_calls import find_triton_kernels

PROGRAM: Final = "program.txt"
KERNELS: Final = "kernels.bin"
CONSTANTS: Final = "constants.pt"
CODE: Final = "fx.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class FxArtifact:
    """A graph module, called with one list, which it empties.

    Attributes:
        graph: the module.
        call: what is called for it: the module, or what an emitter compiled it to.
        program: it runs this.
        kernels: manifests and texts of its kernels (`coilwork_ir.kernel_source`).
        constants: tensors by key.
    """

    graph: torch.fx.GraphModule
    call: Callable[..., Sequence[Any]]
    program: Program
    kernels: bytes
    constants: Mapping[str, torch.Tensor]

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        return self.call(*values)

    def save(self, folder: Path, /) -> None:
        """Write the program, its kernels, its constants, and the graph's code for people. `FxWrapper.load`
        reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRAM).write_text(format_program(self.program), encoding="utf-8")
        (folder / KERNELS).write_bytes(self.kernels)
        (folder / CODE).write_text(self.graph.code, encoding="utf-8")
        torch.save(dict(self.constants), folder / CONSTANTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FxWrapper:
    """Programs as `torch.fx.GraphModule`.

    A package that wants another graph, or compiles the graph further, subclasses `FxEmitter`, overrides what
    it wants otherwise, and hands its class over by the option `fx_emitter`, or registers
    `FxWrapper(name="its name", emitter=ItsEmitter)`.

    Attributes:
        name: the value of the option `wrapper`.
        emitter: the class whose methods add the nodes of each instruction.
    """

    name: str = "fx"
    emitter: type[FxEmitter] = FxEmitter

    def refuses(self, program: Program) -> str:
        """Return why there is no graph of `program`: a size symbol without a value."""
        try:
            check_bound(program)
        except EmitError as error:
            return str(error)
        return ""

    def emit(self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions) -> FxArtifact:
        """Return the graph, which calls the kernels that `options` build, and `options.runtime` for
        checks.
        """
        kernels = write_kernels((sources[kernel.name], kernel.origins) for kernel in list_kernels(program))
        return self.restore(program, kernels, options)

    def restore(self, program: Program, kernels: bytes, options: WrapOptions) -> FxArtifact:
        """Return what `emit` does, of kernels as manifests and texts (`coilwork_ir.kernel_source`)."""
        check_bound(program)
        runtime = layouts if options.runtime is None else options.runtime
        chosen = self if options.emitter is None else replace(self, emitter=options.emitter)
        # a launcher's own call costs one function less
        built = {name: getattr(one, "call", one) for name, one in options.build().items()}
        emitter = chosen._open(program, built, kernels, options.constants, runtime)
        graph = emitter.run()
        options.write(CODE, graph.code)
        call = emitter.compile_graph(graph)
        return FxArtifact(
            graph=graph, call=call, program=program, kernels=kernels, constants=options.constants
        )

    def load(
        self,
        folder: Path,
        build: Callable[[bytes], Mapping[str, Launcher]],
        *,
        runtime: Surface = layouts,
    ) -> torch.fx.GraphModule:
        """Return the graph module that `save` wrote to `folder`.

        `build` builds kernels from their manifests and texts, as `coilwork_ir.kernel_source` writes them.
        """
        kernels = (folder / KERNELS).read_bytes()
        constants = torch.load(folder / CONSTANTS, weights_only=True)
        program = parse_program((folder / PROGRAM).read_text(encoding="utf-8"))
        return self._open(program, build(kernels), kernels, constants, runtime).run()

    def _open(
        self,
        program: Program,
        built: Mapping[str, Launcher],
        kernels: bytes,
        constants: Mapping[str, torch.Tensor],
        runtime: Surface,
    ) -> FxEmitter:
        return self.emitter(
            program=program,
            launchers={**define_operators(program, built, kernels), **find_triton_kernels(kernels)},
            constants=constants,
            runtime=runtime,
        )


FX: Final = FxWrapper()
