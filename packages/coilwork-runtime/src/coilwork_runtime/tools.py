"""Compilers and other programs: how a variable names them, and how one is run, in every state of the process.

Imports nothing of torch's or ours, since a wheel is built without them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

if sys.platform == "linux":
    import fcntl

# No kernel takes so long to compile on any machine: a compiler that does has hung.
LONGEST_RUN_S: Final = 1800.0


def split_command(text: str, path: str | None = None) -> tuple[str, ...]:
    """The program and arguments that a variable such as `CXX` names, as make and distutils read it.

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
        made = os.memfd_create("coilwork-output")
        # a process may have closed its standard streams, whose numbers the program's own get
        handle = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(made)
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
    """As `_run`, in a process that is not told when its children end."""
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
