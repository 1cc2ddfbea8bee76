"""One back end and one shape of graph in a process of its own: a line of JSON for each size."""

from __future__ import annotations

import json
import os
import sys

# one process compiles, and nothing comes from a cache
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

from benchmarks.graph_shapes.compilers import COMPILERS
from benchmarks.graph_shapes.shapes import SHAPES

WARM_UP = 12


def main(backend: str, shape: str, sizes: list[int]) -> None:
    """Compile the shape at each of `sizes`, after a small one that loads what is loaded once."""
    compile_graph = COMPILERS[backend]
    for size in (WARM_UP, *sizes):
        module, inputs, count = SHAPES[shape].graph(size)
        seconds = compile_graph(module, inputs)
        if size != WARM_UP:
            print(json.dumps({"size": size, "nodes": count, "stages": seconds, "error": ""}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])
