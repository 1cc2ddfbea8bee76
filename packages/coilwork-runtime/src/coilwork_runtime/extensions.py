"""Extension modules in C++: taken from the wheel, from the store, or built once per machine.

`measure_executor` reports what building and loading the native executor costs.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.cpp.toolchain import Toolchain, check_toolchain, find_toolchain
from coilwork_runtime.errors import MissingCompilerError
from coilwork_runtime.folders import make_scratch_folder, temporary_folder
from coilwork_runtime.native_build import (
    EXECUTOR,
    PREBUILT,
    Texts,
    compile_extension,
    list_extension_sources,
    make_library_name,
    read_sources,
)
from coilwork_runtime.threads import ForkedLock

_LOADING: Final = ForkedLock()
PACKAGE: Final = Path(__file__).parent


def load_own_extension(name: str, store: Store | None, *, may_build: bool = True) -> Any | None:
    """Return an extension module of this package, by name: the one that the wheel brings, else as
    `load_extension`.
    """
    sources = list_extension_sources(PACKAGE, name)
    return load_extension(name, sources, store, prebuilt=PACKAGE / PREBUILT, may_build=may_build)


def load_extension(
    name: str,
    sources: Mapping[str, Path],
    store: Store | None,
    *,
    prebuilt: Path | None = None,
    may_build: bool = True,
) -> Any | None:
    """Return the module `name`; None where there is neither a stored one nor what it takes to build it.

    `sources` are its text: each `.cpp` is compiled, all at once, and includes others by their names. `store`
    keeps what is built. `prebuilt` is a folder that may hold it, built from the same text for the same
    Python. Nothing is built unless it `may_build`.
    """
    with _LOADING:
        loaded = sys.modules.get(name)
        if loaded is not None:
            return loaded
        texts = read_sources(sources)
        if prebuilt is not None:
            path = Path(prebuilt, make_library_name(name, texts))
            if path.exists():
                try:
                    return _register(name, import_from(name, path))
                except ImportError:
                    # made for another C or C++ library; build one for this machine
                    pass
        return _load(name, texts, store, may_build)


def _load(name: str, texts: Texts, store: Store | None, may_build: bool) -> Any | None:
    tag = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
    key = content_key("kernel", "extension", name, *(part for pair in texts for part in pair), tag)
    kernels = KernelCache(store)
    data = kernels.get(key)
    if data is not None:
        try:
            return _import(name, data)
        except ImportError:
            # not what was once stored; build it again
            kernels.delete(key)
    data = _build(texts) if may_build else None
    if data is None:
        return None
    kernels.put(key, data)
    return _import(name, data)


def _import(name: str, data: bytes) -> Any:
    with temporary_folder("extension") as folder:
        path = Path(folder, f"{name}.so")
        path.write_bytes(data)
        return _register(name, import_from(name, path))


def _register(name: str, module: Any) -> Any:
    sys.modules[name] = module
    return module


def import_from(name: str, path: Path) -> Any:
    """Return the extension module `name` from the library at `path`, whether it is loaded already or not.

    Raises:
        ImportError: it does not load.
    """
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module can be loaded from {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _build(texts: Texts) -> bytes | None:
    try:
        toolchain = find_toolchain()
        check_toolchain(toolchain)
    except MissingCompilerError:
        return None
    return _build_with(toolchain, texts)


@functools.cache
def _build_with(toolchain: Toolchain, texts: Texts) -> bytes | None:
    """Return the library; asked again with an equal compiler, it is what it was."""
    return compile_extension(toolchain.words, texts, scratch=make_scratch_folder())


# ---- cost of the executor ----


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
    texts = read_sources(list_extension_sources(PACKAGE, EXECUTOR))
    path = Path(PACKAGE, PREBUILT, make_library_name(EXECUTOR, texts))
    start, start_cpu = time.perf_counter(), _measure_children_cpu_s()
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
        build_cpu_s=_measure_children_cpu_s() - start_cpu,
        load_s=None if library is None else _load_seconds(library),
        size_bytes=None if library is None else len(library),
    )


def _measure_children_cpu_s() -> float:
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
