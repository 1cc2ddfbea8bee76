"""The C++ library that loads packages without Python: where its header, its CMake package and it itself are.

Wheels for Linux on x86-64 bring the library. Elsewhere CMake builds it from the sources of this package and
of coilwork-runtime, and `build_library` does the same without CMake. The build of a wheel imports this
module, so it needs nothing but the standard library and `coilwork_runtime.native_build`, handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

CPP: Final = Path(__file__).parent / "cpp"
CMAKE: Final = CPP / "cmake"
"""What to set `coilwork_DIR` to."""
INCLUDE: Final = CPP / "include"
LIBRARY: Final = CPP / "lib" / "libcoilwork_model.so"
"""Where a wheel has the library."""
_EXPORTS: Final = "exports.map"


def list_texts(runtime: Path, cpp: Path = CPP) -> tuple[tuple[str, str], ...]:
    """Names and texts of the library's sources; `runtime` is the folder of the package coilwork_runtime.

    The executor's own files are those of its folders: what lies beside them is Python's side.
    """
    return tuple(sorted((name, path.read_text(encoding="utf-8")) for name, path in _list_files(runtime, cpp)))


def _list_files(runtime: Path, cpp: Path) -> Iterator[tuple[str, Path]]:
    native, library, include = runtime / "executor" / "native", cpp / "library", cpp / "include"
    for path in native.rglob("*.?pp"):
        name = path.relative_to(native).as_posix()
        if "/" in name:
            yield name, path
    for path in (*library.glob("*.?pp"), library / _EXPORTS):
        yield path.name, path
    for path in include.rglob("*.h"):
        yield path.relative_to(include).as_posix(), path


def build_library(
    native_build: ModuleType,
    runtime: Path,
    command: str | Sequence[str],
    flags: Sequence[str] = (),
    cpp: Path = CPP,
) -> bytes | None:
    """Compile the library by `command`, a C++ compiler; None where it fails.

    `native_build` is the module of coilwork-runtime that runs compilers; `flags` are added.
    """
    version = (
        (runtime / "version.py").read_text(encoding="utf-8").split('__version__ = "')[1].partition('"')[0]
    )
    defined = ("-DCOILWORK_WITHOUT_PYTHON", f'-DCOILWORK_RUNTIME_VERSION="{version}"')
    data: bytes | None = native_build.compile_library(
        command,
        list_texts(runtime, cpp),
        compile_flags=(*defined, *flags),
        link_flags=(f"-Wl,--version-script={_EXPORTS}", "-ldl", "-lpthread", *flags),
    )
    return data
