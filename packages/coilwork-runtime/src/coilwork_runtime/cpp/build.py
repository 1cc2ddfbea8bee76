"""From the source of a C++ kernel to a launcher: through the store, then the compiler."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.cpp.batches import joined
from coilwork_runtime.cpp.launch import load_launcher
from coilwork_runtime.cpp.toolchain import (
    STUB,
    Toolchain,
    compile_library,
    find_toolchain,
    flags_for,
    make_stub,
)
from coilwork_runtime.errors import KernelBuildError, MissingCompilerError
from coilwork_runtime.folders import is_usable, new_folder, scratch_errors
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import ForkedLock, SingleFlight

_KEY: Final = re.compile("[0-9a-f]+")
# In the store in place of a kernel's library: the key of one that holds others, too.
_LIES_IN: Final = b"lies in "


class CppBuilder:
    """Builds C++ kernels. The libraries that it loads lie in a folder that goes with the process."""

    def __init__(self, store: Store | None) -> None:
        self._kernels = KernelCache(store)
        self._lock = ForkedLock()
        self._flights: SingleFlight[Path] = SingleFlight()
        self._made_folder: Path | None = None
        self._written: dict[str, Path] = {}
        # the keys of kernels whose libraries hold others, too
        self._shared: set[str] = set()

    def build(self, spec: KernelSpec) -> Launcher:
        """The kernel's launcher.

        Raises:
            KernelBuildError: the compiler refuses the source, or the result does not load.
            MissingCompilerError: there is no compiler, and the store has not got the kernel from when there
                was one.
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

    def is_missing(self, spec: KernelSpec) -> bool:
        """Tell if the kernel has yet to be compiled. What the store has of it is taken from there."""
        try:
            key = library_key(spec, find_toolchain())
        except MissingCompilerError:
            # `build` says so
            return False
        return self._file(key) is None and self._found(key) is None

    def build_together(self, specs: Sequence[KernelSpec]) -> None:
        """Compile the kernels in one go, for `build` to load them; should they not compile so, it compiles
        each.

        Their features are equal and their entries distinct (see `batches`).
        """
        toolchain = find_toolchain()
        by_key = {library_key(spec, toolchain): spec for spec in specs}
        self._flights.run_for(
            by_key, lambda keys: self._together({key: by_key[key] for key in keys}, toolchain)
        )

    def library(self, spec: KernelSpec) -> bytes:
        """The kernel's shared library, for those who store it elsewhere: it depends on the kernel alone.
        Raises as `build` does.
        """
        toolchain = find_toolchain()
        key = library_key(spec, toolchain)
        return self._flights.run(key, lambda: self._own_library(spec, key, toolchain)).read_bytes()

    def _stored_launcher(self, spec: KernelSpec) -> Launcher | None:
        """The launcher of what any compiler made of the kernel before; None if the store has nothing that
        loads.
        """
        named = (self._kernels.get(latest_key(spec)) or b"").decode(errors="replace")
        path = self._found(named) if _KEY.fullmatch(named) else None
        try:
            return None if path is None else load_launcher(spec, path)
        except (OSError, AttributeError):
            return None

    def load(self, spec: KernelSpec, data: bytes) -> Launcher | None:
        """A launcher of a library that was built elsewhere; None if it does not load here."""
        try:
            return load_launcher(spec, self._write(data))
        except (OSError, AttributeError):
            return None

    def _library(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> Path:
        known = self._file(key) or self._found(key)
        return known or self._keep(key, self._compile(spec, key, toolchain))

    def _own_library(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> Path:
        """As `_library`, but it holds this kernel alone."""
        library = self._library(spec, key, toolchain)
        return self._keep(key, self._compile(spec, key, toolchain)) if key in self._shared else library

    def _found(self, key: str) -> Path | None:
        """The library of the kernel with this key as a file, if the store has it."""
        data = self._kernels.get(key)
        if data is None:
            return None
        if not data.startswith(_LIES_IN):
            return self._keep(key, data)
        named = data.removeprefix(_LIES_IN).decode(errors="replace")
        library = self._file(named)
        if library is None:
            shared = self._kernels.get(named) if _KEY.fullmatch(named) else None
            if shared is None:
                return None
            library = self._keep(named, shared)
        self._written[key] = library
        self._shared.add(key)
        return library

    def _together(self, specs: Mapping[str, KernelSpec], toolchain: Toolchain) -> Mapping[str, Path]:
        """One library for all; nothing if they do not compile, for then it has to be said which."""
        if len(specs) < 2:
            return {}
        features = next(iter(specs.values())).features
        data, _ = compile_library(
            toolchain, joined(specs.values()), features, self._folder_with_stub(toolchain)
        )
        if data is None:
            return {}
        named = content_key("kernel", "cpp-library", *specs)
        library = self._keep(named, data)
        self._shared.update(specs)
        self._written.update(dict.fromkeys(specs, library))
        self._kernels.put(named, data)
        for key, spec in specs.items():
            self._kernels.put(key, _LIES_IN + named.encode())
            self._kernels.put(latest_key(spec), key.encode())
        return dict.fromkeys(specs, library)

    def _rebuild(self, spec: KernelSpec, key: str, toolchain: Toolchain, refused: Path) -> Path:
        current = self._written.get(key)
        if current is not None and current != refused and current.exists():
            # another thread was here first
            return current
        self._kernels.delete(key)
        return self._keep(key, self._compile(spec, key, toolchain))

    def _compile(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> bytes:
        folder = self._folder_with_stub(toolchain)
        data, complaint = compile_library(toolchain, spec.source, spec.features, folder)
        if data is None:
            raise KernelBuildError(
                spec.name,
                reason=complaint,
                remedy="report this kernel; until then, exclude its operators with the option fallback",
            )
        self._kernels.put(key, data)
        self._kernels.put(latest_key(spec), key.encode())
        return data

    def _file(self, key: str) -> Path | None:
        """The library of the kernel with this key, if it was written and is still there: somebody may clean
        the folder up.
        """
        library = self._written.get(key)
        return library if library is not None and library.exists() else None

    def _keep(self, key: str, data: bytes) -> Path:
        self._written[key] = library = self._write(data)
        self._shared.discard(key)
        return library

    def _folder_with_stub(self, toolchain: Toolchain) -> Path:
        """The folder, with what kernels are linked against."""
        folder = self._folder()
        with self._lock:
            if not Path(folder, STUB).exists():
                make_stub(toolchain, folder)
        return folder

    def _folder(self) -> Path:
        """Return where libraries lie; another one if it was removed."""
        # functools.cache would let two threads make a folder each, and the stub lies in one only
        with self._lock:
            if self._made_folder is None or not is_usable(self._made_folder):
                self._made_folder = new_folder("cpp")
            return self._made_folder

    def _write(self, data: bytes) -> Path:
        """A new file each time: the loader takes a path that it knows for the library that it knows.

        Raises:
            ScratchFolderError: it cannot be written.
        """
        folder = self._folder()
        with scratch_errors(folder):
            handle, path = tempfile.mkstemp(suffix=".so", dir=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        return Path(path)


def latest_key(spec: KernelSpec) -> str:
    """The store's key of the key of the library that was built last, whatever the compiler.

    It serves machines without a compiler, which cannot know the version that a library's own key contains.
    """
    return content_key(
        "kernel", "cpp-latest", spec.source, " ".join(flags_for(spec.features)), platform.machine()
    )


def library_key(spec: KernelSpec, toolchain: Toolchain) -> str:
    """The store's key of a kernel's library."""
    flags = " ".join(flags_for(spec.features))
    return content_key("kernel", "cpp", spec.source, flags, toolchain.version, platform.machine())
