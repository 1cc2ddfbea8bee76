"""Coilwork's own processor time, in milliseconds per ATen call, by stage; what a deeper model costs more.

Usage: python -m benchmarks.compile_stages [CASE ...] [--build] [--passes] [--digest] [--profile FILE]

Each case is a program that torch captures, and autograd cuts into a forward and a backward graph where it is
trained. Torch's tracing is left out. Seconds are processor time; the garbage collector of cycles pauses, as
while Coilwork compiles. No GPU is needed: kernels are C++.

`--build` has them built, too, by one worker without a cache. `--passes` has the scheduler's passes in rows of
their own. `--digest` prints a digest of all that was generated, by which two versions of the compiler are
compared: equal digests, equal text. `--profile` writes what cProfile finds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from benchmarks.graph_shapes.compilers import ProcessorClock
from benchmarks.graph_shapes.shapes import SHAPES
from benchmarks.planner import UntouchedResults
from coilwork.backend import GraphStages
from coilwork.caches import open_caches
from coilwork.compile_graph import make_call
from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import Compiled, run_stages
from coilwork_cache import Store
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.compile_captured import Halves, compile_captured
from coilwork_ir.program.text import format_program
from coilwork_runtime import Builder
from coilwork_scheduler import pipeline
from coilwork_tools.explain.report import StageClock

OPTIONS: Final = CompileOptions(strict=True, cache=False)


# ---- programs ----


class Block(nn.Module):
    """A layer of GPT-2: norms, causal attention with several heads, and two products around GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: `x` and the result are [batch, tokens, width]."""
        batch, tokens, width = x.shape
        parts = self.into(self.norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        y: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_after(x)), approximate="tanh"))
        return y


class Transformer(nn.Module):
    """Tokens [batch, tokens] to logits, by `layers` equal blocks."""

    def __init__(self, layers: int, width: int = 64, heads: int = 2, vocabulary: int = 512) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shapes: `tokens` is [batch, tokens], the result [batch, tokens, vocabulary]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inner: int, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.across: nn.Module = nn.Identity()
        if stride != 1 or inner != channels:
            self.across = nn.Sequential(
                nn.Conv2d(inner, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: [batch, channels, height, width]."""
        return F.relu(self.steps(x) + self.across(x))


def make_resnet() -> nn.Module:
    """ResNet-50 at an eighth of its width."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inner = 8
    for width, depth, stride in ((8, 3, 1), (16, 4, 2), (32, 6, 2), (64, 3, 2)):
        for place in range(depth):
            layers.append(Bottleneck(inner, 4 * width, width, stride if place == 0 else 1))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 100))


class SelectiveScan(nn.Module):
    """Layers of a state-space model whose scan over tokens is written step by step."""

    def __init__(self, layers: int, width: int = 16, state: int = 4) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, width + 2 * state) for _ in range(layers))
        self.decay = nn.Parameter(torch.zeros(width, state))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: [batch, tokens, width]."""
        width = x.shape[-1]
        for gates, out in zip(self.gates, self.outs, strict=True):
            step, into, read = gates(x).split([width, self.state, self.state], dim=-1)
            step = F.softplus(step)
            held = x.new_zeros(x.shape[0], width, self.state)
            rows = []
            for t in range(x.shape[1]):
                held = torch.exp(step[:, t, :, None] * -torch.exp(self.decay)) * held
                held = held + step[:, t, :, None] * into[:, t, None, :] * x[:, t, :, None]
                rows.append((held * read[:, t, None, :]).sum(-1))
            x = x + out(torch.stack(rows, 1))
        return x


@dataclass(frozen=True, slots=True)
class Case:
    """A program to compile.

    `make` gives a function or module and its arguments; `shape` names a recorded graph in its place.
    """

    make: Callable[[], tuple[Callable[..., Tensor], tuple[Tensor, ...]]] | None = None
    trained: bool = False
    shape: tuple[str, int] = ("", 0)


def _transformer(layers: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return Transformer(layers), (torch.randint(512, (2, 32)),)


def _resnet() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return make_resnet(), (torch.randn(2, 3, 64, 64),)


def _scan() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return SelectiveScan(2), (torch.randn(2, 48, 16),)


CASES: Final = MappingProxyType(
    {
        "infer12": Case(partial(_transformer, 12)),
        "infer48": Case(partial(_transformer, 48)),
        "train12": Case(partial(_transformer, 12), trained=True),
        "train48": Case(partial(_transformer, 48), trained=True),
        "resnet": Case(_resnet, trained=True),
        "scan": Case(_scan, trained=True),
        "mix": Case(shape=("random_mixed", 3000)),
        "inputs": Case(shape=("reductions_of_inputs", 5000)),
        "outputs": Case(shape=("beside", 5000)),
    }
)


# ---- capturing ----


@dataclass(frozen=True, slots=True)
class Captured:
    """An ATen graph that AOTAutograd hands over."""

    gm: fx.GraphModule
    inputs: Sequence[Any]
    role: Role


class _Recording(GraphStages):
    """Cuts joint graphs as usual, and keeps the graphs in place of compiling them."""

    def __init__(self, captured: list[Captured], clock: StageClock, options: CompileOptions) -> None:
        super().__init__(options)
        self.captured = captured
        self.clock = clock

    def partition(self, joint: fx.GraphModule, example_inputs: Sequence[Any], **rest: Any) -> Halves:
        with self.clock.stage("partition"):
            return super().partition(joint, example_inputs, **rest)

    def compile(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], *, role: Role, **_: Any
    ) -> Callable[..., Any]:
        self.captured.append(Captured(gm, list(example_inputs), role))
        return UntouchedResults(gm)


def capture(case: Case, clock: StageClock) -> list[Captured]:
    """The graphs of `case`. `clock` gets the time of cutting joint graphs."""
    if case.make is None:
        shape, size = case.shape
        gm, inputs, _ = SHAPES[shape].graph(size)
        return [Captured(gm, inputs, "inference")]
    torch.manual_seed(0)
    program, arguments = case.make()
    return capture_program(program, arguments, clock, trained=case.trained)


def capture_program(
    program: Callable[..., Any],
    arguments: Sequence[Any],
    clock: StageClock,
    *,
    trained: bool,
    dynamic: bool = False,
) -> list[Captured]:
    """The graphs of a call of `program`, and of its gradients if it is `trained`."""
    captured: list[Captured] = []
    torch._dynamo.reset()

    def backend(gm: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        return compile_captured(gm, given, partial(_Recording, captured, clock, OPTIONS))

    with torch.set_grad_enabled(trained):
        results = tree_leaves(torch.compile(program, backend=backend, dynamic=dynamic)(*arguments))
        if trained:
            sums = [one.sum() for one in results if isinstance(one, Tensor) and one.requires_grad]
            torch.stack(sums).sum().backward()
    return captured


# ---- measuring ----


def compile_captured_graph(graph: Captured, clock: StageClock, store: Store | None = None) -> Compiled:
    """Compile `graph`; its kernels are built if there is a `store` for them."""
    with clock.stage("open"):
        job = open_job(
            graph.gm, graph.inputs, role=graph.role, options=OPTIONS, reports_strides=graph.role == "forward"
        )
    compiled = run_stages(replace(job, clock=clock), fallback=())
    if store is not None:
        with clock.stage("build"):
            make_call(compiled, job, Builder(store=store, workers=1), store)
    return compiled


def digest(compiled: Compiled) -> str:
    """Return the digest of the program and of its kernels' sources, by which texts are compared."""
    parts = [format_program(compiled.program), compiled.written.module]
    parts += [f"{name}\n{source.text}" for name, source in compiled.sources.items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def time_passes(clock: StageClock) -> AbstractContextManager[object]:
    """Have each pass of the scheduler timed as a stage, while the body runs."""

    def timed(name: str, run: Callable[..., Any], *given: Any) -> Any:
        with clock.stage(f"  {name}"):
            return run(*given)

    table = pipeline.PASSES
    rows = tuple(replace(row, run=partial(timed, row.name, row.run)) for row in table.passes)
    return patch.object(pipeline, "PASSES", replace(table, passes=rows))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_stages", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--profile")
    found = parser.parse_args(arguments)
    for name in ("infer12", "train12"):
        warm = replace(CASES[name], make=partial(_transformer, 1))
        for graph in capture(warm, ProcessorClock()):
            compile_captured_graph(graph, ProcessorClock())
    totals = {name: measure(name, found) for name in found.cases}
    for pair in (("infer12", "infer48"), ("train12", "train48")):
        if set(pair) <= set(totals):
            print(f"{pair[1]} / {pair[0]}: {totals[pair[1]] / totals[pair[0]]:.2f}")
    return 0


def measure(name: str, found: argparse.Namespace) -> float:
    """Print the row of a case; processor seconds of all stages."""
    clock = ProcessorClock()
    profiler = cProfile.Profile()
    gc.collect()
    gc.disable()
    graphs = capture(CASES[name], clock)
    calls = sum(node.op == "call_function" for graph in graphs for node in graph.gm.graph.nodes)
    kernels, digests = 0, []
    store = open_caches(OPTIONS) if found.build else None
    with time_passes(clock if found.passes else StageClock()):
        if found.profile:
            profiler.enable()
        for graph in graphs:
            compiled = compile_captured_graph(graph, clock, store)
            kernels += len(compiled.sources)
            digests.append(digest(compiled))
        profiler.disable()
    gc.enable()
    if found.profile:
        profiler.dump_stats(found.profile)
    total = sum(seconds for stage, seconds in clock.seconds.items() if not stage.startswith(" "))
    print(f"{name}: {calls} calls, {kernels} kernels, {total:.2f} s, {1e3 * total / calls:.2f} ms per call")
    for stage, seconds in clock.seconds.items():
        print(f"  {stage:20} {seconds:7.2f} s {1e3 * seconds / calls:7.3f} ms per call")
    if found.digest:
        print(f"  digests {' '.join(digests)}")
    sys.stdout.flush()
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
