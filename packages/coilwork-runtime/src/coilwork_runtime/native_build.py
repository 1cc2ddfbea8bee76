"""Running a C++ compiler, and building the extension modules of this package with it.

`run_tool` runs a compiler or another program in every state of the process. `compile_extension` makes a
library of C++ texts. The build of a wheel imports this module, so it needs neither torch nor another
package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from coilwork_runtime.threads import Threads

if sys.platform == "linux":
    import fcntl

# No kernel takes so long to compile on any machine: a compiler that does has hung.
LONGEST_RUN_S: Final = 1800.0


def split_command(text: str, path: str | None = None) -> tuple[str, ...]:
    """Return the program and arguments that a variable such as `CXX` names, as make and distutils read it.

    The name of one program may hold spaces, if there is such a program on `path`.

    Raises:
        ValueError: a quotation is not closed.
    """
    return (text,) if shutil.which(text, path=path) else tuple(shlex.split(text))


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended: its exit code, what it printed, and what it said of errors."""

    code: int
    output: str
    complaint: str


def run_tool(
    command: Sequence[str], folder: str | None = None, *, longest_s: float = LONGEST_RUN_S
) -> Finished:
    """Run a program in `folder`, in which its temporary files lie, too. Its messages are the same in every
    language.

    Where the process ignores SIGCHLD, the system forgets exit codes: the code is 0 then, so look for what
    was to be made. The program itself gets the signal: compilers wait for programs of their own.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it is at work for longer than `longest_s`. It was ended.
    """
    # without a path compilers do not find their linker
    environment = os.environ | {"LC_ALL": "C", "PATH": os.environ.get("PATH") or os.defpath}
    if folder is not None:
        environment["TMPDIR"] = folder
    ends = getattr(signal, "SIGCHLD", None)
    is_unheard = ends is not None and signal.getsignal(ends) is signal.SIG_IGN
    # not pipes: what a program leaves running in the background may hold them open
    with _capture() as output, _capture() as complaint:
        if is_unheard:
            code = _run_unheard(command, folder or os.sep, environment, (output, complaint), longest_s)
        else:
            code = _run(command, folder, environment, (output, complaint), longest_s)
        texts = []
        for file in (output, complaint):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Finished(code, *texts)


@contextlib.contextmanager
def _capture() -> Iterator[BinaryIO]:
    """A file for what a program prints; in memory where there are such, since the disk may be full."""
    if sys.platform == "linux":
        memory = os.memfd_create("coilwork-output")
        # a process may have closed its standard streams, whose numbers the program's own get
        handle = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(memory)
        with os.fdopen(handle, "w+b") as file:
            yield file
    else:
        with tempfile.TemporaryFile() as file:
            yield file


def _run(
    command: Sequence[str],
    folder: str | None,
    environment: Mapping[str, str],
    outputs: tuple[BinaryIO, BinaryIO],
    longest_s: float,
) -> int:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            check=False,
            cwd=folder,
            env=environment,
            timeout=longest_s,
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise _overdue(command, longest_s) from error


def _run_unheard(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    outputs: tuple[BinaryIO, BinaryIO],
    longest_s: float,
) -> int:
    """Run as `_run` does, in a process that is not told when its children end."""
    shell = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
    child = os.posix_spawn(
        shell[0],
        shell,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, outputs[0].fileno(), 1),
            (os.POSIX_SPAWN_DUP2, outputs[1].fileno(), 2),
        ],
        setsigdef=[signal.SIGCHLD],
    )
    began_s = time.monotonic()
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() - began_s > longest_s:
                os.kill(child, signal.SIGKILL)
                raise _overdue(command, longest_s)
            time.sleep(0.01)
    except ChildProcessError:
        return 0


def _overdue(command: Sequence[str], longest_s: float) -> TimeoutError:
    return TimeoutError(f"{command[0]} has not ended after {longest_s:.0f} s")


# ---- extension modules ----


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


def list_extension_sources(package: Path, name: str) -> Mapping[str, Path]:
    """Return the files of extension module `name`, `EXECUTOR` or `LAUNCHER`, by name; `package` is the folder
    of this package.
    """
    native = package / "executor" / "native"
    if name == EXECUTOR:
        return list_source_files(native)
    if name == LAUNCHER:
        shared = "interfaces/driver.hpp"
        return {"launcher.cpp": package / "triton_kernels" / "launcher.cpp", shared: native / shared}
    raise ValueError(f"no extension module of this package is named {name!r}")


def list_source_files(folder: Path) -> Mapping[str, Path]:
    """Return the C++ files in `folder` and below it, by name."""
    paths = (path for path in folder.rglob("*") if path.suffix in (".cpp", ".hpp"))
    return {path.relative_to(folder).as_posix(): path for path in paths}


def read_sources(files: Mapping[str, Path]) -> Texts:
    """Their names and texts."""
    return tuple((name, files[name].read_text(encoding="utf-8")) for name in sorted(files))


def get_python_tag() -> str:
    """Return the Python that an extension is built for: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI"))


def make_library_name(name: str, texts: Texts) -> str:
    """Return the file name of module `name`, built from `texts` for this Python: other sources have
    another.
    """
    digest = hashlib.sha256()
    for part in (*FLAGS, *(part for pair in texts for part in pair)):
        digest.update(part.encode() + b"\0")
    return f"{name}-{digest.hexdigest()[:20]}.{get_python_tag()}.so"


def compile_extension(
    command: str | Sequence[str], texts: Texts, flags: Sequence[str] = (), scratch: str | None = None
) -> bytes | None:
    """Return the library of an extension module: each `.cpp` is compiled, all at once, and includes others by
    name.

    `command` is the compiler, with arguments of its own, as `CXX` names it or word by word; `flags` are added
    when it compiles and when it links. Temporary files lie in `scratch`. `None` where Python's headers are
    missing or the compiler fails.
    """
    include = Path(sysconfig.get_paths()["include"])
    if not Path(include, "Python.h").exists():
        return None
    compiled = (*flags, f"-I{include}")
    return compile_library(command, texts, compile_flags=compiled, link_flags=flags, scratch=scratch)


def compile_library(
    command: str | Sequence[str],
    texts: Texts,
    *,
    compile_flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
    scratch: str | None = None,
) -> bytes | None:
    """Return a shared library of `texts`, which may hold other files than C++, too. As `compile_extension`,
    without Python's headers; `None` where the compiler fails.
    """
    with tempfile.TemporaryDirectory(prefix="coilwork-library-", dir=scratch) as folder:
        for name, text in texts:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        units = [name for name, _ in texts if name.endswith(".cpp")]
        words = split_command(command) if isinstance(command, str) else tuple(command)
        compile_unit = partial(_compile_unit, words, folder, (*FLAGS, *compile_flags))
        with Threads(len(units), "coilwork-library") as threads:
            if not all(threads.map(compile_unit, units)):
                return None
        objects = [f"{unit}.o" for unit in units]
        linked = _succeeds([*words, "-shared", *objects, *link_flags, "-o", "library.so"], folder)
        path = Path(folder, "library.so")
        return path.read_bytes() if linked and path.exists() else None


def _compile_unit(command: Sequence[str], folder: str, arguments: Sequence[str], unit: str) -> bool:
    return _succeeds([*command, *arguments, "-c", unit, "-o", f"{unit}.o"], folder)


def _succeeds(command: list[str], folder: str) -> bool:
    try:
        return run_tool(command, folder).code == 0
    except OSError:
        return False
