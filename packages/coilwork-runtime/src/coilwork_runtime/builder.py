"""Building kernels: through the store, several at a time, each source once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coilwork_cache import Store, content_key
from coilwork_runtime.cpp.launch import load_launcher
from coilwork_runtime.cpp.toolchain import Toolchain, compile_library, find_toolchain, flags_for, make_stub
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.specs import CppKernel, KernelSpec, TritonKernel

MOST_WORKERS = 16

Launcher = Callable[..., Any]
Progress = Callable[[int, int], None]


class Builder:
    """Builds kernels and remembers those it has built.

    `store` keeps binaries between processes. `workers` is how many are built at once; 0 means one per core, at most 16.
    `progress(done, total)` is called as kernels get ready. Safe to use from several threads.
    """

    def __init__(
        self, store: Store | None = None, *, workers: int = 0, progress: Progress | None = None
    ) -> None:
        self._store = store
        self._workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._progress = progress
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._toolchain: Toolchain | None = None

    def build(self, specs: Iterable[KernelSpec]) -> Mapping[str, Launcher]:
        """A launcher for each kernel, by name.

        Raises:
            KernelBuildError: a source does not build.
            MissingCompilerError, MissingTritonError: what would build it is not installed.
        """
        wanted = tuple(specs)
        launchers: dict[str, Launcher] = {}
        with ThreadPoolExecutor(max_workers=self._workers) as pool:
            pending = [(spec.name, pool.submit(self._build_one, spec)) for spec in wanted]
            for done, (name, future) in enumerate(pending, start=1):
                launchers[name] = future.result()
                if self._progress is not None:
                    self._progress(done, len(wanted))
        return launchers

    def _build_one(self, spec: KernelSpec) -> Launcher:
        match spec:
            case CppKernel():
                return self._build_cpp(spec)
            case TritonKernel():
                raise KernelBuildError(spec.name, reason="Triton kernels")

    def _build_cpp(self, spec: CppKernel) -> Launcher:
        toolchain, folder = self._cpp_tools()
        key = content_key("cpp-kernel", spec.source, " ".join(flags_for(spec.features)), toolchain.version)
        library = folder / f"{key}.so"
        if not library.exists():
            data = None if self._store is None else self._store.get(key)
            if data is None:
                data, complaint = compile_library(toolchain, spec.source, spec.features, folder)
                if data is None:
                    raise KernelBuildError(spec.name, reason=complaint, remedy="please report this kernel")
                if self._store is not None:
                    self._store.put(key, data)
            partial = library.with_suffix(f".{threading.get_ident()}")
            partial.write_bytes(data)
            partial.replace(library)
        try:
            return load_launcher(spec, library)
        except OSError as error:
            raise KernelBuildError(spec.name, reason=f"the built library does not load: {error}") from error

    def _cpp_tools(self) -> tuple[Toolchain, Path]:
        with self._lock:
            if self._toolchain is None or self._folder is None:
                toolchain = find_toolchain()
                folder = tempfile.TemporaryDirectory(prefix="coilwork-kernels-")
                make_stub(toolchain, Path(folder.name))
                self._toolchain, self._folder = toolchain, folder
            return self._toolchain, Path(self._folder.name)
