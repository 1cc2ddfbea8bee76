"""From C++ text to a shared library: each unit compiled on its own, linked, and kept in a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from coilwork_cpp_wrapper.call import CompiledProgram, load_program
from coilwork_cpp_wrapper.module import CppProgram, KernelUnit
from coilwork_ir.errors import EmitError
from coilwork_ir.wrapper import Store
from coilwork_runtime import KernelBuildError
from coilwork_runtime.cpp.toolchain import (
    Toolchain,
    find_toolchain,
    flags_for,
    link_flags,
    make_stub,
    run_compiler,
)
from coilwork_runtime.folders import temporary_folder
from coilwork_runtime.threads import Threads

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
        data = _link_library(program, toolchain, store, workers or min(MOST_WORKERS, os.cpu_count() or 1))
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
            f"{program.name} calls {', '.join(program.relayed)}",
            reason=(
                "torch's C interface cannot pass the name of a process group to it; in Python, build_cpp "
                "passes it"
            ),
            remedy="call build_cpp, or use torch 2.12 or older",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.cpp").write_text(program.text, encoding="utf-8")
    (folder / "exports.map").write_text(_version_script(), encoding="utf-8")
    lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', f"g++ {' '.join(PROGRAM_FLAGS)} -c program.cpp"]
    objects = ["program.o"]
    for unit in program.kernels:
        (folder / f"{unit.symbol}.cpp").write_text(unit.text, encoding="utf-8")
        flags = " ".join((*flags_for(unit.features), _rename(unit)))
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
    return [part for unit in units for part in (unit.text, _rename(unit), " ".join(flags_for(unit.features)))]


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
    flags = [flag for flag in flags_for(unit.features) if flag != "-shared"]
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
