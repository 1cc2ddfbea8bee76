"""What a call costs the host besides its kernels' work: `python -m benchmarks.calls -o
docs/benchmarks/calls.md`.

Programs of many launches on tensors of 64 elements, where the work is next to nothing, on the CPU with one
thread. Each figure is the least of as many processes as `--processes` says (3), which alternate between the
backends; in a process, the least mean of many rounds.

`python -m benchmarks.calls --breakdown gpt2 [--train]` says what a call of a model spends the host's time on
(breakdown.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend
from benchmarks.breakdown import breakdown
from benchmarks.machine import machine_description
from benchmarks.pages import wrap_prose
from benchmarks.worker import coilwork_launches, inductor_launches
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_lowering import partition

BACKENDS = ("dynamo", "aot", "inductor", "python", "native")
NO_OPS = ("dynamo", "aot")
BUDGET_S = 3.0
ROUND_CALLS = 50


def one_kernel(x: Tensor, w: Tensor) -> Tensor:
    return x * w + 1


def products(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(25):
        x = x @ w
    return x


def products_and_kernels(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(25):
        x = torch.tanh(x @ w) + 1
    return x


def reductions(x: Tensor, w: Tensor) -> Tensor:
    for k in range(50):
        x = x / (x.sum(k % 2, keepdim=True) + 2)
    return x


CASES: Mapping[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "one": (one_kernel, "one kernel"),
    "products": (products, "25 products of 8 x 8, which ATen computes"),
    "mixed": (products_and_kernels, "25 such products, each followed by a kernel"),
    "reductions": (reductions, "50 kernels that wait for each other"),
}


def measure(backend: str, case: str) -> dict[str, float]:
    """Microseconds per call, and launches, of one case under one backend; run in a process of its own."""
    folder = Path(os.environ["COILWORK_CACHE_DIR"])
    torch.set_num_threads(1)
    function, _ = CASES[case]
    x, w = torch.rand(8, 8), torch.rand(8, 8) / 8
    compiled = _compile(function, backend, folder)
    with torch.no_grad():
        if backend not in NO_OPS:
            torch.testing.assert_close(compiled(x, w), function(x, w))
        best, end = float("inf"), time.perf_counter() + BUDGET_S
        while time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(ROUND_CALLS):
                compiled(x, w)
            best = min(best, (time.perf_counter() - start) / ROUND_CALLS)
    launches = 0
    if backend == "inductor":
        launches = inductor_launches(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    elif backend not in NO_OPS:
        launches = int(str(coilwork_launches(folder)["kernels"]))
    return {"us": 1e6 * best, "launches": launches}


def _compile(function: Callable[..., Tensor], backend: str, folder: Path) -> Callable[..., Tensor]:
    if backend == "dynamo":
        return torch.compile(function, backend=lambda gm, inputs: lambda *args: (args[0],))
    if backend == "aot":
        return torch.compile(function, backend=_run_aot_autograd)
    if backend == "inductor":
        return torch.compile(function)
    options: dict[str, str | int | bool | Callable[..., Any]]
    options = {"executor": backend, "strict": True, "trace": str(folder)}
    return torch.compile(function, backend=resolve_backend("coilwork"), options=options)


def _run_aot_autograd(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that does nothing behind AOTAutograd's wrapper."""

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return _Nothing()

    return compile_with_aot_autograd(
        gm,
        example_inputs,
        forward=compiler,
        backward=compiler,
        inference=compiler,
        decompositions={},
        partition=partition,
    )


class _Nothing:
    """Empties its list, as AOTAutograd asks of a compiled graph, and returns its first input."""

    _boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        results = args[:1]
        args.clear()
        return results


def measure_apart(backend: str, case: str) -> dict[str, float]:
    """Do as `measure`, in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        environ = os.environ | {
            "COILWORK_CACHE_DIR": f"{folder}/coilwork",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        }
        command = [sys.executable, "-m", "benchmarks.calls", "--worker", backend, case]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def page(found: Mapping[tuple[str, str], Mapping[str, float]], command: str) -> str:
    """The results as Markdown."""
    lines = [
        "# Benchmarks: what a call costs on a CPU",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        "",
        *(f"- {name}: {value}" for name, value in machine_description("cpu").items()),
        "",
        " ".join((__doc__ or "").split("\n\n")[1].split()),
        "",
        (
            'Microseconds per call. "Dynamo" is a backend that does nothing: guards and the way into '
            "compiled code, which every backend"
        ),
        (
            'pays. "AOTAutograd" is one that does nothing behind its wrapper; the native executor is called '
            "without it where it has nothing"
        ),
        "to do. The last ratio is that of what remains without Dynamo.",
        "",
        "| program | Dynamo | AOTAutograd | inductor | launches | coilwork, Python module | coilwork, "
        "native executor | launches "
        "| native / inductor, whole call | without Dynamo |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case, (_, title) in CASES.items():
        dynamo, aot, inductor, python, native = (found[backend, case] for backend in BACKENDS)
        ratio = native["us"] / inductor["us"]
        inner = (native["us"] - dynamo["us"]) / (inductor["us"] - dynamo["us"])
        lines.append(
            f"| {title} | {dynamo['us']:.1f} | {aot['us']:.1f} | {inductor['us']:.1f} | "
            f"{inductor['launches']:.0f} | {python['us']:.1f} "
            f"| {native['us']:.1f} | {native['launches']:.0f} | {ratio:.2f} | {inner:.2f} |"
        )
    lines += [
        "",
        (
            "The 50 kernels that wait for each other are 50 launches here. TorchInductor puts kernels that "
            "follow each other on a CPU into one"
        ),
        (
            "C++ function, so that theirs cost it nothing; it allocates their buffers one by one in Python. "
            "Calls of ATen in between keep"
        ),
        "kernels apart in both.",
    ]
    return wrap_prose("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--worker", nargs=2, metavar=("BACKEND", "CASE"), help="measure here, print JSON")
    parser.add_argument("--processes", type=int, default=3, help="per backend and case")
    parser.add_argument("-o", "--output", type=Path, default=None, help="default: standard output")
    parser.add_argument(
        "--breakdown", metavar="MODEL", help="what a call of a model spends the host's time on"
    )
    parser.add_argument("--train", action="store_true", help="with --breakdown, a training step")
    parser.add_argument("--inductor", action="store_true", help="with --breakdown, measure its call, too")
    parser.add_argument(
        "--products", choices=("auto", "aten", "cublaslt"), default="auto", help="with --breakdown"
    )
    parser.add_argument(
        "--convolutions", choices=("auto", "aten", "cudnn"), default="auto", help="with --breakdown"
    )
    asked = parser.parse_args(arguments)
    if asked.breakdown:
        options = {"products": asked.products, "convolutions": asked.convolutions}
        print(breakdown(asked.breakdown, train=asked.train, options=options, inductor=asked.inductor))
        return 0
    if asked.worker:
        print(json.dumps(measure(*asked.worker)))
        return 0
    found: dict[tuple[str, str], dict[str, float]] = {}
    for _ in range(asked.processes):
        for case in CASES:
            for backend in BACKENDS:
                result = measure_apart(backend, case)
                known = found.get((backend, case))
                if known is None or result["us"] < known["us"]:
                    found[backend, case] = result
                print(f"{case} {backend} {result['us']:.1f} us", file=sys.stderr)
    text = page(found, " ".join(("python -m benchmarks.calls", *arguments)))
    if asked.output is None:
        print(text)
    else:
        asked.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
