"""One back end in a process of its own: shapes come by standard input, a line of JSON goes out for each size.

Each shape is compiled in a fork, so that importing torch is paid once and no graph sees what another left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

# one process compiles, and nothing comes from a cache
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

from benchmarks.graph_shapes.compilers import COMPILERS
from benchmarks.graph_shapes.shapes import SHAPES

WARM_UP = ("chain", "reductions", "layers_open")
END = "end"


def main(backend: str, limit: int, sizes: list[int]) -> None:
    """Answer each shape with its sizes, smallest first, until one takes more than `limit` seconds or fails."""
    for shape in WARM_UP:
        module, inputs, _ = SHAPES[shape].graph(12)
        COMPILERS[backend](module, inputs)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                compile_shape(backend, line.strip(), limit, sizes)
            except Exception:
                traceback.print_exc()
                raise
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        print(END, flush=True)


def compile_shape(backend: str, shape: str, limit: int, sizes: list[int]) -> None:
    """A line for each size; the process ends by an alarm where one takes too long."""
    for size in sizes:
        module, inputs, count = SHAPES[shape].graph(size)
        signal.alarm(limit)
        seconds = COMPILERS[backend](module, inputs)
        signal.alarm(0)
        print(json.dumps({"size": size, "nodes": count, "stages": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]])
