"""Worker processes that compile Triton kernels: started when needed, several at once, replaced
when they die.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from coilwork_runtime.folders import scratch_folder
from coilwork_runtime.triton_kernels import worker

ATTEMPTS: Final = 2
LOG_TAIL_BYTES: Final = 4000


class WorkerError(Exception):
    """A kernel did not compile, or the process that compiled it died. The text says why."""


class Worker:
    """One process. Used by one thread at a time."""

    def __init__(self) -> None:
        log = tempfile.TemporaryFile(prefix="coilwork-worker-", dir=scratch_folder())  # noqa: SIM115
        self._log = cast(BinaryIO, log)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TRITON_INTERPRET")
        }
        # what it leaves when it is killed goes with this process
        environment["TMPDIR"] = scratch_folder()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            # a Ctrl-C at the terminal is the parent's to handle
            start_new_session=True,
        )
        self._send({"path": sys.path})

    def compile(
        self, request: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Launch metadata and the binary.

        Raises:
            WorkerError: Triton refused; the worker lives.
            EOFError, OSError: the worker died; TimeoutError, which is one of the latter: it is still at it.
        """
        self._send(request)
        replies = self._process.stdout
        assert replies is not None
        # nothing is left in the buffer from the frame before, which was read to its end
        if timeout_s is not None and not select.select([replies], [], [], timeout_s)[0]:
            raise TimeoutError(f"not compiled after {timeout_s:.0f} s")
        frame = worker.read_frame(cast(BinaryIO, replies))
        if frame is None:
            raise EOFError("the worker ended")
        header, binary = frame
        if "error" in header:
            raise WorkerError(header["error"])
        return header["metadata"], binary

    def stop(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def obituary(self) -> str:
        """How the process ended and what it said last."""
        self._process.kill()
        code = self._process.wait()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        said = self._log.read().decode(errors="replace").strip()
        return f"the compiling process ended with code {code}\n{said}"

    def _send(self, header: Mapping[str, Any]) -> None:
        requests = self._process.stdin
        assert requests is not None
        worker.write_frame(cast(BinaryIO, requests), header)


class WorkerPool:
    """Compiles requests from any thread; as many processes as there are threads that wait."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # pipes inherited through a fork belong to the parent's conversation, whose lock a thread may hold
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    def compile(
        self, request: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Launch metadata and the binary, from an idle or a new worker.

        Raises:
            WorkerError: the kernel does not compile, or not within `timeout_s`.
        """
        reason = ""
        for _ in range(ATTEMPTS):
            member = self._take()
            try:
                answer = member.compile(request, timeout_s=timeout_s)
            except WorkerError:
                self._give(member)
                raise
            except TimeoutError as error:
                member.stop()
                raise WorkerError(str(error)) from error
            except (EOFError, OSError):
                # it may have been idle for too long, or have run out of memory: once more, in a fresh one
                reason = member.obituary()
                member.stop()
            else:
                self._give(member)
                return answer
        raise WorkerError(reason)

    def warm_up(self, count: int) -> None:
        """Start workers ahead of need, so that they import Triton while the caller still lowers and
        schedules.
        """
        with self._lock:
            missing = count - len(self._idle)
        for _ in range(missing):
            self._give(Worker())

    def close(self) -> None:
        """End all idle workers. The pool stays usable."""
        with self._lock:
            members, self._idle = self._idle, []
        for member in members:
            member.stop()

    def _take(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Worker()

    def _give(self, member: Worker) -> None:
        with self._lock:
            self._idle.append(member)


@functools.cache
def shared_pool() -> WorkerPool:
    """The pool of this process: starting a worker costs a third of a second, so builders share them."""
    pool = WorkerPool()
    atexit.register(pool.close)
    return pool
