"""Compile seconds by shape and size of graph, Coilwork beside Inductor.

Usage: python -m benchmarks.graph_shapes [--sizes 100 300 1000 ...] [--shapes chain ...] [--limit 120] [-o
FILE] [--json FILE]
       python -m benchmarks.graph_shapes --merge A.json B.json [-o FILE]

Both get the same ATen graphs, as AOTAutograd would hand them over, so that torch's own tracing, which is the
same for both and takes longer than either, is left out. Seconds are processor time of one compiling process
and of the compilers of C++ that it starts, without a cache. A program that takes longer than the limit is
ended, and larger ones of its shape are not tried.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.graph_shapes.figures import Figures, Measured, Options, read_figures, write_figures
from benchmarks.graph_shapes.report import page, table
from benchmarks.graph_shapes.shapes import SHAPES
from benchmarks.graph_shapes.worker import END, FAILURE
from benchmarks.machine import machine_description

SIZES = (100, 300, 1000, 3000, 10000, 20000)
BACKENDS = ("coilwork", "inductor")


class Compiler:
    """A process that compiles shapes with one back end, and another where it dies."""

    def __init__(self, backend: str, options: Options) -> None:
        self.backend = backend
        self.sizes = options.sizes
        self._command = [sys.executable, "-m", "benchmarks.graph_shapes.worker", backend, str(options.limit)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *map(str, self.sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # graphs are of CPUs, and a fork may not use a GPU that its parent has looked at
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )

    def measure(self, shape: str) -> Iterator[Measured]:
        """One result per size, smallest first; the last one may be a failure."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{shape}\n")
        self._process.stdin.flush()
        missing = list(self.sizes)
        failure = ""
        for line in self._process.stdout:
            found = json.loads(line)
            if END in found:
                failure = failure or found[END]
                break
            if FAILURE in found:
                failure = found[FAILURE]
                continue
            missing.remove(found["size"])
            yield Measured(backend=self.backend, shape=shape, **found)
        else:
            failure = f"the worker ended with status {self._process.wait()}"
            self._process = self._start()
        for size in missing[:1]:
            yield Measured(
                backend=self.backend, shape=shape, size=size, nodes=size, stages={}, failure=failure
            )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(options: Options, path: Path | None) -> Figures:
    """Measure every shape with every back end; `path` always holds what is known so far."""
    machine = tuple(f"{name}: {text}" for name, text in machine_description("cpu").items())
    compilers = [Compiler(name, options) for name in options.backends]
    measured: list[Measured] = []
    for shape in options.shapes:
        for compiler in compilers:
            for one in compiler.measure(shape):
                measured.append(one)
                why = one.failure or f"over {options.limit} s"
                said = f"{one.seconds:.2f} s" if one.stages else f"no result: {why}"
                print(f"{shape} {one.nodes} {compiler.backend}: {said}", file=sys.stderr, flush=True)
                if path is not None:
                    write_figures(Figures((options,), tuple(measured), machine), path)
    for compiler in compilers:
        compiler.close()
    return Figures((options,), tuple(measured), machine)


def merge(paths: Sequence[Path]) -> list[Figures]:
    """The figures of several runs, by machine; of a graph that several runs measured the last one's."""
    runs = [read_figures(path) for path in paths]
    return [
        _merge_runs([run for run in runs if run.machine == machine], machine)
        for machine in dict.fromkeys(run.machine for run in runs)
    ]


def _merge_runs(runs: Sequence[Figures], machine: tuple[str, ...]) -> Figures:
    by_key = {measured.key: measured for run in runs for measured in run.measured}
    order = {shape: place for place, shape in enumerate(SHAPES)}
    measured = sorted(by_key.values(), key=lambda one: (order[one.shape], one.backend, one.size))
    # runs that differ in their shapes alone are told as one
    shapes: dict[Options, list[str]] = {}
    for options in (options for run in runs for options in run.options):
        shapes.setdefault(replace(options, shapes=()), []).extend(options.shapes)
    told = [
        replace(options, shapes=tuple(sorted(set(named), key=order.__getitem__)))
        for options, named in shapes.items()
    ]
    return Figures(tuple(told), tuple(measured), machine)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--limit", type=int, default=120, help="processor seconds for a program")
    parser.add_argument("--merge", type=Path, nargs="+", help="measure nothing: put files of --json together")
    parser.add_argument("-o", "--output", type=Path, help="write the page to a file, too")
    parser.add_argument("--json", type=Path, help="write all figures to a file, as they come")
    arguments = parser.parse_args()
    if arguments.merge:
        figures = merge(arguments.merge)
    else:
        options = Options(
            backends=tuple(arguments.backends),
            shapes=tuple(arguments.shapes),
            sizes=tuple(sorted(arguments.sizes)),
            limit=arguments.limit,
        )
        figures = [measure(options, arguments.json)]
    for one in figures:
        print(table(one.measured))
    if arguments.output is not None:
        arguments.output.write_text(page(figures, len(SHAPES)))


if __name__ == "__main__":
    main()
