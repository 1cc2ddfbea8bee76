"""The C++ compiler of this machine and the flags kernels are built with."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coilwork_runtime.errors import MissingCompilerError
from coilwork_runtime.folders import scratch_errors, temporary_folder
from coilwork_runtime.native_build import LONGEST_RUN_S, run_tool, split_command

CANDIDATES: Final = ("g++", "c++", "clang++")
BASE_FLAGS: Final = (
    "-O3",
    "-shared",
    "-fPIC",
    "-std=c++17",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    # GCC 12 takes an address that it wrote as an offset from 0 for a null pointer, and then drops calls of
    # the loop around it
    "-fno-delete-null-pointer-checks",
    # GCC writes sines and cosines of these as roots, which are numbers where the operand is NaN
    *(f"-fno-builtin-{name}" for name in ("atan", "atanf", "atanh", "atanhf")),
    # and the power 0.5, where it vectorises, as a root, which is another number of -0 and of -inf
    *(f"-fno-builtin-{name}" for name in ("pow", "powf")),
    "-w",
)
LONGEST_COMPLAINT: Final = 4000
# A compiler that takes so long to tell its version, or for a library of nothing, has hung: one takes 0.1 s,
# on a stalled machine a minute.
LONGEST_ANSWER_S: Final = 300.0
REMEMBERED_S: Final = 3600
"""For how long a compiler that does not work is not tried again."""
STUB: Final = "libtorch_cpu.so"
# What a torch wheel exports in libtorch_cpu and kernels call; linked against a stub, because reading the
# symbol table of the real library takes longer than compiling the kernel.
IMPORTED: Final = ("torch_parallel_for", "torch_get_num_threads", "torch_get_thread_idx")

_FEATURE_FLAGS: Final[tuple[tuple[str, str], ...]] = (
    ("avx2", "-mavx2"),
    ("fma", "-mfma"),
    ("f16c", "-mf16c"),
    ("avx512f", "-mavx512f"),
    ("avx512dq", "-mavx512dq"),
    ("avx512bw", "-mavx512bw"),
    ("avx512vl", "-mavx512vl"),
    ("avx512fp16", "-mavx512fp16"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler: its program, the arguments that `CXX` gives it (`ccache g++`), the identity that cache keys
    contain, and the machine that it builds for, as `platform.machine` names it.
    """

    command: str
    arguments: tuple[str, ...] = ()
    version: str
    machine: str = field(default_factory=platform.machine)

    @property
    def is_cross(self) -> bool:
        """True if what it builds does not run on this machine."""
        return self.machine != platform.machine()

    @property
    def words(self) -> tuple[str, ...]:
        """The words that a command begins with."""
        return (self.command, *self.arguments)


def find_toolchain(environ: Mapping[str, str] | None = None) -> Toolchain:
    """Return the compiler named by `CXX`, with arguments if it has some, else the first of g++, c++, clang++
    on the path.

    Raises:
        MissingCompilerError: there is none.
    """
    variables = os.environ if environ is None else environ
    chosen, path = variables.get("CXX", "").strip(), variables.get("PATH", os.defpath)
    try:
        commands = [split_command(chosen, path)] if chosen else [(name,) for name in CANDIDATES]
    except ValueError as error:
        raise _wrong_choice(chosen, "is no command", str(error)) from error
    for name, *arguments in commands:
        program = shutil.which(name, path=path)
        if program is None:
            continue
        words = (program, *arguments)
        stamps = tuple(_stamp(word, path) for word in words)
        version = _ask_version(words, stamps, _period())
        if version is None and chosen:
            raise _wrong_choice(
                chosen, "does not answer", f"it was asked for its version for {LONGEST_ANSWER_S:.0f} s"
            )
        if version or (chosen and version is not None):
            # one that does not tell its version is known by its name
            identity = " ".join((version, *arguments)) if version else " ".join(words)
            machine = _ask_machine(words, stamps, _period()) if chosen else platform.machine()
            return Toolchain(command=program, arguments=tuple(arguments), version=identity, machine=machine)
    if chosen:
        raise _wrong_choice(chosen, "is no program on this machine", "")
    raise MissingCompilerError(
        "no-compiler",
        "there is no C++ compiler on this machine",
        reason=f"looked for {', '.join(CANDIDATES)} on the path",
        remedy="install g++ (Debian: apt-get install g++) or set CXX",
    )


def _wrong_choice(chosen: str, what: str, reason: str) -> MissingCompilerError:
    return MissingCompilerError(
        "no-compiler",
        f"CXX names {chosen!r}, which {what}",
        reason=reason,
        remedy="correct CXX, or unset it to have g++, c++ or clang++ looked for",
    )


def _stamp(word: str, path: str) -> tuple[int, ...]:
    """Numbers that change when another program is installed under the name; empty for what is no program."""
    program = shutil.which(word, path=path)
    try:
        status = os.stat(program) if program else None
    except OSError:
        status = None
    return () if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _period() -> int:
    """Return a number that changes every `REMEMBERED_S`."""
    return int(time.monotonic() // REMEMBERED_S)


@functools.lru_cache(maxsize=64)
def _ask_version(command: Sequence[str], stamps: tuple[tuple[int, ...], ...], period: int) -> str | None:
    """Return the first line of what a compiler says of itself; empty if it says nothing, None if it hangs.

    Asking starts it, so an answer is remembered as long as the files are those of `stamps`, and for a while.
    """
    try:
        done = run_tool([*command, "--version"], longest_s=LONGEST_ANSWER_S)
    except TimeoutError:
        return None
    except OSError:
        return ""
    return "" if done.code else done.output.strip().partition("\n")[0]


@functools.lru_cache(maxsize=64)
def _ask_machine(command: Sequence[str], stamps: tuple[tuple[int, ...], ...], period: int) -> str:
    """Return the machine that a compiler builds for; this one if it does not tell."""
    try:
        done = run_tool([*command, "-dumpmachine"], longest_s=LONGEST_ANSWER_S)
    except (TimeoutError, OSError):
        return platform.machine()
    return (not done.code and done.output.strip().partition("-")[0]) or platform.machine()


def list_flags(features: Iterable[str]) -> tuple[str, ...]:
    """Compiler flags for a kernel that uses `features`."""
    wanted = frozenset(features)
    flags = [flag for feature, flag in _FEATURE_FLAGS if feature in wanted]
    if "avx512f" in wanted:
        flags.append("-mprefer-vector-width=512")
    return (*BASE_FLAGS, *flags)


def link_flags(folder: Path, machine: str = "") -> tuple[str, ...]:
    """Linker arguments for `machine`, or this one: the stub in `folder`, and glibc's vector math library if
    there is one.
    """
    if platform.system() != "Linux":
        return (f"-L{folder}", "-ltorch_cpu", "-lm")
    vector_math = ("-lmvec",) if (machine or platform.machine()) == "x86_64" else ()
    # without start files and libstdc++, which kernels do not use: linking takes a third of the time
    libraries = (*vector_math, "-lm", "-lc", "-lgcc")
    return (f"-L{folder}", "-nostdlib", "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,--as-needed", *libraries)


def make_stub(toolchain: Toolchain, folder: Path) -> None:
    """Put a stub of libtorch_cpu into `folder`: the names that kernels import, and the real library's SONAME.

    At load time the SONAME resolves to the library that torch has already loaded.

    Raises:
        MissingCompilerError: the compiler cannot build even that.
        ScratchFolderError: it cannot be written.
    """
    data, whole = _stub(toolchain), Path(folder, STUB)
    part = whole.with_suffix(".part")
    with scratch_errors(folder):
        part.write_bytes(data)
        part.replace(whole)


def check_toolchain(toolchain: Toolchain) -> None:
    """Build the smallest library with it.

    Raises:
        MissingCompilerError: the compiler cannot do even that.
    """
    _stub(toolchain)


@functools.cache
def _stub(toolchain: Toolchain) -> bytes:
    path = os.environ.get("PATH", os.defpath)
    stamps = tuple(_stamp(word, path) for word in toolchain.words)
    data, complaint = _try_stub(toolchain, stamps, _period())
    if data is None:
        raise MissingCompilerError(
            "broken-compiler",
            f"{' '.join(toolchain.words)} cannot build a shared library",
            reason=complaint,
            remedy="install a working C++ tool chain or set CXX",
        )
    return data


@functools.lru_cache(maxsize=64)
def _try_stub(
    toolchain: Toolchain, stamps: tuple[tuple[int, ...], ...], period: int
) -> tuple[bytes | None, str]:
    """Build the stub as `run_compiler` does. A failure is remembered for a while: a compiler may hang, and a
    graph has many kernels.
    """
    functions = " ".join(f"void {name}() {{}}" for name in IMPORTED)
    soname = () if platform.system() == "Darwin" else (f"-Wl,-soname,{STUB}",)
    source = f'extern "C" {{ {functions} }}\n'
    return run_compiler(toolchain, source, ("-shared", "-fPIC"), soname, longest_s=LONGEST_ANSWER_S)


def compile_library(
    toolchain: Toolchain, source: str, features: Iterable[str], stub: Path
) -> tuple[bytes | None, str]:
    """Compile `source`: the shared library's bytes and an empty text, or `None` and what the
    compiler said.
    """
    return run_compiler(toolchain, source, list_flags(features), link_flags(stub, toolchain.machine))


def run_compiler(
    toolchain: Toolchain,
    source: str,
    flags: tuple[str, ...],
    libraries: tuple[str, ...],
    *,
    longest_s: float = LONGEST_RUN_S,
) -> tuple[bytes | None, str]:
    """Compile one C++ text: the output's bytes and an empty text, or `None` and what the compiler said.

    It runs in a folder of its own, where the text is `kernel.cpp`, so that its messages name no path that
    changes.
    """
    with temporary_folder("compile") as folder:
        Path(folder, "kernel.cpp").write_text(source, encoding="utf-8")
        command = [*toolchain.words, *flags, "kernel.cpp", "-o", "kernel.so"]
        try:
            done = run_tool([*command, *libraries], folder, longest_s=longest_s)
        except OSError as error:
            return None, f"{' '.join(command)}\n{error}"
        output = Path(folder, "kernel.so")
        if done.code or not output.exists():
            return None, f"{' '.join(command)}\n{done.complaint[:LONGEST_COMPLAINT]}"
        return output.read_bytes(), ""
