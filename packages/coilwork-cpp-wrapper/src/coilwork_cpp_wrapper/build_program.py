"""Make a callable of C++ text: compile each unit on its own, link a shared library, load it.

Objects and libraries go into a store, if one is given. `CompiledProgram` is called like any generated module.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

import torch

from coilwork_cpp_wrapper.embedding import Embedded, read_launch_headers
from coilwork_cpp_wrapper.host_launches import HostLaunches, Launch
from coilwork_cpp_wrapper.module import CppProgram, read_preamble
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
from coilwork_runtime.executor.library_call import LibraryProgram
from coilwork_runtime.folders import temporary_folder
from coilwork_runtime.layout_checks import INPUT_REMEDY, RESULT_REMEDY
from coilwork_runtime.threads import Threads
from coilwork_runtime.usable_cores import count_usable_cores

# ---- call ----


INDEX_FAILED: Final = 3
LAYOUT_FAILED: Final = 4
RESULT_FAILED: Final = 5
DIVISION_FAILED: Final = 6
OVERFLOW_FAILED: Final = 7
HOST_FAILED: Final = 8

Result = torch.Tensor | int | None


class CompiledProgram:
    """A program in a loaded library. Called with one list, which it empties, it returns a tuple.

    Tensors cross as handles, without copying; integers as 64-bit numbers. The interpreter's lock is released
    during the call, and calls from several threads may overlap.

    Raises, when called:
        LayoutError: an input is not what the program was compiled for, or an operator's result is not what
        was planned. IndexError: an index was out of range. ZeroDivisionError: a number that data decides was
        divided by 0. OverflowError: a size does not fit a kernel. RuntimeError: another check, or an
        operator, failed. The message names the instruction and the source lines it implements.
    """

    def __init__(
        self,
        program: CppProgram,
        library: ctypes.CDLL,
        constants: Mapping[str, torch.Tensor],
        launchers: Mapping[str, Launch] = MappingProxyType({}),
    ) -> None:
        self.program = program
        # without launchers, kernels are those that the library brings
        self._launches = HostLaunches(library, program.gpu_kernels, launchers) if launchers else None
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

    def describe(self) -> LibraryProgram:
        """Return what calling it without this class takes."""
        return LibraryProgram(
            run=ctypes.cast(self._run, ctypes.c_void_p).value or 0,
            constants=ctypes.addressof(self._constants),
            inputs=tuple(port.kind for port in self.program.inputs),
            outputs=self._kinds,
            fail=self._raise,
        )

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

    def _raise(self, kind: int) -> NoReturn:
        if kind == HOST_FAILED and self._launches is not None:
            raise self._launches.take_error()
        message = self._last_error().decode("utf-8", "replace")
        if kind == LAYOUT_FAILED:
            raise LayoutError("input-layout", message, remedy=INPUT_REMEDY)
        if kind == RESULT_FAILED:
            raise LayoutError("operator-shape", message, remedy=RESULT_REMEDY)
        if kind == INDEX_FAILED:
            raise IndexError(message)
        if kind == DIVISION_FAILED:
            raise ZeroDivisionError(message)
        if kind == OVERFLOW_FAILED:
            raise OverflowError(message)
        raise RuntimeError(message)


def load_program(
    program: CppProgram,
    library: bytes,
    constants: Mapping[str, torch.Tensor],
    launchers: Mapping[str, Launch] = MappingProxyType({}),
    *,
    device: int | None = None,
) -> CompiledProgram:
    """Load the bytes of a shared library. `launchers` launch the kernels on a GPU; without them the library
    brings these. The program runs on the GPU number `device`, else on the one that it was compiled on.

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
    if device is not None and program.gpu:
        loaded.coilwork_use_device(ctypes.c_int(device))
    return CompiledProgram(program, loaded, constants, launchers)


# ---- build ----


MOST_WORKERS: Final = 16
# The program is glue: what runs long is in kernels and operators, so it is compiled quickly instead.
PROGRAM_FLAGS: Final = ("-O1", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-w")
EXPORTS: Final = ("coilwork_run", "coilwork_last_error", "coilwork_signature")
KERNEL_EXPORTS: Final = ("coilwork_set_host", "coilwork_bind")
GPU_EXPORTS: Final = ("coilwork_use_device",)


def build_cpp(
    program: CppProgram,
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    launchers: Mapping[str, Launch] = MappingProxyType({}),
    embedded: Embedded | None = None,
    store: Store | None = None,
    workers: int = 0,
) -> CompiledProgram:
    """Build `program` and load it.

    `constants` holds the tensors named by `program.constants`. `launchers` launch kernels on a GPU, or the
    library brings these `embedded`. `store` keeps objects and libraries between
    processes. `workers` is how many compilers run at once; 0 means one per core, at most 16.

    Raises:
        KernelBuildError: a unit does not compile, link or load.
        MissingCompilerError: there is no C++ compiler.
        KeyError: a constant is missing.
    """
    data = build_library(program, embedded=embedded, store=store, workers=workers)
    return load_program(program, data, constants or {}, launchers)


def build_library(
    program: CppProgram, *, embedded: Embedded | None = None, store: Store | None = None, workers: int = 0
) -> bytes:
    """Return the bytes of the shared library that `program` and its kernels become, as `build_cpp`."""
    toolchain = find_toolchain()
    units = list(_list_units(program, embedded))
    key = _key("cpp-program", toolchain, *(part for unit in units for part in unit.key_parts()))
    data = None if store is None else store.get(key)
    if data is None:
        data = _link_library(
            program, units, toolchain, store, workers or min(MOST_WORKERS, count_usable_cores())
        )
        if store is not None:
            store.put(key, data)
    return data


def write_sources(program: CppProgram, folder: Path, *, embedded: Embedded | None = None) -> Path:
    """Write the sources and a script `build.sh` that makes `program.so` of them; returns the script's path.

    The script finds torch's libraries in `$TORCH_LIB`. The kernels that run on a GPU are `embedded`.

    Raises:
        EmitError: `needs-python`, the program calls an operator that can't be called without Python, or its
            kernels on a GPU are not given.
    """
    if program.relayed:
        raise EmitError(
            "needs-python",
            f"{program.name} calls {', '.join(dict.fromkeys(map(find_target, program.relayed)))}",
            reason="torch's C interface cannot pass these arguments or results; in Python, build_cpp does",
            remedy="call build_cpp, or leave out these operators",
        )
    if program.gpu_kernels and embedded is None:
        raise EmitError(
            "needs-python",
            f"{program.name} launches {', '.join(program.gpu_kernels)}",
            reason="without their machine code, Python launches the kernels on a GPU",
            remedy="give embed_kernels(...)",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "exports.map").write_text(_version_script(program), encoding="utf-8")
    lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"']
    objects = []
    for unit in _list_units(program, embedded):
        for name, data in unit.files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(data)
        (folder / f"{unit.file}.cpp").write_text(unit.text, encoding="utf-8")
        lines.append(
            f"g++ {' '.join(unit.flags)} {unit.place_flags('.')} -c {unit.file}.cpp".replace("  ", " ")
        )
        objects.append(f"{unit.file}.o")
    cuda = "-ltorch_cuda " if program.gpu else ""
    lines.append(
        f"g++ -shared {' '.join(objects)} -o program.so -Wl,--version-script=exports.map "
        f'-L"$TORCH_LIB" -Wl,-rpath,"$TORCH_LIB" -Wl,--no-as-needed {cuda}-ltorch_cpu -lc10 '
        "-Wl,--as-needed -lm -ldl"
    )
    script = folder / "build.sh"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return script


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The source that one object is compiled from.

    Attributes:
        name: of the kernel or program, for people.
        file: its name, without an ending.
        files: what the text includes, by path.
        is_shared: other programs have the same, and the store keeps its object.
    """

    name: str
    file: str
    text: str
    flags: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    is_shared: bool = False

    def key_parts(self) -> Iterator[str]:
        yield from (self.text, " ".join(self.flags))
        for name in sorted(self.files):
            yield f"{name} {hashlib.sha256(self.files[name]).hexdigest()}"

    def place_flags(self, folder: str) -> str:
        """Flags that find `files` in `folder`."""
        return f"-I{folder} -Wa,-I{folder}" if self.files else ""


def _list_units(program: CppProgram, embedded: Embedded | None) -> Iterator[_Unit]:
    yield _Unit(name=program.name, file="program", text=program.text, flags=PROGRAM_FLAGS)
    for unit in program.kernels:
        flags = tuple(flag for flag in list_flags(unit.features) if flag != "-shared")
        text, flags = unit.text, (*flags, f"-D{unit.entry}={unit.symbol}")
        yield _Unit(name=unit.name, file=unit.symbol, text=text, flags=flags, is_shared=True)
    if program.gpu_kernels:
        text = read_preamble("launching.hpp") + read_preamble("launching.cpp")
        yield _Unit(
            name=program.name,
            file="launching",
            text=text,
            flags=PROGRAM_FLAGS,
            files=read_launch_headers(),
            is_shared=True,
        )
    if program.gpu_kernels and embedded is not None:
        text, files = read_preamble("launching.hpp") + embedded.text, embedded.files
        yield _Unit(name=program.name, file="embedded", text=text, flags=PROGRAM_FLAGS, files=files)


def _key(kind: str, toolchain: Toolchain, *parts: str) -> str:
    """SHA-256 over everything that determines the bytes; lengths in front keep parts apart."""
    digest = hashlib.sha256()
    for part in (kind, toolchain.version, *parts):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _link_library(
    program: CppProgram, units: Sequence[_Unit], toolchain: Toolchain, store: Store | None, workers: int
) -> bytes:
    with temporary_folder("program") as scratch:
        folder = Path(scratch)
        with Threads(workers, "coilwork-program") as pool:
            # the program's own is the largest, and first
            pending = [pool.submit(_compile_unit, unit, folder, toolchain, store) for unit in units]
            make_stub(toolchain, folder)
            objects = [str(future.result()) for future in pending]
        script = folder / "exports.map"
        script.write_text(_version_script(program), encoding="utf-8")
        cuda = [_make_cuda_stub(program, toolchain, folder)] if program.gpu else []
        parts = (*objects, f"-Wl,--version-script={script}", "-Wl,--no-as-needed", *cuda, *link_flags(folder))
        # The compiler is run on one text; all that is linked was compiled before, so this one is empty.
        return _output(program.name, toolchain, "", ("-shared", "-fPIC"), parts)


def _make_cuda_stub(program: CppProgram, toolchain: Toolchain, folder: Path) -> str:
    """Return a library by whose name libtorch_cuda is found in the process, as `make_stub` makes of
    libtorch_cpu.
    """
    path = folder / "libtorch_cuda.so"
    flags = ("-shared", "-fPIC", "-nostdlib")
    path.write_bytes(_output(program.name, toolchain, "", flags, (f"-Wl,-soname,{path.name}",)))
    return str(path)


def _version_script(program: CppProgram) -> str:
    names = [*EXPORTS]
    if program.gpu_kernels:
        names += KERNEL_EXPORTS
    if program.gpu:
        names += GPU_EXPORTS
    return "{ global: " + " ".join(f"{name};" for name in names) + " local: *; };\n"


def _compile_unit(unit: _Unit, folder: Path, toolchain: Toolchain, store: Store | None) -> Path:
    """Return the file of a unit's object, from the store if it has been compiled before for any program."""
    key = _key("cpp-object", toolchain, *unit.key_parts())
    data = store.get(key) if store is not None and unit.is_shared else None
    if data is None:
        place = folder / f"{unit.file}.files"
        for name, content in unit.files.items():
            Path(place, name).parent.mkdir(parents=True, exist_ok=True)
            Path(place, name).write_bytes(content)
        flags = (*unit.flags, *unit.place_flags(str(place)).split(), "-c")
        data = _output(unit.name, toolchain, unit.text, flags, ())
        if store is not None and unit.is_shared:
            store.put(key, data)
    target = folder / f"{unit.file}.o"
    target.write_bytes(data)
    return target


def _output(
    name: str, toolchain: Toolchain, text: str, flags: tuple[str, ...], parts: tuple[str, ...]
) -> bytes:
    data, complaint = run_compiler(toolchain, text, flags, parts)
    if data is None:
        raise KernelBuildError(name, reason=complaint, remedy="please report this program")
    return data
