"""The wrapper `cpp`: programs as shared libraries, and how these are saved and loaded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_cpp_wrapper.build_program import CompiledProgram, build_library, load_program
from coilwork_cpp_wrapper.embedding import Binaries, Embedded, embed_kernels
from coilwork_cpp_wrapper.host_launches import Launch
from coilwork_cpp_wrapper.module import CppProgram, KernelUnit, Port, emit_cpp
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.walk import list_kernels, walk
from coilwork_ir.wrapper import Store, WrapOptions
from coilwork_runtime import ArtifactError
from coilwork_runtime.executor.library_call import make_library_call
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelArgument, KernelSpec
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.tensor_kinds import TensorKinds
from coilwork_runtime.threads import Threads

Call = Callable[..., Sequence[Any]]
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
        specs: its kernels, by name.
        launchers: those of its kernels that run on a GPU.
        is_complete: it calls ATen's operators alone, none of them in Python.
        store: keeps what is built.
    """

    call: CompiledProgram
    library: bytes
    constants: Mapping[str, torch.Tensor]
    specs: Mapping[str, KernelSpec] = field(default_factory=lambda: MappingProxyType({}))
    launchers: Mapping[str, Launch] = field(default_factory=lambda: MappingProxyType({}))
    store: Store | None = None
    is_complete: bool = False

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        return self.call(args)

    def open_native(self, instead: Call, kinds: TensorKinds, store: Any) -> Call | None:
        """Do as `make_library_call`."""
        return make_library_call(self.call.describe(), instead, kinds, store)

    def save(self, folder: Path, /) -> None:
        """Write the library, its text, what calling it takes, and constants; `load_cpp` reads them.

        The library brings the kernels that run on a GPU, each in the configuration that calls have chosen.

        Raises:
            ArtifactError: a kernel runs in an interpreter, or is launched by another package.
        """
        folder.mkdir(parents=True, exist_ok=True)
        program = self.call.program
        library = self.library
        if program.gpu_kernels:
            library = build_library(program, embedded=self._embed(), store=self.store)
        (folder / LIBRARY).write_bytes(library)
        (folder / TEXT).write_text(program.text, encoding="utf-8")
        (folder / PROGRAM).write_text(json.dumps(asdict(program)), encoding="utf-8")
        torch.save({key: self.constants[key] for key in program.constants}, folder / CONSTANTS)

    def _embed(self) -> Embedded:
        """Return the kernels that run on a GPU, in machine code."""
        binaries: dict[str, Binaries] = {}
        for name in self.call.program.gpu_kernels:
            launcher = self.launchers[name]
            listed = launcher.binaries if isinstance(launcher, Launcher) else None
            if listed is None:
                raise ArtifactError(
                    "no-machine-code",
                    f"kernel {name} has no machine code to save",
                    reason="it runs in Triton's interpreter, or another package launches it",
                )
            binaries[name] = listed()
        return embed_kernels(self.call.program, self.specs, binaries)


class CppWrapper:
    """Programs as C++ over torch's C interface, for CPUs and one GPU."""

    name: Final = "cpp"

    def refuses(self, program: Program) -> str:
        """Return the operator, device or element type that C++ cannot do yet."""
        try:
            emit_cpp(program, {kernel.name: _stand_in(kernel) for kernel in list_kernels(program)})
        except EmitError as error:
            return str(error)
        return ""

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> CppArtifact:
        """Return the program, with its kernels, built and loaded.

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
        specs = {spec.name: spec for spec in load_kernels(kernels)}
        cpp = emit_cpp(program, specs)
        options.write(TEXT, cpp.text)
        with Threads(1, "coilwork-program") as beside:
            library = beside.submit(partial(build_library, cpp, store=options.store, workers=options.workers))
            launchers = options.build() if cpp.gpu_kernels else {}
            call = load_program(cpp, library.result(), options.constants, launchers)
        return CppArtifact(
            call=call,
            library=library.result(),
            constants=options.constants,
            specs=specs,
            launchers=launchers,
            store=options.store,
            is_complete=not cpp.relayed and _calls_aten_alone(program),
        )


CPP: Final = CppWrapper()


def load_cpp(folder: Path, *, device: int | None = None) -> CompiledProgram:
    """Return the program that a `CppArtifact` wrote to `folder`, on a machine like the one that built it.

    It runs on the GPU number `device`, else on the one that it was compiled on; constants are moved there.

    Raises:
        ArtifactError: a file is missing or damaged.
        KernelBuildError: the library does not load.
    """
    try:
        fields = json.loads((folder / PROGRAM).read_text(encoding="utf-8"))
        fields |= {name: tuple(Port(**port) for port in fields[name]) for name in ("inputs", "outputs")}
        fields |= {name: tuple(fields[name]) for name in ("constants", "relayed", "gpu_kernels")}
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
    if device is not None and program.gpu:
        there = torch.device("cuda", device)
        constants = {key: one.to(there) if one.is_cuda else one for key, one in constants.items()}
    return load_program(program, library, constants, device=device)


def _calls_aten_alone(program: Program) -> bool:
    return all(
        instruction.target.startswith("aten.")
        for part in walk(program)
        for instruction in part.instructions
        if isinstance(instruction, ExternCall)
    )


def _stand_in(kernel: Kernel) -> KernelSpec:
    """Return a kernel as its launches see it, before it has a text."""
    tensors = tuple(KernelArgument(name=a.name, role=a.role, dtype=a.dtype.text) for a in kernel.args)
    sizes = tuple(KernelArgument(name=s.name, role="size", dtype="i64") for s in kernel.sizes)
    return KernelSpec(name=kernel.name, language="cpp", entry=kernel.name, args=(*tensors, *sizes), source="")
