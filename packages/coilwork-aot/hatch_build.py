"""Builds the C++ library into wheels for Linux on x86-64, where a compiler is there.

Its sources are this package's and those of coilwork-runtime, which lies beside this one in the repository; a
source distribution has a copy in `runtime`. Without a compiler, or for another system, the wheel is pure, and
CMake builds the library where it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src", "coilwork_aot")
RUNTIME = "coilwork_runtime"


class PrebuiltLibrary(BuildHookInterface[Any]):
    """Adds the library, and the tag of the system, to a wheel. Environment: `CXX`, and
    `COILWORK_PURE_WHEEL=1` to do without.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together; `version` is `editable` for one that only points here."""
        if version == "editable" or os.environ.get("COILWORK_PURE_WHEEL") == "1":
            return
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        runtime = _find_runtime(Path(self.root))
        chosen = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "c++", "clang++")), "")
        if runtime is None or not chosen:
            self.app.display_warning("no C++ compiler, or no coilwork-runtime: the wheel has no C++ library")
            return
        native_build = _import_native_build(runtime)
        places = _import_file("coilwork_aot_cpp_library", Path(self.root, PACKAGE, "cpp_library.py"))
        library = places.build_library(
            native_build, runtime, native_build.split_command(chosen), ("-O2", "-s")
        )
        if library is None:
            self.app.display_warning("the C++ compiler fails: the wheel has no C++ library")
            return
        self._folder = tempfile.TemporaryDirectory(prefix="coilwork-wheel-")
        path = Path(self._folder.name, places.LIBRARY.name)
        path.write_bytes(library)
        build_data["force_include"][str(path)] = places.LIBRARY.relative_to(
            places.CPP.parent.parent
        ).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _find_runtime(root: Path) -> Path | None:
    """The folder of the package coilwork_runtime, as far as the library needs it."""
    candidates = (root / "runtime" / RUNTIME, root.parent / "coilwork-runtime" / "src" / RUNTIME)
    return next((one for one in candidates if (one / "native_build.py").exists()), None)


def _platform() -> str:
    """The machines that the library runs on: those whose C library is not older than this one's."""
    library, version = platform.libc_ver()
    if library != "glibc":
        return "linux_x86_64"
    major, minor = version.split(".")[:2]
    return f"manylinux_{major}_{minor}_x86_64"


def _import_native_build(runtime: Path) -> ModuleType:
    """Import `native_build` and its one import, without the package, whose requirements may be missing."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == RUNTIME}
    bare = ModuleType(RUNTIME)
    bare.__path__ = [str(runtime)]
    sys.modules[RUNTIME] = bare
    try:
        return importlib.import_module(f"{RUNTIME}.native_build")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == RUNTIME]:
            del sys.modules[name]
        sys.modules.update(before)


def _import_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
