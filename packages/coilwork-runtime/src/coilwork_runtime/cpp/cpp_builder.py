"""C++ kernels from their text to a launcher: through the store, then the compiler.

Starting the compiler and the linker takes as long as compiling a small kernel, so that several kernels share
a translation unit and a library. `CppLanguage` builds the kernels of a program so; `CppCompiler` makes one
library per kernel, for back ends that run C++ in their own way.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from coilwork_cache import KernelCache, Store, content_key
from coilwork_runtime.cpp.launch import load_launcher
from coilwork_runtime.cpp.toolchain import (
    STUB,
    Toolchain,
    compile_library,
    find_toolchain,
    list_flags,
    make_stub,
)
from coilwork_runtime.errors import KernelBuildError, MissingCompilerError
from coilwork_runtime.folders import is_usable, new_folder, scratch_errors
from coilwork_runtime.languages import Building
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.threads import ForkedLock, SingleFlight, Threads

MOST_TOGETHER: Final = 48
# Characters: from here on starting the compiler matters little, and kernels in one file compile one after the
# other.
LONGEST_TOGETHER: Final = 64_000
# What means all of a file, and so kernels that have nothing to do with it.
_FOR_THE_WHOLE_FILE: Final = re.compile(r"^\s*#\s*(include|define|undef)\b", re.MULTILINE)
# Declarations of functions of C: `extern "C" {`, a line for each, `}`.
_OF_C: Final = re.compile(r'^extern "C" \{\n((?:[^{}\n]*;\n)*)\}\n', re.MULTILINE)


def make_batches(kernels: Sequence[KernelSpec], workers: int) -> list[tuple[KernelSpec, ...]]:
    """`kernels` in groups, each to be compiled in one go, about equally long, and as many as give all
    `workers` something to do.
    """
    length = sum(len(kernel.source) for kernel in kernels)
    rounds = max(-(-len(kernels) // (workers * MOST_TOGETHER)), -(-length // (workers * LONGEST_TOGETHER)))
    groups: list[list[KernelSpec]] = [[] for _ in range(min(len(kernels), workers * rounds))]
    for kernel in sorted(kernels, key=_length, reverse=True):
        fitting = [group for group in groups if _fits_group(kernel, group)]
        if not fitting:
            groups.append([])
            fitting = groups[-1:]
        min(fitting, key=lambda group: sum(map(_length, group))).append(kernel)
    return [tuple(group) for group in groups if group]


def join_sources(kernels: Iterable[KernelSpec]) -> str:
    """One translation unit for all: what each defines lies in a namespace of its own, and the entries have
    their names in C.

    Declarations of functions of C stand before all namespaces. Within one, g++ 12 does not take `tanhf` for
    the function that it knows: some loops are not vectorised then, and the last bit depends on what a kernel
    is compiled with.
    """
    declarations: dict[str, None] = {}
    parts: list[str] = []
    for position, kernel in enumerate(kernels):
        for block in _OF_C.findall(kernel.source):
            declarations.update(dict.fromkeys(block.splitlines()))
        parts.append(f"namespace kernel_{position} {{\n{_OF_C.sub('', kernel.source)}\n}}")
    return "\n".join(['extern "C" {', *declarations, "}", *parts])


def _length(kernel: KernelSpec) -> int:
    return len(kernel.source)


def _fits_group(kernel: KernelSpec, group: Sequence[KernelSpec]) -> bool:
    if not group:
        return True
    if len(group) == MOST_TOGETHER or any(
        _FOR_THE_WHOLE_FILE.search(one.source) for one in (kernel, group[0])
    ):
        return False
    return kernel.features == group[0].features and all(kernel.entry != one.entry for one in group)


# ---- builder ----


_KEY: Final = re.compile("[0-9a-f]+")
# In the store in place of a kernel's library: the key of one that holds others, too.
_LIES_IN: Final = b"lies in "


class CppBuilder:
    """Builds C++ kernels. The libraries that it loads lie in a folder that goes with the process."""

    def __init__(self, store: Store | None) -> None:
        self._kernels = KernelCache(store)
        self._lock = ForkedLock()
        self._flights: SingleFlight[Path] = SingleFlight()
        self._kernel_folder: Path | None = None
        self._stub_machine = ""
        self._written: dict[str, Path] = {}
        # the keys of kernels that the store had not
        self.compiled: set[str] = set()
        # the keys of kernels whose libraries hold others, too
        self._shared: set[str] = set()

    def build(self, spec: KernelSpec) -> Launcher:
        """Return the kernel's launcher.

        Raises:
            KernelBuildError: the compiler refuses the source, or the result does not load.
            MissingCompilerError: there is no compiler, and the store has not got the kernel from when there
                was one.
        """
        try:
            toolchain = find_toolchain()
        except MissingCompilerError:
            launcher = self._load_stored(spec)
            if launcher is None:
                raise
            return launcher
        key = make_library_key(spec, toolchain)
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
        """Return True if the kernel has yet to be compiled. A library that the store has is loaded from
        there.
        """
        try:
            key = make_library_key(spec, find_toolchain())
        except MissingCompilerError:
            # `build` says so
            return False
        return self._file(key) is None and self._find_library(key) is None

    def build_together(self, specs: Sequence[KernelSpec]) -> None:
        """Compile the kernels in one go, for `build` to load them; should they not compile so, it compiles
        each.

        Their features are equal and their entries distinct (see `batches`).
        """
        toolchain = find_toolchain()
        by_key = {make_library_key(spec, toolchain): spec for spec in specs}
        self._flights.run_for(
            by_key, lambda keys: self._build_together({key: by_key[key] for key in keys}, toolchain)
        )

    def library(self, spec: KernelSpec) -> bytes:
        """Return the kernel's shared library, for those who store it elsewhere: it depends on the kernel
        alone. Raises as `build` does.
        """
        toolchain = find_toolchain()
        key = make_library_key(spec, toolchain)
        return self._flights.run(key, lambda: self._build_alone(spec, key, toolchain)).read_bytes()

    def _load_stored(self, spec: KernelSpec) -> Launcher | None:
        """Return the launcher of what any compiler made of the kernel before; None if the store has nothing
        that loads.
        """
        named = (self._kernels.get(make_latest_key(spec)) or b"").decode(errors="replace")
        path = self._find_library(named) if _KEY.fullmatch(named) else None
        try:
            return None if path is None else load_launcher(spec, path)
        except (OSError, AttributeError):
            return None

    def load(self, spec: KernelSpec, data: bytes) -> Launcher | None:
        """Return a launcher of a library that was built elsewhere; None if it does not load here."""
        try:
            return load_launcher(spec, self._write(data))
        except (OSError, AttributeError):
            return None

    def _library(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> Path:
        known = self._file(key) or self._find_library(key)
        if known is not None:
            return known
        # another process of this machine may be at it
        with self._kernels.claim(key):
            known = self._find_library(key) if self._kernels.contains(key) else None
            return known or self._keep(key, self._compile(spec, key, toolchain))

    def _build_alone(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> Path:
        """Do as `_library`, for a library that holds this kernel alone."""
        library = self._library(spec, key, toolchain)
        return self._keep(key, self._compile(spec, key, toolchain)) if key in self._shared else library

    def _find_library(self, key: str) -> Path | None:
        """Return the library of the kernel with this key as a file, if the store has it."""
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

    def _build_together(self, specs: Mapping[str, KernelSpec], toolchain: Toolchain) -> Mapping[str, Path]:
        """One library for all, or what another process has made of them meanwhile; nothing if they do not
        compile, for then it has to be said which.
        """
        if len(specs) < 2:
            return {}
        # each by its own key: others may put some of these kernels together with others
        with self._kernels.claim(*specs):
            stored = {key: self._find_library(key) for key in specs if self._kernels.contains(key)}
            found = {key: library for key, library in stored.items() if library is not None}
            left = {key: spec for key, spec in specs.items() if key not in found}
            return {**found, **self._join(left, toolchain)} if len(left) > 1 else found

    def _join(self, specs: Mapping[str, KernelSpec], toolchain: Toolchain) -> Mapping[str, Path]:
        """One library for all; nothing if they do not compile."""
        features = next(iter(specs.values())).features
        data, _ = compile_library(
            toolchain, join_sources(specs.values()), features, self._folder_with_stub(toolchain)
        )
        if data is None:
            return {}
        named = content_key("kernel", "cpp-library", *specs)
        library = self._keep(named, data)
        self.compiled.update(specs)
        self._shared.update(specs)
        self._written.update(dict.fromkeys(specs, library))
        self._kernels.put(named, data)
        for key, spec in specs.items():
            self._kernels.put(key, _LIES_IN + named.encode())
            self._remember_latest(spec, key, toolchain)
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
        self.compiled.add(key)
        self._kernels.put(key, data)
        self._remember_latest(spec, key, toolchain)
        return data

    def _remember_latest(self, spec: KernelSpec, key: str, toolchain: Toolchain) -> None:
        if not toolchain.is_cross:
            self._kernels.put(make_latest_key(spec), key.encode())

    def _file(self, key: str) -> Path | None:
        """Return the library of the kernel with this key, if it was written and is still there: somebody may
        clean the folder up.
        """
        library = self._written.get(key)
        return library if library is not None and library.exists() else None

    def _keep(self, key: str, data: bytes) -> Path:
        self._written[key] = library = self._write(data)
        self._shared.discard(key)
        return library

    def _folder_with_stub(self, toolchain: Toolchain) -> Path:
        """Return the folder, with what kernels are linked against."""
        folder = self._folder()
        with self._lock:
            # `CXX` may have come to name a compiler for another machine
            if self._stub_machine != toolchain.machine or not Path(folder, STUB).exists():
                make_stub(toolchain, folder)
                self._stub_machine = toolchain.machine
        return folder

    def _folder(self) -> Path:
        """Return the folder of libraries; another one if it was removed."""
        # functools.cache would let two threads make a folder each, and the stub lies in one only
        with self._lock:
            if self._kernel_folder is None or not is_usable(self._kernel_folder):
                self._kernel_folder = new_folder("cpp")
            return self._kernel_folder

    def _write(self, data: bytes) -> Path:
        """Return a new file each time: the loader takes a path that it knows for the library that it knows.

        Raises:
            ScratchFolderError: it cannot be written.
        """
        folder = self._folder()
        with scratch_errors(folder):
            handle, path = tempfile.mkstemp(suffix=".so", dir=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        return Path(path)


def make_latest_key(spec: KernelSpec) -> str:
    """Return the store's key of the key of the library that was built last, whatever the compiler.

    It serves machines without a compiler, which cannot know the version that a library's own key contains.
    """
    return content_key(
        "kernel", "cpp-latest", spec.source, " ".join(list_flags(spec.features)), platform.machine()
    )


def make_library_key(spec: KernelSpec, toolchain: Toolchain) -> str:
    """Return the store's key of a kernel's library."""
    flags = " ".join(list_flags(spec.features))
    return content_key("kernel", "cpp", spec.source, flags, toolchain.version, toolchain.machine)


# ---- language and compiler ----


class CppLanguage:
    """Kernels that a C++ compiler builds, `workers` at once, and the processor runs."""

    def __init__(self, builder: CppBuilder, *, workers: int) -> None:
        self._builder = builder
        self._workers = workers

    def start(self, specs: Sequence[KernelSpec], threads: Threads) -> Mapping[str, Building]:
        """Do as `Language.start`."""
        together = self._start_together(specs, threads)
        return {
            spec.name: Building(
                [threads.submit(self._build, spec, together.get(spec.name))], lambda parts: parts[0]
            )
            for spec in specs
        }

    def warm_up(self, workers: int) -> None:
        """Do nothing: a compiler starts at once."""

    def _build(self, spec: KernelSpec, together: Future[None] | None) -> Launcher:
        # no thread waits for itself: what is waited for was submitted before
        if together is not None:
            together.result()
        return self._builder.build(spec)

    def _start_together(self, kernels: Sequence[KernelSpec], threads: Threads) -> dict[str, Future[None]]:
        """Begin to compile kernels, several at a time: by name of a kernel, what it has to wait for."""
        if len(kernels) < 2:
            return {}
        missing = [
            kernel
            for kernel, is_missing in zip(
                kernels, threads.map(self._builder.is_missing, kernels), strict=True
            )
            if is_missing
        ]
        groups = [group for group in make_batches(missing, self._workers) if len(group) > 1]
        return {
            kernel.name: started
            for group in groups
            for started in [threads.submit(self._builder.build_together, group)]
            for kernel in group
        }


class CppCompiler:
    """A `KernelCompiler` for back ends that run C++ kernels in their own way: a shared library for each."""

    def __init__(self) -> None:
        self._builder = CppBuilder(None)

    def key(self, spec: KernelSpec) -> str:
        """Return the compiler's version and flags.

        Raises:
            MissingCompilerError: there is no compiler.
        """
        return make_library_key(spec, find_toolchain())

    def compile(self, spec: KernelSpec) -> bytes:
        """Return the shared library of the kernel.

        Raises:
            KernelBuildError: the compiler refuses the text.
            MissingCompilerError: there is no compiler.
        """
        return self._builder.library(spec)
