"""From C++ text to a callable: each unit compiled on its own, linked to a shared library, loaded.

Objects and libraries go into a store, if one is given. `CompiledProgram` is called like any generated module.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_cpp_wrapper.module import CppProgram, KernelUnit
from coilwork_cpp_wrapper.relays import find_target, register_relays
from coilwork_cpp_wrapper.torch_compat import handles_of, size_in, tensors_from
from coilwork_ir.errors import EmitError
from coilwork_ir.wrapper import Store
from coilwork_runtime import KernelBuildError, LayoutError
from coilwork_runtime.cpp.toolchain import (
    Toolchain,
    find_toolchain,
    link_flags,
    list_flags,
    make_stub,
    run_compiler,
)
from coilwork_runtime.folders import temporary_folder
from coilwork_runtime.layout_checks import INPUT_REMEDY, RESULT_REMEDY
from coilwork_runtime.threads import Threads
from coilwork_runtime.usable_cores import count_usable_cores

# ---- call ----


INDEX_FAILED: Final = 3
LAYOUT_FAILED: Final = 4
RESULT_FAILED: Final = 5
DIVISION_FAILED: Final = 6

Result = torch.Tensor | int | None


class CompiledProgram:
    """A program in a loaded library. Called with one list, which it empties, it returns a tuple.

    Tensors cross as handles, without copying; integers as 64-bit numbers. The interpreter's lock is released
    during the call, and calls from several threads may overlap.

    Raises, when called:
        LayoutError: an input is not what the program was compiled for, or an operator's result is not what
        was planned. IndexError: an index was out of range. ZeroDivisionError: a number that data decides was
        divided by 0. RuntimeError: another check, or an operator, failed. The message names the
            instruction and the source lines it implements.
    """

    def __init__(
        self, program: CppProgram, library: ctypes.CDLL, constants: Mapping[str, torch.Tensor]
    ) -> None:
        self.program = program
        self._run = library.coilwork_run
        self._run.argtypes = [ctypes.c_void_p] * 5
        self._run.restype = ctypes.c_int
        self._last_error: Callable[[], bytes] = library.coilwork_last_error
        library.coilwork_last_error.argtypes = []
        library.coilwork_last_error.restype = ctypes.c_char_p
        handles = handles_of([constants[key] for key in program.constants])
        self._constants = (ctypes.c_void_p * len(handles))(*handles)
        # turning handles into tensors deletes them; at exit the process does that
        weakref.finalize(self, tensors_from, handles).atexit = False
        # Array types are made once: looking one up costs as much as a small allocation.
        self._is_tensor = tuple(port.kind == "tensor" for port in program.inputs)
        self._inputs = ctypes.c_void_p * sum(self._is_tensor)
        self._numbers = ctypes.c_int64 * (len(self._is_tensor) - sum(self._is_tensor))
        kinds = [port.kind for port in program.outputs]
        self._kinds = tuple(kinds)
        self._only_tensors = all(kind == "tensor" for kind in kinds)
        self._outputs = ctypes.c_void_p * sum(kind != "size" for kind in kinds)
        self._sizes = ctypes.c_int64 * sum(kind == "size" for kind in kinds)

    def __call__(self, args: list[Any]) -> tuple[Result, ...]:
        tensors: list[torch.Tensor] = []
        numbers: list[int] = []
        expected = self._is_tensor
        if len(args) != len(expected):
            raise self._misfit(args)
        for arg, is_tensor in zip(args, expected, strict=True):
            if isinstance(arg, torch.Tensor) is not is_tensor:
                raise self._misfit(args)
            if is_tensor:
                tensors.append(arg)
            else:
                numbers.append(size_in(arg))
        sizes = self._numbers(*numbers)
        inputs = self._inputs(*handles_of(tensors))
        # from here on only the handles keep the inputs' memory
        args.clear()
        tensors.clear()
        arg = None
        outputs, output_sizes = self._outputs(), self._sizes()
        kind = self._run(self._constants, inputs, sizes, outputs, output_sizes)
        if kind:
            self._raise(kind)
        return self._results(outputs, output_sizes)

    def _results(self, outputs: Iterable[int | None], output_sizes: Iterable[int]) -> tuple[Result, ...]:
        tensors = tensors_from([handle for handle in outputs if handle])
        if self._only_tensors:
            return tuple(tensors)
        found, extents = iter(tensors), iter(output_sizes)
        results: list[Result] = []
        for kind in self._kinds:
            results.append(next(found) if kind == "tensor" else next(extents) if kind == "size" else None)
        return tuple(results)

    def _misfit(self, args: list[Any]) -> LayoutError:
        wanted = ", ".join(port.name for port in self.program.inputs)
        given = ", ".join(type(arg).__name__ for arg in args)
        return LayoutError(
            "input-count", f"program {self.program.name} takes ({wanted})", reason=f"it is given ({given})"
        )

    def _raise(self, kind: int) -> None:
        message = self._last_error().decode("utf-8", "replace")
        if kind == LAYOUT_FAILED:
            raise LayoutError("input-layout", message, remedy=INPUT_REMEDY)
        if kind == RESULT_FAILED:
            raise LayoutError("operator-shape", message, remedy=RESULT_REMEDY)
        if kind == INDEX_FAILED:
            raise IndexError(message)
        if kind == DIVISION_FAILED:
            raise ZeroDivisionError(message)
        raise RuntimeError(message)


def load_program(
    program: CppProgram, library: bytes, constants: Mapping[str, torch.Tensor]
) -> CompiledProgram:
    """Load the bytes of a shared library.

    Raises:
        KernelBuildError: it does not load.
        KeyError: a constant is missing.
    """
    register_relays(program.relayed)
    with temporary_folder("program") as folder:
        # The file may go once it is mapped, and every program gets a library of its own.
        path = Path(folder, "program.so")
        path.write_bytes(library)
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelBuildError(
                program.name, reason=f"the built library does not load: {error}"
            ) from error
    return CompiledProgram(program, loaded, constants)


# ---- build ----


MOST_WORKERS: Final = 16
# The program is glue: what runs long is in kernels and operators, so it is compiled quickly instead.
PROGRAM_FLAGS: Final = ("-O1", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-w")
EXPORTS: Final = ("coilwork_run", "coilwork_last_error", "coilwork_signature")


def build_cpp(
    program: CppProgram,
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    store: Store | None = None,
    workers: int = 0,
) -> CompiledProgram:
    """Build `program` and load it.

    `constants` holds the tensors named by `program.constants`. `store` keeps objects and libraries between
    processes. `workers` is how many compilers run at once; 0 means one per core, at most 16.

    Raises:
        KernelBuildError: a unit does not compile, link or load.
        MissingCompilerError: there is no C++ compiler.
        KeyError: a constant is missing.
    """
    data = build_library(program, store=store, workers=workers)
    return load_program(program, data, constants or {})


def build_library(program: CppProgram, *, store: Store | None = None, workers: int = 0) -> bytes:
    """The bytes of the shared library that `program` and its kernels become, as `build_cpp`."""
    toolchain = find_toolchain()
    key = _key("cpp-program", toolchain, program.text, *_unit_parts(program.kernels))
    data = None if store is None else store.get(key)
    if data is None:
        data = _link_library(program, toolchain, store, workers or min(MOST_WORKERS, count_usable_cores()))
        if store is not None:
            store.put(key, data)
    return data


def write_sources(program: CppProgram, folder: Path) -> Path:
    """Write the sources and a script `build.sh` that makes `program.so` of them; returns the script's path.

    The script finds libtorch_cpu in `$TORCH_LIB`.

    Raises:
        EmitError: `needs-python`, the program calls an operator that can't be called without Python.
    """
    if program.relayed:
        raise EmitError(
            "needs-python",
            f"{program.name} calls {', '.join(dict.fromkeys(map(find_target, program.relayed)))}",
            reason="torch's C interface cannot pass these arguments or results; in Python, build_cpp does",
            remedy="call build_cpp, or leave out these operators",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.cpp").write_text(program.text, encoding="utf-8")
    (folder / "exports.map").write_text(_version_script(), encoding="utf-8")
    lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', f"g++ {' '.join(PROGRAM_FLAGS)} -c program.cpp"]
    objects = ["program.o"]
    for unit in program.kernels:
        (folder / f"{unit.symbol}.cpp").write_text(unit.text, encoding="utf-8")
        flags = " ".join((*list_flags(unit.features), _rename(unit)))
        lines.append(f"g++ {flags} -c {unit.symbol}.cpp")
        objects.append(f"{unit.symbol}.o")
    lines.append(
        f"g++ -shared {' '.join(objects)} -o program.so -Wl,--version-script=exports.map "
        '-L"$TORCH_LIB" -Wl,-rpath,"$TORCH_LIB" -Wl,--no-as-needed -ltorch_cpu -lc10 -Wl,--as-needed -lm'
    )
    script = folder / "build.sh"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def _unit_parts(units: Sequence[KernelUnit]) -> list[str]:
    return [
        part for unit in units for part in (unit.text, _rename(unit), " ".join(list_flags(unit.features)))
    ]


def _rename(unit: KernelUnit) -> str:
    return f"-D{unit.entry}={unit.symbol}"


def _key(kind: str, toolchain: Toolchain, *parts: str) -> str:
    """SHA-256 over everything that determines the bytes; lengths in front keep parts apart."""
    digest = hashlib.sha256()
    for part in (kind, toolchain.version, " ".join(PROGRAM_FLAGS), *parts):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _link_library(program: CppProgram, toolchain: Toolchain, store: Store | None, workers: int) -> bytes:
    with temporary_folder("program") as scratch:
        folder = Path(scratch)
        objects = [folder / f"unit{number}.o" for number in range(len(program.kernels) + 1)]
        with Threads(workers, "coilwork-program") as pool:
            pending = [
                pool.submit(_compile_kernel, unit, target, toolchain, store)
                for unit, target in zip(program.kernels, objects[1:], strict=True)
            ]
            _compile(program.name, program.text, PROGRAM_FLAGS, objects[0], toolchain)
            make_stub(toolchain, folder)
            for future in pending:
                future.result()
        script = folder / "exports.map"
        script.write_text(_version_script(), encoding="utf-8")
        parts = (*map(str, objects), f"-Wl,--version-script={script}", *link_flags(folder))
        # The compiler is run on one text; all that is linked was compiled before, so this one is empty.
        return _output(program.name, toolchain, "", ("-shared", "-fPIC"), parts)


def _version_script() -> str:
    return "{ global: " + " ".join(f"{name};" for name in EXPORTS) + " local: *; };\n"


def _compile_kernel(unit: KernelUnit, target: Path, toolchain: Toolchain, store: Store | None) -> None:
    """A kernel's object, from the store if it has been compiled before for any program."""
    key = _key("cpp-object", toolchain, *_unit_parts([unit]))
    data = None if store is None else store.get(key)
    if data is not None:
        target.write_bytes(data)
        return
    flags = [flag for flag in list_flags(unit.features) if flag != "-shared"]
    _compile(unit.name, unit.text, (*flags, _rename(unit)), target, toolchain)
    if store is not None:
        store.put(key, target.read_bytes())


def _compile(name: str, text: str, flags: tuple[str, ...], target: Path, toolchain: Toolchain) -> None:
    target.write_bytes(_output(name, toolchain, text, (*flags, "-c"), ()))


def _output(
    name: str, toolchain: Toolchain, text: str, flags: tuple[str, ...], parts: tuple[str, ...]
) -> bytes:
    data, complaint = run_compiler(toolchain, text, flags, parts)
    if data is None:
        raise KernelBuildError(name, reason=complaint, remedy="please report this program")
    return data
