"""One back end in a process of its own: shapes come by standard input, a line of JSON goes out for each size,
and one for the end.

Each shape is compiled in a fork, so that importing torch is paid once and no graph sees what another left
behind.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

# one process compiles, and nothing comes from a cache
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

from benchmarks.graph_shapes.compilers import COMPILERS, processor_seconds
from benchmarks.graph_shapes.shapes import SHAPES

WARM_UP = ("chain", "reductions", "layers_open")
END = "end"
FAILURE = "failure"
SECONDS_BETWEEN_LOOKS = 0.5
# the status of a process that took too long; one that raises prints why
OVER_LIMIT = 75


def main(backend: str, limit: int, sizes: list[int]) -> None:
    """Answer each shape with its sizes, smallest first, until one takes over `limit` processor seconds or
    fails.
    """
    for shape in WARM_UP:
        module, inputs, _ = SHAPES[shape].graph(12)
        COMPILERS[backend](module, inputs)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                compile_shape(backend, line.strip(), limit, sizes)
            # the process ends here, and the one that started it is told why
            except BaseException as error:
                traceback.print_exc()
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                print(json.dumps({FAILURE: said}), flush=True)
                raise
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({END: describe_end(status)}), flush=True)


def describe_end(status: int) -> str:
    """The reason why a process ended early, by the status that `os.waitpid` gives; empty if it took too long,
    or did not.
    """
    code = os.waitstatus_to_exitcode(status)
    if code in (0, OVER_LIMIT, -signal.SIGXCPU):
        return ""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as where memory ends"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def compile_shape(backend: str, shape: str, limit: int, sizes: list[int]) -> None:
    """Print a line for each size; the process ends where one takes too long."""
    for size in sizes:
        module, inputs, count = SHAPES[shape].graph(size)
        with end_after(limit):
            seconds = COMPILERS[backend](module, inputs)
        print(json.dumps({"size": size, "nodes": count, "stages": seconds}), flush=True)


@contextmanager
def end_after(limit: int) -> Iterator[None]:
    """End the process where the body takes more than `limit` processor seconds, those of ended children
    included.

    Time that other programs have the processor does not count. A child that still runs has a limit of its
    own.
    """
    start = processor_seconds()

    def look(*_: object) -> None:
        if processor_seconds() - start > limit:
            os._exit(OVER_LIMIT)

    own = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # for calls into native code, in which no handler runs, and for children, which inherit it
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(own.ru_utime + own.ru_stime) + limit + 1, hard))
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LOOKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]])
