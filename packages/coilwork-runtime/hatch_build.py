"""Builds the native executor and the launcher of kernels into wheels for Linux on x86-64, where a compiler
and Python's headers are there.

The libraries are for the Python that builds the wheel; others, and machines with an older C library, build
their own when they first need it. So the wheel installs under every Python, and only says what system it is
for. Without a compiler the wheel is pure.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src", "coilwork_runtime")


class PrebuiltExtensions(BuildHookInterface[Any]):
    """Adds the libraries, and the tag of the system, to a wheel. Environment: `CXX`, and
    `COILWORK_PURE_WHEEL=1` to do without.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together; `version` is `editable` for one that only points here."""
        if version == "editable" or os.environ.get("COILWORK_PURE_WHEEL") == "1" or not _on_linux_x86():
            return
        native_build = _import_native_build(Path(self.root))
        chosen = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "c++", "clang++")), "")
        command = native_build.split_command(chosen)
        self._folder = tempfile.TemporaryDirectory(prefix="coilwork-wheel-")
        for name in (native_build.EXECUTOR, native_build.LAUNCHER):
            sources = native_build.list_extension_sources(Path(self.root, PACKAGE), name)
            texts = native_build.read_sources(sources)
            library = None if not command else native_build.compile_extension(command, texts, ("-s",))
            if library is None:
                self.app.display_warning(f"no C++ compiler or no Python.h: the wheel comes without {name}")
                return
            path = Path(self._folder.name, native_build.make_library_name(name, texts))
            path.write_bytes(library)
            build_data["force_include"][str(path)] = f"{PACKAGE.name}/{native_build.PREBUILT}/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _on_linux_x86() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.implementation.name == "cpython"


def _platform() -> str:
    """The machines that the library runs on: those whose C library is not older than this one's."""
    library, version = platform.libc_ver()
    if library != "glibc":
        return "linux_x86_64"
    major, minor = version.split(".")[:2]
    return f"manylinux_{major}_{minor}_x86_64"


def _import_native_build(root: Path) -> ModuleType:
    """Import `coilwork_runtime.native_build` and its imports without the package, whose requirements may be
    missing.
    """
    folder = Path(root, PACKAGE)
    if not Path(folder, "native_build.py").exists():
        raise ImportError(f"{folder} has no native_build.py")
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if _is_ours(name)}
    # a package of its modules alone: what its __init__.py would import is left out
    bare = ModuleType(PACKAGE.name)
    bare.__path__ = [str(folder)]
    sys.modules[bare.__name__] = bare
    try:
        return importlib.import_module(f"{bare.__name__}.native_build")
    finally:
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE.name
