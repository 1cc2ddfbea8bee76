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
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.graph_shapes.shapes import SHAPES
from benchmarks.graph_shapes.worker import END
from benchmarks.machine import machine_description

SIZES = (100, 300, 1000, 3000, 10000, 20000)
BACKENDS = ("coilwork", "inductor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one back end took for one graph; without stages it did not compile it within the limit."""

    backend: str
    shape: str
    size: int
    nodes: int
    stages: dict[str, float]

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(self.stages.values())


class Compiler:
    """A process that compiles shapes with one back end."""

    def __init__(self, backend: str, sizes: Sequence[int], limit: int) -> None:
        self.backend = backend
        self.sizes = tuple(sizes)
        command = [sys.executable, "-m", "benchmarks.graph_shapes.worker", backend, str(limit)]
        self._process = subprocess.Popen(
            [*command, *map(str, sizes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, shape: str) -> Iterator[Measured]:
        """One result per size, smallest first; the last one may be a failure."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{shape}\n")
        self._process.stdin.flush()
        missing = list(self.sizes)
        for line in self._process.stdout:
            if line.strip() == END:
                break
            found = json.loads(line)
            missing.remove(found["size"])
            yield Measured(backend=self.backend, shape=shape, **found)
        for size in missing[:1]:
            yield Measured(backend=self.backend, shape=shape, size=size, nodes=size, stages={})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


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
            cells = ["" if m is None else f"{m.seconds:.2f}" if m.stages else "-" for m in row]
            theirs = row[1] if len(row) > 1 else None
            both = theirs is not None and bool(theirs.stages) and bool(ours.stages)
            ratio = f"{ours.seconds / theirs.seconds:.2f}" if both and theirs is not None else ""
            exponent = f"{growth(before, ours):.2f}" if before is not None and ours.stages else ""
            slow = sorted(ours.stages.items(), key=lambda item: -item[1])[:4]
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in slow if seconds >= 0.005)
            lines.append("| " + " | ".join([shape, str(ours.nodes), *cells, ratio, exponent, stages]) + " |")
            before = ours if ours.stages else None
    return "\n".join(lines) + "\n"


def page(found: Sequence[Measured], backends: Sequence[str]) -> str:
    """The table with what it says, and the machine."""
    machine = "\n".join(f"- {name}: {text}" for name, text in machine_description("cpu").items())
    return f"""# Benchmarks: compile time by shape of graph

`python -m benchmarks.graph_shapes -o docs/benchmarks/compile-time.md`, with the options that the rows show.

{machine}

Processor seconds of one compiling process and of the C++ compilers that it starts, from an ATen graph to a callable, without a cache.
Ratios are Coilwork's seconds over Inductor's: below 1 speaks for Coilwork. Growth is the exponent by which Coilwork's seconds grow from the
row above, 1 for n log n; single kernels and the start of the C++ compiler weigh on small graphs. `-`: no result within the limit.

{table(found, backends)}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--limit", type=int, default=120, help="seconds of wall time for a program")
    parser.add_argument("-o", "--output", type=Path, help="write the table to a file, too")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    arguments = parser.parse_args()
    compilers = [Compiler(name, sorted(arguments.sizes), arguments.limit) for name in arguments.backends]
    found: list[Measured] = []
    for shape in arguments.shapes:
        for compiler in compilers:
            for measured in compiler.measure(shape):
                found.append(measured)
                said = f"{measured.seconds:.2f} s" if measured.stages else "no result"
                print(f"{shape} {measured.nodes} {compiler.backend}: {said}", file=sys.stderr, flush=True)
    for compiler in compilers:
        compiler.close()
    print(table(found, arguments.backends))
    if arguments.output is not None:
        arguments.output.write_text(page(found, arguments.backends))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(m) for m in found], indent=1))


if __name__ == "__main__":
    main()
