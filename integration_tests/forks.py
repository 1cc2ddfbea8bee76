"""A process that has imported the compiler and Triton's interpreter, and forks for each module that it runs.

The imports take five processor seconds, and tests of interpreted kernels run some twenty modules. A fork is
as fresh as a new process: nothing is compiled before it, and what a module finds in its environment is its
own.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# What is read when a process starts, or Triton is imported: a fork has the value of the process before it.
AT_START: Final = ("TRITON_INTERPRET", "MALLOC_PERTURB_", "PYTHONHASHSEED")
_SIGNAL_OF_THE_PARENTS_DEATH: Final = 1


class Forks:
    """The process that forks, seen from the tests; one module at a time."""

    def __init__(self, variables: Mapping[str, str], root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "integration_tests.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            cwd=root,
            text=True,
        )

    def run(
        self, module: str, words: Sequence[str], *, variables: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """`python -m module words` in `folder` and with `variables`, but for those in `AT_START`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        out, error = folder / "stdout.txt", folder / "stderr.txt"
        request = {
            "module": module,
            "words": list(words),
            "variables": dict(variables),
            "folder": str(folder),
            "files": [str(out), str(error)],
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that forks ended with code {self._process.wait()}")
        return subprocess.CompletedProcess(
            [module, *words], int(line), out.read_text(), error.read_text(errors="replace")
        )

    def close(self) -> None:
        """End the process, and with it the fork that runs, if any."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Import what modules need, then run those that are asked for until stdin ends."""
    import triton.language  # noqa: F401

    import coilwork.backend  # noqa: F401
    from integration_tests.quicker_compiles import quicken_compiles

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    quicken_compiles()
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=replies, flush=True)


def die_with_parent() -> None:
    """The end of the parent ends this process."""
    ctypes.CDLL(None).prctl(_SIGNAL_OF_THE_PARENTS_DEATH, signal.SIGKILL)


def _run(request: Mapping[str, Any]) -> None:
    """In the fork: run the module as a process of its own would, to the end of that process."""
    die_with_parent()
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in request["files"]]
    for target, file in zip((1, 2), files, strict=True):
        os.dup2(file, target)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [request["module"], *request["words"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
