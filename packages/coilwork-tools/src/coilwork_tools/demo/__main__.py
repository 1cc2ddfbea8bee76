"""`python -m coilwork_tools.demo`: GPT-2 compiled by Coilwork, checked and measured next to eager and
Inductor.

Exits with 1 if a result is wrong, a graph fell back to eager, or the second process missed the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from coilwork_tools.demo.worker import (
    INFERENCE_TOKENS,
    READY,
    TRAINING_TOKENS,
    Error,
    Findings,
    is_within_bounds,
)

TASKS: Final[Mapping[str, str]] = MappingProxyType(
    {"infer": "inference", "again": "second process", "train": "training step"}
)
# Each round times two calls of every backend.
ROUNDS: Final = 4


class WorkerError(Exception):
    """A measuring process failed; the message is the end of what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The device and folder of a demo. `subject` is the compiler on show, `coilwork` unless testing."""

    device: str
    folder: Path
    timeout_s: float
    subject: str

    def environment(self, backend: str, trace: Path) -> dict[str, str]:
        """Caches below `folder`, stage dumps below `trace`, and an error instead of any fallback."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("COILWORK_")}
        return kept | {
            "COILWORK_CACHE_DIR": str(self.folder / "cache"),
            "COILWORK_TRACE": str(trace),
            "COILWORK_STRICT": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / f"inductor-{backend}"),
            "TRITON_CACHE_DIR": str(self.folder / f"triton-{backend}"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore::DeprecationWarning",
        }


@contextmanager
def show_status(title: str) -> Iterator[Callable[[str], None]]:
    """A live line with elapsed time where rich and a terminal are there, printed lines elsewhere."""
    if find_spec("rich") is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title)
            yield lambda text: progress.update(task, description=f"{title}: {text}")
        return
    start = time.monotonic()
    yield lambda text: print(
        f"  [{time.monotonic() - start:4.0f} s] {title}: {text}", file=sys.stderr, flush=True
    )


class Measurement:
    """One worker process. `wait_until_ready` and `finish` show its progress and raise WorkerError if it ends
    badly, or works for longer than `demo.timeout_s` at one of them. Waiting for a round does not count.
    """

    def __init__(self, demo: Demo, task: str, backend: str, trace: Path) -> None:
        self._timeout_s, self._was_stopped = demo.timeout_s, False
        self._stem = demo.folder / f"{task}-{backend}"
        self.title = f"{backend}, {TASKS[task]}"
        with self._stem.with_suffix(".log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "coilwork_tools.demo.worker",
                    task,
                    backend,
                    demo.device,
                    str(demo.folder),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=demo.environment(backend, trace),
            )

    def wait_until_ready(self, update: Callable[[str], None]) -> None:
        """Wait until the worker waits for the next round."""
        with self._limit():
            for line in self._process.stdout or ():
                if line.strip() == READY:
                    return
                update(line.strip())
        raise self._failure()

    def next_round(self) -> None:
        """Let the worker time its calls once more."""
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def finish(self, update: Callable[[str], None]) -> Findings:
        """End the rounds, wait for the worker's end and read what it found."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with self._limit():
            for line in self._process.stdout or ():
                update(line.strip())
            status = self._process.wait()
        if status != 0:
            raise self._failure()
        self.close()
        findings = json.loads(self._stem.with_suffix(".json").read_text())
        for name in ("errors", "eager_errors"):
            findings[name] = {label: Error(**error) for label, error in findings[name].items()}
        return Findings(**findings)

    def close(self) -> None:
        """End the worker if it still runs."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def _limit(self) -> Iterator[None]:
        """Stop the worker if what is done meanwhile takes too long."""
        timer = threading.Timer(self._timeout_s, self._stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _stop(self) -> None:
        self._was_stopped = True
        self._process.kill()

    def _failure(self) -> WorkerError:
        self.close()
        said = self._stem.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        end = f"exit status {self._process.returncode}"
        if self._was_stopped:
            end = f"stopped after {self._timeout_s:g} s; --timeout allows more"
        return WorkerError("\n".join((*said[-12:], end)))


def measure_inference(
    demo: Demo, backends: tuple[str, ...], trace: Path
) -> dict[str, Findings | WorkerError]:
    """Compile one backend after the other, then time them in turns; errors take the place of findings."""
    running: dict[str, Measurement] = {}
    findings: dict[str, Findings | WorkerError] = {}
    try:
        for backend in backends:
            measurement = Measurement(demo, "infer", backend, trace)
            running[backend] = measurement
            with show_status(measurement.title) as update:
                try:
                    measurement.wait_until_ready(update)
                except WorkerError as error:
                    del running[backend]
                    findings[backend] = error
        with show_status("timing in turns") as update:
            for turn in range(ROUNDS):
                update(f"round {turn + 1} of {ROUNDS}")
                for backend, measurement in list(running.items()):
                    try:
                        measurement.next_round()
                        measurement.wait_until_ready(update)
                    except WorkerError as error:
                        del running[backend]
                        findings[backend] = error
        for backend, measurement in running.items():
            with show_status(measurement.title) as update:
                try:
                    findings[backend] = measurement.finish(update)
                except WorkerError as error:
                    findings[backend] = error
    finally:
        for measurement in running.values():
            measurement.close()
    return findings


def measure(demo: Demo, task: str, backend: str, trace: Path) -> Findings:
    """Run one worker to its end, showing its progress. Raises WorkerError."""
    measurement = Measurement(demo, task, backend, trace)
    try:
        with show_status(measurement.title) as update:
            return measurement.finish(update)
    finally:
        measurement.close()


def format_row(name: str, cells: list[str]) -> str:
    """One line of the table."""
    return f"  {name:<34}" + "".join(f"{cell:>16}" for cell in cells)


def format_inference_table(findings: dict[str, Findings], columns: tuple[str, ...]) -> list[str]:
    """Return the measurements of the forward, one column per backend; a dash where a backend failed."""
    eager = findings["eager"]

    def cells(show: Callable[[Findings], str]) -> list[str]:
        return [show(findings[name]) if name in findings else "–" for name in columns]

    def compile_seconds(one: Findings) -> str:
        return "–" if one is eager else f"{one.first_call_s - eager.first_call_s:.1f}"

    def relative_ms(one: Findings) -> str:
        return f"{(one.ms or 0.0):.1f} ({(eager.ms or 0.0) / (one.ms or 1.0):.2f}x)"

    return [
        format_row("", list(columns)),
        format_row("max error against float64", cells(lambda one: f"{one.errors['logits'].max_abs:.2e}")),
        format_row("max difference from eager", cells(lambda one: f"{one.difference_from_eager or 0.0:.2e}")),
        format_row("compile seconds (cold)", cells(compile_seconds)),
        format_row("ms per call (speed-up over eager)", cells(relative_ms)),
        format_row(
            "peak memory, MB above parameters", cells(lambda one: f"{(one.peak_bytes or 0) / 1e6:.1f}")
        ),
        format_row("kernels and library calls per call", cells(lambda one: str(one.kernels))),
    ]


class Checks:
    """The demo's verdicts, printed as they come."""

    def __init__(self) -> None:
        self.failed = 0

    def expect(self, holds: bool, text: str) -> None:
        """Print one verdict and remember whether it was bad."""
        self.failed += not holds
        print(f"  {'ok  ' if holds else 'FAIL'}  {text}", flush=True)

    def expect_accurate(self, findings: Findings) -> None:
        """Every error of `found` is at most twice eager's."""
        for name, error in findings.errors.items():
            eager = findings.eager_errors[name]
            self.expect(
                is_within_bounds(error, eager),
                f"{name}: error {error.max_abs:.2e} (relative {error.relative_l2:.2e}), "
                f"eager's own {eager.max_abs:.2e} ({eager.relative_l2:.2e})",
            )


def run(demo: Demo) -> int:
    """Return the whole demo. Returns the process's exit status."""
    checks, subject = Checks(), demo.subject
    columns = tuple(dict.fromkeys(("eager", "inductor", subject)))
    print(
        f"GPT-2 (124M parameters, random weights, float32), {INFERENCE_TOKENS} bytes of text, on "
        f"{demo.device}"
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n", flush=True)
    findings: dict[str, Findings] = {}
    for backend, outcome in measure_inference(demo, columns, demo.folder / "trace").items():
        if isinstance(outcome, Findings):
            findings[backend] = outcome
        else:
            print(f"{backend} failed:\n{outcome}\n", flush=True)
    if "eager" not in findings or subject not in findings:
        return 1
    print("Inference")
    print("\n".join(format_inference_table(findings, columns)))
    checks.expect_accurate(findings[subject])

    print(f"\nOne training step, {TRAINING_TOKENS} bytes (forward, loss, backward, AdamW)")
    try:
        step = measure(demo, "train", subject, demo.folder / "trace-training")
        print(
            f"  loss {step.loss:.4f}; first step {step.first_call_s:.1f} s with its compilation, "
            f"then {step.ms or 0.0:.0f} ms per step (eager {step.eager_ms or 0.0:.0f} ms)"
        )
        checks.expect_accurate(step)
    except WorkerError as error:
        checks.expect(False, f"the training step failed:\n{error}")

    print("\nA second process, same cache")
    try:
        second = measure(demo, "again", subject, demo.folder / "trace-second-process")
        cold = findings[subject].first_call_s
        print(f"  first call {second.first_call_s:.1f} s instead of {cold:.1f} s")
        checks.expect(second.cache_hit is True, "cache hit" if second.cache_hit else "cache MISS")
        checks.expect(second.same_as_first_process is True, "the same logits, bit for bit")
    except WorkerError as error:
        checks.expect(False, f"the second process failed:\n{error}")

    print("\nGenerated code and every stage's text")
    for report in sorted(demo.folder.glob("trace*/**/report.json")):
        print(f"  {report.parent}")
    if checks.failed:
        print(f"\n{checks.failed} checks failed")
    return 1 if checks.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m coilwork_tools.demo", description=__doc__)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, help="for dumps and caches; default: a new temporary one"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds that a process may work at one step",
    )
    parser.add_argument("--backend", default="coilwork", help="the compiler on show")
    arguments = parser.parse_args()
    if find_spec("transformers") is None:
        print("The demo needs transformers: pip install 'coilwork[demo]'", file=sys.stderr)
        return 2
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="coilwork-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} is not empty, so nothing in it would be a cold start", file=sys.stderr)
        return 2
    return run(
        Demo(
            device=arguments.device,
            folder=folder.resolve(),
            timeout_s=arguments.timeout,
            subject=arguments.backend,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
