"""Extension modules written in C++: built once per machine, kept in the store, loaded from there."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from coilwork_cache import Store, content_key
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.errors import MissingCompilerError

FLAGS: Final = ("-O2", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-w")
_LOADING: Final = threading.Lock()


def load_extension(name: str, sources: Sequence[Path], store: Store | None) -> Any | None:
    """The module `name`; None where there is neither a stored one nor what it takes to build it.

    `sources` are its text: each `.cpp` is compiled, all at once, and includes others by name. `store` keeps what is built.
    """
    with _LOADING:
        loaded = sys.modules.get(name)
        return loaded if loaded is not None else _load(name, tuple(sources), store)


def _load(name: str, sources: tuple[Path, ...], store: Store | None) -> Any | None:
    texts = tuple((path.name, path.read_text(encoding="utf-8")) for path in sources)
    tag = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
    key = content_key("extension", name, *(part for pair in texts for part in pair), tag)
    data = None if store is None else store.get(key)
    if data is not None:
        try:
            return _import(name, data)
        except ImportError:
            # not what was once stored; build it again
            if store is not None:
                store.delete(key)
    data = _build(texts)
    if data is None:
        return None
    if store is not None:
        store.put(key, data)
    return _import(name, data)


def _import(name: str, data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="coilwork-extension-") as folder:
        path = Path(folder, f"{name}.so")
        path.write_bytes(data)
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        if spec is None:
            raise ImportError(f"no module can be loaded from {path}")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[name] = module
        return module


@functools.cache
def _build(texts: tuple[tuple[str, str], ...]) -> bytes | None:
    include = Path(sysconfig.get_paths()["include"])
    if not Path(include, "Python.h").exists():
        return None
    try:
        toolchain = find_toolchain()
    except MissingCompilerError:
        return None
    with tempfile.TemporaryDirectory(prefix="coilwork-extension-") as folder:
        for name, text in texts:
            Path(folder, name).write_text(text, encoding="utf-8")
        units = [name for name, _ in texts if name.endswith(".cpp")]
        compile_unit = partial(_compiled, toolchain.command, folder, include)
        with ThreadPoolExecutor(max_workers=len(units)) as threads:
            if not all(threads.map(compile_unit, units)):
                return None
        objects = [f"{unit}.o" for unit in units]
        command = [toolchain.command, "-shared", *objects, "-o", "extension.so"]
        linked = subprocess.run(command, capture_output=True, check=False, cwd=folder)
        return Path(folder, "extension.so").read_bytes() if linked.returncode == 0 else None


def _compiled(command: str, folder: str, include: Path, unit: str) -> bool:
    arguments = [command, *FLAGS, f"-I{include}", "-c", unit, "-o", f"{unit}.o"]
    return subprocess.run(arguments, capture_output=True, check=False, cwd=folder).returncode == 0
