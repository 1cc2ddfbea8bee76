"""Compile seconds by shape and size of graph, Coilwork beside Inductor.

Usage: python -m benchmarks.graph_shapes [--sizes 100 300 1000 ...] [--shapes chain ...] [--limit 120] [-o FILE] [--json FILE]

Both get the same ATen graphs, as AOTAutograd would hand them over, so that torch's own tracing, which is the same for both
and takes longer than either, is left out. Seconds are processor time of one compiling process and of the compilers of C++ that it
starts, without a cache. A program that takes longer than the limit is ended, and larger ones of its shape are not tried.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.graph_shapes.shapes import SHAPES

SIZES = (100, 300, 1000, 3000, 10000, 20000)
BACKENDS = ("coilwork", "inductor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one back end took for one graph; `error` is empty if it compiled it."""

    backend: str
    shape: str
    size: int
    nodes: int
    stages: dict[str, float]
    error: str

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(self.stages.values())


def measure(backend: str, shape: str, sizes: Sequence[int], limit: float) -> Iterator[Measured]:
    """One result per size, smallest first, until one takes more than `limit` seconds or fails."""
    command = [sys.executable, "-m", "benchmarks.graph_shapes.worker", backend, shape, *map(str, sizes)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert worker.stdout is not None
    lines = selectors.DefaultSelector()
    lines.register(worker.stdout, selectors.EVENT_READ)
    try:
        for size in sizes:
            line = worker.stdout.readline() if lines.select(limit) else ""
            if not line:
                reason = f"no result within {limit:g} s" if worker.poll() is None else "the process ended"
                yield Measured(backend=backend, shape=shape, size=size, nodes=size, stages={}, error=reason)
                return
            found = Measured(backend=backend, shape=shape, **json.loads(line))
            yield found
            if found.error:
                return
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def growth(smaller: Measured, larger: Measured) -> float:
    """The exponent of nodes by which seconds grow from one size to the next, n log n being 1."""

    def scale(measured: Measured) -> float:
        return measured.nodes * math.log(measured.nodes)

    return math.log(larger.seconds / smaller.seconds) / math.log(scale(larger) / scale(smaller))


def table(found: Sequence[Measured], backends: Sequence[str]) -> str:
    """Markdown: a row per shape and size."""
    by_key = {(m.backend, m.shape, m.size): m for m in found}
    shapes = list(dict.fromkeys(m.shape for m in found))
    sizes = sorted({m.size for m in found})
    heads = ["shape", "nodes", *(f"{backend} s" for backend in backends), "ratio", "growth", "stages"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for shape in shapes:
        before: Measured | None = None
        for size in sizes:
            row = [by_key.get((backend, shape, size)) for backend in backends]
            ours = row[0]
            if ours is None:
                continue
            cells = ["" if m is None else m.error or f"{m.seconds:.2f}" for m in row]
            theirs = row[1] if len(row) > 1 else None
            both = theirs is not None and bool(theirs.stages) and bool(ours.stages)
            ratio = f"{ours.seconds / theirs.seconds:.2f}" if both and theirs is not None else ""
            exponent = f"{growth(before, ours):.2f}" if before is not None and ours.stages else ""
            slow = sorted(ours.stages.items(), key=lambda item: -item[1])[:4]
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in slow if seconds >= 0.005)
            lines.append("| " + " | ".join([shape, str(ours.nodes), *cells, ratio, exponent, stages]) + " |")
            before = ours if ours.stages else None
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--limit", type=float, default=120, help="seconds of wall time for a program")
    parser.add_argument("-o", "--output", type=Path, help="write the table to a file, too")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    arguments = parser.parse_args()
    found: list[Measured] = []
    for shape in arguments.shapes:
        for backend in arguments.backends:
            for measured in measure(backend, shape, sorted(arguments.sizes), arguments.limit):
                found.append(measured)
                said = measured.error or f"{measured.seconds:.2f} s"
                print(f"{shape} {measured.nodes} {backend}: {said}", file=sys.stderr, flush=True)
    print(table(found, arguments.backends))
    if arguments.output is not None:
        arguments.output.write_text(table(found, arguments.backends))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(m) for m in found], indent=1))


if __name__ == "__main__":
    main()
