"""What the first call costs a process whose caches are warm, torch's part and the compiler's apart.

    python -m benchmarks.second_process [--backends coilwork inductor] [--programs recurrence] [-o PAGE]

For each program and backend, one process fills empty caches, and `--runs` more measure; the least of each
number counts. All numbers are processor seconds of the process, children left out: of the first call with its
backward pass, and of the part inside the backend. The rest is Dynamo, its guards, and the call itself: it is
what `torch.compile(backend="eager")` costs, and eager mode alone costs what its own row says.
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
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.machine import machine_description


class Recurrence(nn.Module):
    """A gated state that is unrolled over the steps of its input, `f32[batch, steps, features]`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(features, features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.inner(x), torch.sigmoid(self.gate(x))
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = gate[:, step] * state + (1 - gate[:, step]) * torch.tanh(inner[:, step])
            states.append(state)
        return x + torch.stack(states, 1)


class Layer(nn.Module):
    """An attention layer before a layer of products, `f32[batch, length, features]`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.before, self.joint = nn.LayerNorm(features), nn.Linear(features, 3 * features)
        self.last = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.joint(self.before(x)).unflatten(-1, (-1, 32)).transpose(1, 2).chunk(3, 1)
        x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        last: Tensor = self.last(x)
        return x + last


class Checkpointed(nn.Module):
    """Layers that are computed again in the backward pass."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


PROGRAMS: Final[Mapping[str, Callable[[], nn.Module]]] = MappingProxyType(
    {
        "recurrence": lambda: nn.Sequential(*(Recurrence(16) for _ in range(3))),
        "layers": lambda: nn.Sequential(*(Layer(64) for _ in range(6))),
        "layers of any length": lambda: nn.Sequential(*(Layer(64) for _ in range(6))),
        "layers, checkpointed": lambda: Checkpointed(*(Layer(64) for _ in range(6))),
    }
)
Numbers = dict[str, float]


def measure_first_call(program: str, backend: str) -> Numbers:
    """Return the processor seconds of the first call of `program` in this process, by part."""
    torch.manual_seed(0)
    model, features = PROGRAMS[program](), 16 if program == "recurrence" else 64
    x = torch.randn(2, 24, features)
    inside = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **rest: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args, **rest)
            finally:
                inside[0] += time.process_time() - start

        return run

    if backend != "none":
        chosen = torch._dynamo.lookup_backend(backend)
        dynamic = True if program.endswith("any length") else None
        compiled: Callable[..., Any] = torch.compile(model, backend=timed(chosen), dynamic=dynamic)
    else:
        compiled = model
    start = time.process_time()
    compiled(x).square().mean().backward()
    return {"whole": time.process_time() - start, "backend": inside[0]}


def measure(program: str, backend: str, runs: int, folder: str) -> Numbers:
    """Return the least numbers of `runs` processes with caches in `folder` that one more has filled."""
    caches = {"COILWORK_CACHE_DIR": f"{folder}/coilwork", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    command = [sys.executable, "-m", "benchmarks.second_process", "--child", program, backend]
    found: list[Numbers] = []
    for _ in range(runs + 1):
        done = subprocess.run(
            command, env={**os.environ, **caches}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{program} under {backend} failed:\n{done.stderr[-2000:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: min(one[name] for one in found[1:]) for name in found[0]}


def write_page(rows: Mapping[tuple[str, str], Numbers]) -> str:
    """Return the page of numbers by program and backend."""
    lines = ["# Benchmarks: the first call of a second process", "", *(__doc__ or "").splitlines(), ""]
    lines += [f"- {name}: {text}" for name, text in machine_description("cpu").items()]
    lines += [
        "",
        "| program | backend | first call | in the backend | torch and the call |",
        "|---|---|---|---|---|",
    ]
    for (program, backend), numbers in rows.items():
        whole, inside = numbers["whole"], numbers["backend"]
        name = "eager mode" if backend == "none" else backend
        lines.append(f"| {program} | {name} | {whole:.2f} | {inside:.2f} | {whole - inside:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_process", description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["none", "eager", "coilwork", "inductor"])
    parser.add_argument("--programs", nargs="+", choices=tuple(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=None)
    parser.add_argument("--child", nargs=2, metavar=("PROGRAM", "BACKEND"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        print(json.dumps(measure_first_call(*chosen.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            (program, backend): measure(program, backend, chosen.runs, folder)
            for program in chosen.programs
            for backend in chosen.backends
        }
    page = write_page(rows)
    print(page)
    if chosen.output is not None:
        chosen.output.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1:])
