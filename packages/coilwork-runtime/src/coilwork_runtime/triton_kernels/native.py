"""The launcher written in C++: built once, kept in the store, and replaced by ctypes where it cannot be built."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from coilwork_cache import Store, content_key
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.errors import MissingCompilerError
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.driver import Driver, Kernel, LoadedFunction, slow_kernel

MODULE: Final = "coilwork_launcher"
_LOADING: Final = threading.Lock()
SOURCE: Final = Path(__file__).with_name("launcher.cpp")


def make_kernel(
    driver: Driver, function: LoadedFunction, binary: GpuBinary, kinds: str, store: Store | None
) -> Kernel:
    """A callable over grid, stream, scratch and arguments. `kinds`: see launcher.cpp."""
    extension = launcher_extension(store)
    if extension is None:
        return slow_kernel(driver, function, binary, kinds)
    kernel: Kernel = extension.Kernel(
        driver.launch_address,
        driver.set_context_address,
        function.handle,
        function.context,
        binary.threads,
        binary.shared_bytes,
        kinds,
        binary.name,
    )
    return kernel


def launcher_extension(store: Store | None) -> Any | None:
    """The extension module, or None where there is neither a stored one nor what it takes to build it."""
    with _LOADING:
        loaded = sys.modules.get(MODULE)
        return loaded if loaded is not None else _load(store)


def _load(store: Store | None) -> Any | None:
    source = SOURCE.read_text(encoding="utf-8")
    tag = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
    key = content_key("launcher", source, tag)
    data = None if store is None else store.get(key)
    if data is not None:
        try:
            return _import(data)
        except ImportError:
            # not what was once stored; build it again
            if store is not None:
                store.delete(key)
    data = _build(source)
    if data is None:
        return None
    if store is not None:
        store.put(key, data)
    return _import(data)


def _import(data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="coilwork-launcher-") as folder:
        path = Path(folder, f"{MODULE}.so")
        path.write_bytes(data)
        loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
        spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
        if spec is None:
            raise ImportError(f"no module can be loaded from {path}")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[MODULE] = module
        return module


@functools.cache
def _build(source: str) -> bytes | None:
    include = Path(sysconfig.get_paths()["include"])
    if not Path(include, "Python.h").exists():
        return None
    try:
        toolchain = find_toolchain()
    except MissingCompilerError:
        return None
    with tempfile.TemporaryDirectory(prefix="coilwork-launcher-") as folder:
        text, library = Path(folder, "launcher.cpp"), Path(folder, "launcher.so")
        text.write_text(source, encoding="utf-8")
        flags = ("-O2", "-shared", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-w", f"-I{include}")
        built = subprocess.run(
            [toolchain.command, *flags, str(text), "-o", str(library)], capture_output=True, check=False
        )
        return library.read_bytes() if built.returncode == 0 else None
