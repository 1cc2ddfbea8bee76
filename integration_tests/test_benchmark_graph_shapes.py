"""The benchmark of shapes of graph: its limit is processor time, and its page can be made from parts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.graph_shapes.__main__ import Compiler, merge
from benchmarks.graph_shapes.figures import Figures, Measured, Options, read_figures, write_figures
from benchmarks.graph_shapes.report import page
from benchmarks.graph_shapes.worker import OVER_LIMIT

LIMITED = """
import time
from benchmarks.graph_shapes.worker import end_after
with end_after(1):
    time.sleep(2.5)
print("slept", flush=True)
with end_after(1):
    while True:
        sum(range(1000))
print("not reached")
"""


def measured(backend: str, shape: str, size: int, seconds: float | None) -> Measured:
    stages = {} if seconds is None else {"all": seconds}
    return Measured(backend=backend, shape=shape, size=size, nodes=size, stages=stages)


def options(*backends: str, limit: int = 60) -> Options:
    return Options(backends=backends, shapes=("tree", "chain"), sizes=(1000, 3000), limit=limit)


def test_the_limit_counts_processor_time_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (OVER_LIMIT, "slept\n"), done.stderr


# one shape raises, the next is killed, the next is too slow, the last takes the worker with it
FAILING = """
import os, signal, sys
from benchmarks.graph_shapes import worker
def fail(backend, shape, limit, sizes):
    match shape:
        case "chain":
            raise RecursionError("too deep\\nand more")
        case "tree":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fan":
            os._exit(worker.OVER_LIMIT)
        case _:
            os.kill(os.getppid(), signal.SIGTERM)
worker.WARM_UP = ()
worker.compile_shape = fail
worker.main("coilwork", 1, [100, 300])
"""


class FailingCompiler(Compiler):
    """A compiler whose worker fails."""

    def _start(self) -> subprocess.Popen[str]:
        self._command = [sys.executable, "-c", FAILING]
        self.sizes = ()
        process = super()._start()
        self.sizes = (100, 300)
        return process


def test_a_worker_that_dies_says_why() -> None:
    compiler = FailingCompiler("coilwork", options("coilwork"))
    found = {shape: list(compiler.measure(shape)) for shape in ("chain", "tree", "fan", "grid", "chain")}
    compiler.close()
    assert {shape: [(one.size, one.failure) for one in results] for shape, results in found.items()} == {
        "chain": [(100, "RecursionError: too deep")],
        "tree": [(100, "killed by SIGKILL, as where memory ends")],
        "fan": [(100, "")],
        "grid": [(100, "the worker ended with status -15")],
    }
    told = page([Figures((options("coilwork"),), tuple(found["chain"]))], shapes=79)
    assert "no result within the limit: none; failed: chain 100, RecursionError: too deep." in " ".join(
        told.split()
    )


def test_the_last_of_merged_runs_wins(tmp_path: Path) -> None:
    first = Figures(
        (options("coilwork"),),
        (measured("coilwork", "tree", 1000, 1.0), measured("coilwork", "tree", 3000, None)),
    )
    second = Figures(
        (options("coilwork", "inductor"),),
        (
            measured("coilwork", "tree", 3000, 9.0),
            measured("coilwork", "chain", 1000, 2.0),
            measured("inductor", "chain", 1000, 1.0),
            measured("inductor", "tree", 3000, None),
        ),
    )
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for figures, path in zip((first, second), paths, strict=True):
        write_figures(figures, path)
        assert read_figures(path) == figures
    (both,) = merge(paths)
    assert [(one.backend, one.shape, one.size, one.seconds) for one in both.measured] == [
        ("coilwork", "chain", 1000, 2.0),
        ("inductor", "chain", 1000, 1.0),
        ("coilwork", "tree", 1000, 1.0),
        ("coilwork", "tree", 3000, 9.0),
        ("inductor", "tree", 3000, 0.0),
    ]
    text = page([both], shapes=79)
    assert "| tree | 3000 | 9.00 | - |  | 1.76 | all 9.00 |" in text
    assert "1 slower; the highest ratios: 2.00 (chain, 1000)" in text
    assert "1.76 (tree, to 3000); no result within the limit: none" in text
    assert "no result within the limit: tree 3000" in text
    assert "--shapes chain tree --backends coilwork inductor --sizes 1000 3000 --limit 60" in text


def test_runs_are_merged_per_machine(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, machine, shape in zip(paths, ("fast", "slow", "fast"), ("tree", "tree", "chain"), strict=True):
        run = replace(options("coilwork"), shapes=(shape,))
        write_figures(Figures((run,), (measured("coilwork", shape, 1000, 1.0),), (machine,)), path)
    found = merge(paths)
    assert [(one.machine, len(one.measured)) for one in found] == [(("fast",), 2), (("slow",), 1)]
    text = page(found, shapes=79)
    assert text.index("- fast") < text.index("--shapes chain tree") < text.index("- slow")
    assert text.count("--shapes") == 2
