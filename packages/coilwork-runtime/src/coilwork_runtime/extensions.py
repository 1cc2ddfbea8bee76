"""Extension modules written in C++: those that a wheel brings, else built once per machine, kept in the
store, loaded from there.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.cpp.toolchain import Toolchain, check_toolchain, find_toolchain
from coilwork_runtime.errors import MissingCompilerError
from coilwork_runtime.folders import scratch_folder, temporary_folder
from coilwork_runtime.native_build import (
    PREBUILT,
    Texts,
    compile_extension,
    extension_sources,
    library_name,
    read_sources,
)
from coilwork_runtime.threads import ForkedLock

_LOADING: Final = ForkedLock()
PACKAGE: Final = Path(__file__).parent


def load_own_extension(name: str, store: Store | None, *, may_build: bool = True) -> Any | None:
    """An extension module of this package, by name: the one that the wheel brings, else as
    `load_extension`.
    """
    sources = extension_sources(PACKAGE, name)
    return load_extension(name, sources, store, prebuilt=PACKAGE / PREBUILT, may_build=may_build)


def load_extension(
    name: str,
    sources: Mapping[str, Path],
    store: Store | None,
    *,
    prebuilt: Path | None = None,
    may_build: bool = True,
) -> Any | None:
    """The module `name`; None where there is neither a stored one nor what it takes to build it.

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
            path = Path(prebuilt, library_name(name, texts))
            if path.exists():
                try:
                    return _remembered(name, import_from(name, path))
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
        return _remembered(name, import_from(name, path))


def _remembered(name: str, module: Any) -> Any:
    sys.modules[name] = module
    return module


def import_from(name: str, path: Path) -> Any:
    """The extension module `name` from the library at `path`, whether it is loaded already or not.

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
    """The library; asked again with an equal compiler, it is what it was."""
    return compile_extension(toolchain.words, texts, scratch=scratch_folder())
