"""From the source of a C++ kernel to a launcher: through the store, then the compiler."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import threading
from pathlib import Path
from typing import Final

from coilwork_cache import Store, content_key
from coilwork_runtime.cpp.launch import Launcher, load_launcher
from coilwork_runtime.cpp.toolchain import Toolchain, compile_library, find_toolchain, flags_for, make_stub
from coilwork_runtime.errors import KernelBuildError, MissingCompilerError
from coilwork_runtime.folders import new_folder
from coilwork_runtime.single_flight import SingleFlight
from coilwork_runtime.specs import CppKernel

_KEY: Final = re.compile("[0-9a-f]+")


class CppBuilder:
    """Builds C++ kernels. The libraries that it loads lie in a folder that goes with the process."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._flights: SingleFlight[Path] = SingleFlight()
        self._made_folder: Path | None = None
        self._stub_made = False
        self._written: dict[str, Path] = {}

    def build(self, spec: CppKernel) -> Launcher:
        """The kernel's launcher.

        Raises:
            KernelBuildError: the compiler refuses the source, or the result does not load.
            MissingCompilerError: there is no compiler, and the store has not got the kernel from when there was one.
        """
        try:
            toolchain = find_toolchain()
        except MissingCompilerError:
            launcher = self._stored_launcher(spec)
            if launcher is None:
                raise
            return launcher
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

    def _stored_launcher(self, spec: CppKernel) -> Launcher | None:
        """The launcher of what any compiler made of the kernel before; None if the store has nothing that loads."""
        if self._store is None:
            return None
        named = (self._store.get(latest_key(spec)) or b"").decode(errors="replace")
        data = self._store.get(named) if _KEY.fullmatch(named) else None
        return None if data is None else self.load(spec, data)

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
        folder = self._folder()
        with self._lock:
            if not self._stub_made:
                make_stub(toolchain, folder)
                self._stub_made = True
        data, complaint = compile_library(toolchain, spec.source, spec.features, folder)
        if data is None:
            raise KernelBuildError(
                spec.name,
                reason=complaint,
                remedy="report this kernel; until then, exclude its operators with the option fallback",
            )
        if self._store is not None:
            self._store.put(key, data)
            self._store.put(latest_key(spec), key.encode())
        return data

    def _keep(self, key: str, data: bytes) -> Path:
        self._written[key] = library = self._write(data)
        return library

    def _folder(self) -> Path:
        # functools.cache would let two threads make a folder each, and the stub lies in one only
        with self._lock:
            if self._made_folder is None:
                self._made_folder = new_folder("cpp")
            return self._made_folder

    def _write(self, data: bytes) -> Path:
        """A new file each time: the loader takes a path that it knows for the library that it knows."""
        handle, path = tempfile.mkstemp(suffix=".so", dir=self._folder())
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return Path(path)


def latest_key(spec: CppKernel) -> str:
    """The store's key of the key of the library that was built last, whatever the compiler.

    It serves machines without a compiler, which cannot know the version that a library's own key contains.
    """
    return content_key(
        "cpp-kernel-latest", spec.source, " ".join(flags_for(spec.features)), platform.machine()
    )


def library_key(spec: CppKernel, toolchain: Toolchain) -> str:
    """The store's key of a kernel's library."""
    flags = " ".join(flags_for(spec.features))
    return content_key("cpp-kernel", spec.source, flags, toolchain.version, platform.machine())
