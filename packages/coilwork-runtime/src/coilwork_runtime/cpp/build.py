"""From the source of a C++ kernel to a launcher: through the store, then the compiler."""

from __future__ import annotations

import os
import platform
import tempfile
import threading
from pathlib import Path

from coilwork_cache import Store, content_key
from coilwork_runtime.cpp.launch import Launcher, load_launcher
from coilwork_runtime.cpp.toolchain import Toolchain, compile_library, find_toolchain, flags_for, make_stub
from coilwork_runtime.errors import KernelBuildError
from coilwork_runtime.single_flight import SingleFlight
from coilwork_runtime.specs import CppKernel


class CppBuilder:
    """Builds C++ kernels. The libraries it has loaded lie in a folder that goes with it."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._flights: SingleFlight[Path] = SingleFlight()
        self._folder = tempfile.TemporaryDirectory(prefix="coilwork-kernels-")
        self._stub_made = False
        self._written: dict[str, Path] = {}

    def build(self, spec: CppKernel) -> Launcher:
        """The kernel's launcher.

        Raises:
            KernelBuildError: the compiler refuses the source, or the result does not load.
            MissingCompilerError: there is no compiler.
        """
        toolchain = find_toolchain()
        key = library_key(spec, toolchain)
        library = self._flights.run(key, lambda: self._library(spec, key, toolchain))
        try:
            return load_launcher(spec, library)
        except (OSError, AttributeError):
            # what was stored is no library for this machine: forget it, and build it once more
            fresh = self._flights.run(key, lambda: self._rebuild(spec, key, toolchain, library))
        try:
            return load_launcher(spec, fresh)
        except (OSError, AttributeError) as error:
            raise KernelBuildError(
                spec.name,
                reason=f"the built library does not load: {error}",
                remedy="check that the compiler matches the running Python and torch",
            ) from error

    def library(self, spec: CppKernel) -> bytes:
        """The kernel's shared library, for those who store it elsewhere. Raises as `build` does."""
        toolchain = find_toolchain()
        key = library_key(spec, toolchain)
        return self._flights.run(key, lambda: self._library(spec, key, toolchain)).read_bytes()

    def load(self, spec: CppKernel, data: bytes) -> Launcher | None:
        """A launcher of a library that was built elsewhere; None if it does not load here."""
        try:
            return load_launcher(spec, self._write(data))
        except (OSError, AttributeError):
            return None

    def _library(self, spec: CppKernel, key: str, toolchain: Toolchain) -> Path:
        known = self._written.get(key)
        if known is not None:
            return known
        data = None if self._store is None else self._store.get(key)
        return self._keep(key, self._compile(spec, key, toolchain) if data is None else data)

    def _rebuild(self, spec: CppKernel, key: str, toolchain: Toolchain, refused: Path) -> Path:
        current = self._written.get(key)
        if current is not None and current != refused:
            # another thread was here first
            return current
        if self._store is not None:
            self._store.delete(key)
        return self._keep(key, self._compile(spec, key, toolchain))

    def _compile(self, spec: CppKernel, key: str, toolchain: Toolchain) -> bytes:
        with self._lock:
            if not self._stub_made:
                make_stub(toolchain, Path(self._folder.name))
                self._stub_made = True
        data, complaint = compile_library(toolchain, spec.source, spec.features, Path(self._folder.name))
        if data is None:
            raise KernelBuildError(
                spec.name,
                reason=complaint,
                remedy="report this kernel; until then, exclude its operators with the option fallback",
            )
        if self._store is not None:
            self._store.put(key, data)
        return data

    def _keep(self, key: str, data: bytes) -> Path:
        self._written[key] = library = self._write(data)
        return library

    def _write(self, data: bytes) -> Path:
        """A new file each time: the loader takes a path that it knows for the library that it knows."""
        handle, path = tempfile.mkstemp(suffix=".so", dir=self._folder.name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return Path(path)


def library_key(spec: CppKernel, toolchain: Toolchain) -> str:
    """The store's key of a kernel's library."""
    flags = " ".join(flags_for(spec.features))
    return content_key("cpp-kernel", spec.source, flags, toolchain.version, platform.machine())
