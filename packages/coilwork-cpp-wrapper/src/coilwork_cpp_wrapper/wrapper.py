"""The wrapper `cpp`: programs as shared libraries, and how these are saved and loaded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_cpp_wrapper.build_program import CompiledProgram, build_library, load_program
from coilwork_cpp_wrapper.module import CppProgram, KernelUnit, Port, emit_cpp
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.wrapper import WrapOptions
from coilwork_runtime import ArtifactError
from coilwork_runtime.manifest.kernel_manifest import KernelArgument, KernelSpec
from coilwork_runtime.module_loader import load_kernels

LIBRARY: Final = "program.so"
PROGRAM: Final = "program.json"
CONSTANTS: Final = "constants.pt"
TEXT: Final = "program.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CppArtifact:
    """A built program, called with one list, which it empties.

    Attributes:
        call: the program.
        library: the shared library's bytes.
        constants: tensors by key.
    """

    call: CompiledProgram
    library: bytes
    constants: Mapping[str, torch.Tensor]

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        return self.call(args)

    def save(self, folder: Path, /) -> None:
        """Write the library, its text, what calling it takes, and constants; `load_cpp` reads them."""
        folder.mkdir(parents=True, exist_ok=True)
        program = self.call.program
        (folder / LIBRARY).write_bytes(self.library)
        (folder / TEXT).write_text(program.text, encoding="utf-8")
        (folder / PROGRAM).write_text(json.dumps(asdict(program)), encoding="utf-8")
        torch.save({key: self.constants[key] for key in program.constants}, folder / CONSTANTS)


class CppWrapper:
    """Programs as C++ over torch's C interface, for CPUs."""

    name: Final = "cpp"

    def refuses(self, program: Program) -> str:
        """The operator, device or element type that C++ cannot do yet."""
        try:
            emit_cpp(program, {kernel.name: _stand_in(kernel) for kernel in list_kernels(program)})
        except EmitError as error:
            return str(error)
        return ""

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> CppArtifact:
        """The program, with its kernels, built and loaded.

        Raises:
            EmitError: the program does what C++ cannot do yet, or a kernel is in another language.
            KernelBuildError, MissingCompilerError: it cannot be built.
        """
        used = [(sources[k.name], k.origins) for k in list_kernels(program) if k.name in sources]
        return self.restore(program, write_kernels(used), options)

    def restore(self, program: Program, kernels: bytes, options: WrapOptions) -> CppArtifact:
        """Do as `emit`, of kernels as manifests and texts (`coilwork_ir.kernel_source`): a graph cache has
        nothing else of them. With the store that the program was built for, no compiler runs.
        """
        cpp = emit_cpp(program, {spec.name: spec for spec in load_kernels(kernels)})
        options.write(TEXT, cpp.text)
        library = build_library(cpp, store=options.store, workers=options.workers)
        call = load_program(cpp, library, options.constants)
        return CppArtifact(call=call, library=library, constants=options.constants)


CPP: Final = CppWrapper()


def load_cpp(folder: Path) -> CompiledProgram:
    """The program that a `CppArtifact` wrote to `folder`, on a machine like the one that built it.

    Raises:
        ArtifactError: a file is missing or damaged.
        KernelBuildError: the library does not load.
    """
    try:
        fields = json.loads((folder / PROGRAM).read_text(encoding="utf-8"))
        fields |= {name: tuple(Port(**port) for port in fields[name]) for name in ("inputs", "outputs")}
        fields |= {name: tuple(fields[name]) for name in ("constants", "relayed")}
        units = [{**unit, "features": tuple(unit["features"])} for unit in fields["kernels"]]
        program = CppProgram(**{**fields, "kernels": tuple(KernelUnit(**unit) for unit in units)})
        library = (folder / LIBRARY).read_bytes()
        constants = torch.load(folder / CONSTANTS, weights_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ArtifactError(
            "damaged-program",
            f"{folder} holds no program that the C++ wrapper saved",
            reason=f"{type(error).__name__}: {error}",
            remedy="save it again",
        ) from error
    return load_program(program, library, constants)


def _stand_in(kernel: Kernel) -> KernelSpec:
    """A kernel as its launches see it, before it has a text."""
    tensors = tuple(KernelArgument(name=a.name, role=a.role, dtype=a.dtype.text) for a in kernel.args)
    sizes = tuple(KernelArgument(name=s.name, role="size", dtype="i64") for s in kernel.sizes)
    return KernelSpec(name=kernel.name, language="cpp", entry=kernel.name, args=(*tensors, *sizes), source="")
