"""The parent's side of a worker: starts it with empty caches, sends commands, waits no longer than it may."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpus import gpu_environment

ROOT = Path(__file__).resolve().parents[1]


class WorkerFailedError(Exception):
    """The worker ended or took too long; the message is one line."""


def cache_variables(folder: Path) -> dict[str, str]:
    """Environment variables that put every compiler's caches below `folder`."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "COILWORK_CACHE_DIR": str(folder / "coilwork"),
    }


class Worker:
    """One worker process, of `module`. Its caches and its log live in `folder`, which must not exist yet.

    It sees the GPU of the name `gpu` alone, or without one what this process sees.
    """

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        *,
        threads: int,
        module: str = "benchmarks.worker",
        gpu: str = "",
    ) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "stderr.txt"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COILWORK_", "TORCHINDUCTOR_"))
        }
        environment |= cache_variables(folder) | gpu_environment(gpu)
        environment |= {
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
            "COILWORK_WORKERS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,  # so that its compile processes end with it
            )
        self._pending = b""

    def ask(self, command: str, *, timeout_s: float) -> dict[str, Any]:
        """Send one command and return its answer. Raises WorkerFailedError, after which the
        worker is gone.
        """
        if self._process.stdin is None:
            raise WorkerFailedError("the worker has no input")
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailedError(self._reason()) from None
        answer: dict[str, Any] = json.loads(self._read_line(time.monotonic() + timeout_s, command))
        return answer

    def _read_line(self, deadline: float, command: str) -> bytes:
        if self._process.stdout is None:
            raise WorkerFailedError("the worker has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise WorkerFailedError(f"`{command}` took longer than its time limit")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise WorkerFailedError(self._reason())
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _reason(self) -> str:
        """Return why the process ended: the last line of its log that is a message, and the exit status."""
        status = self._process.wait()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if not line.startswith((" ", "\t")) and "Error" in line]
        said = (errors or lines or ["no message"])[-1]
        return f"exit status {status}: {said.strip()[:300]}"

    def close(self) -> None:
        """End the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):  # ended by itself, its children too
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a command that the process did not live to read
                    stream.close()
