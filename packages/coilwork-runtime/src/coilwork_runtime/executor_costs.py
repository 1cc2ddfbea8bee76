"""What the native executor costs where it is used for the first time: building, reading, bytes on disk."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.errors import MissingCompilerError
from coilwork_runtime.extensions import PACKAGE, import_from
from coilwork_runtime.native_build import (
    EXECUTOR,
    PREBUILT,
    compile_extension,
    extension_sources,
    library_name,
    read_sources,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFacts:
    """Seconds and bytes.

    Attributes:
        prebuilt: the installed package brings one for this Python.
        build_s: to compile it here; `None` without a compiler or Python's headers.
        build_cpu_s: the same, of all cores together.
        load_s: to load it; `None` if there is none to load.
        size_bytes: of the library.
    """

    prebuilt: bool
    build_s: float | None
    build_cpu_s: float
    load_s: float | None
    size_bytes: int | None


def measure_executor() -> ExecutorFacts:
    """Build the executor, whether that is needed or not, and load the one that the package brings, else what
    was built.
    """
    texts = read_sources(extension_sources(PACKAGE, EXECUTOR))
    path = Path(PACKAGE, PREBUILT, library_name(EXECUTOR, texts))
    start, start_cpu = time.perf_counter(), _children_cpu_s()
    try:
        built = compile_extension(find_toolchain().words, texts)
    except MissingCompilerError:
        built = None
    build_s = time.perf_counter() - start if built is not None else None
    prebuilt = path.exists()
    library = path.read_bytes() if prebuilt else built
    return ExecutorFacts(
        prebuilt=prebuilt,
        build_s=build_s,
        build_cpu_s=_children_cpu_s() - start_cpu,
        load_s=None if library is None else _load_seconds(library),
        size_bytes=None if library is None else len(library),
    )


def _children_cpu_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _load_seconds(library: bytes) -> float:
    with tempfile.TemporaryDirectory(prefix="coilwork-extension-") as folder:
        # another file than the one that may be loaded already, which would cost nothing
        path = Path(folder, f"{EXECUTOR}.so")
        path.write_bytes(library)
        start = time.perf_counter()
        import_from(EXECUTOR, path)
        return time.perf_counter() - start
