"""Compiling extension modules: what both a process that lacks one and the build of a wheel do.

Imports nothing of torch's, nor of ours what does, since a wheel is built without them.
"""

from __future__ import annotations

import hashlib
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from coilwork_runtime.threads import Threads
from coilwork_runtime.tools import run_tool, split_command

# Measured: -O2 takes a quarter longer to compile, and programs run as fast.
FLAGS: Final = ("-O1", "-fPIC", "-std=c++17", "-fvisibility=hidden", "-w", "-I.")
EXECUTOR: Final = "coilwork_executor"
LAUNCHER: Final = "coilwork_launcher"
PREBUILT: Final = "prebuilt"
"""The folder in the package where a wheel has its extensions, built for the Python that built the wheel."""
Texts = tuple[tuple[str, str], ...]
"""Names and texts of source files, sorted by name. A name is what others include: the path below the folder,
with slashes.
"""


def extension_sources(package: Path, name: str) -> Mapping[str, Path]:
    """The files of extension module `name`, `EXECUTOR` or `LAUNCHER`, by name; `package` is the folder of
    this package.
    """
    native = package / "executor" / "native"
    if name == EXECUTOR:
        return source_files(native)
    if name == LAUNCHER:
        shared = "interfaces/driver.hpp"
        return {"launcher.cpp": package / "triton_kernels" / "launcher.cpp", shared: native / shared}
    raise ValueError(f"no extension module of this package is named {name!r}")


def source_files(folder: Path) -> Mapping[str, Path]:
    """The C++ files in `folder` and below it, by name."""
    paths = (path for path in folder.rglob("*") if path.suffix in (".cpp", ".hpp"))
    return {path.relative_to(folder).as_posix(): path for path in paths}


def read_sources(files: Mapping[str, Path]) -> Texts:
    """Their names and texts."""
    return tuple((name, files[name].read_text(encoding="utf-8")) for name in sorted(files))


def python_tag() -> str:
    """The Python that an extension is built for: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI"))


def library_name(name: str, texts: Texts) -> str:
    """The file name of module `name`, built from `texts` for this Python: other sources have another."""
    digest = hashlib.sha256()
    for part in (*FLAGS, *(part for pair in texts for part in pair)):
        digest.update(part.encode() + b"\0")
    return f"{name}-{digest.hexdigest()[:20]}.{python_tag()}.so"


def compile_extension(
    command: str | Sequence[str], texts: Texts, flags: Sequence[str] = (), scratch: str | None = None
) -> bytes | None:
    """The library of an extension module: each `.cpp` is compiled, all at once, and includes others by name.

    `command` is the compiler, with arguments of its own, as `CXX` names it or word by word; `flags` are added
    when it compiles and when it links. Temporary files lie in `scratch`. `None` where Python's headers are
    missing or the compiler fails.
    """
    include = Path(sysconfig.get_paths()["include"])
    if not Path(include, "Python.h").exists():
        return None
    with tempfile.TemporaryDirectory(prefix="coilwork-extension-", dir=scratch) as folder:
        for name, text in texts:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        units = [name for name, _ in texts if name.endswith(".cpp")]
        words = split_command(command) if isinstance(command, str) else tuple(command)
        compile_unit = partial(_compiled, words, folder, (*FLAGS, *flags, f"-I{include}"))
        with Threads(len(units), "coilwork-extension") as threads:
            if not all(threads.map(compile_unit, units)):
                return None
        objects = [f"{unit}.o" for unit in units]
        linked = _succeeds([*words, "-shared", *flags, *objects, "-o", "extension.so"], folder)
        path = Path(folder, "extension.so")
        return path.read_bytes() if linked and path.exists() else None


def _compiled(command: Sequence[str], folder: str, arguments: Sequence[str], unit: str) -> bool:
    return _succeeds([*command, *arguments, "-c", unit, "-o", f"{unit}.o"], folder)


def _succeeds(command: list[str], folder: str) -> bool:
    try:
        return run_tool(command, folder).code == 0
    except OSError:
        return False
