"""What the layout pass changes in transformers behind a patch embedding, kernel by kernel.

    python -m benchmarks.stream_layouts [--models vit dit whisper] [--layers 2] [--output table.md]

Each model is compiled under bf16 autocast twice, with the scheduler's pass `layouts` and without. With a GPU
the kernels of both are run and timed. Without one the table holds bytes: what the rules of the pass say that
each loop and call moves, where neighbours that lie apart count as whole sectors
(`coilwork_scheduler/layouts/traffic.py`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.kernels import kernel_times
from benchmarks.layout_tables import TARGET, capture
from benchmarks.machine import machine_description
from coilwork.backend import backend
from coilwork.registries import find_codegen
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.loops import Graph
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.passes import Pass
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import ScheduleOptions, pipeline, schedule
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.layouts.assign import collect_layout_facts, list_sites
from coilwork_scheduler.layouts.constraints import SCALE
from coilwork_scheduler.layouts.rules import RULES
from coilwork_scheduler.options import make_size_hints
from coilwork_scheduler.settings import Settings

# Calls of a compiled model that are timed, after some that are not.
_REPEATS: Final = 20
_MOST_ROWS: Final = 12
# What kernels and buffers of layers are called beside: numbers, and the hash of a kernel's text.
_NUMBERS: Final = re.compile(r"(_[0-9a-f]{8})?(_\d+)*$")
_HEAD: Final = """
# What the layout pass changes in transformers behind a patch embedding

Made by `python -m benchmarks.stream_layouts --output docs/stream-layouts.md`. On a machine with a GPU it
times the kernels of both programs; without one, and with `--predict`, it tells the bytes that each loop and
call moves by the rules of the [pass](decisions/0033-layouts-of-intermediates.md), where neighbours that lie
apart count as whole sectors of 32 bytes.

The convolution's result is a stream of tokens whose features lie apart. As captured every norm reads it
across its rows; with the pass it lies along them. Names are those of what a loop or a kernel makes first.
"""


class Block(nn.Module):
    """A pre-norm block; with `conditioned` its norms are shifted and scaled, as DiT's."""

    def __init__(self, width: int, heads: int, *, conditioned: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=not conditioned) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width) if conditioned else None

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shifts: Sequence[Tensor | float] = (0.0, 0.0, 1.0, 0.0, 0.0, 1.0)
        if self.modulation is not None:
            shifts = self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, dim=-1)
        batch, tokens, width = x.shape
        normed = self.norms[0](x) * (1 + shifts[1]) + shifts[0]
        parts = self.qkv(normed).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + shifts[2] * self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        normed = self.norms[1](x) * (1 + shifts[4]) + shifts[3]
        found: Tensor = x + shifts[5] * self.narrow(F.gelu(self.wide(normed), approximate="tanh"))
        return found


class Stream(nn.Module):
    """A convolution whose result is a stream of tokens, positions, and blocks."""

    def __init__(self, patches: nn.Module, tokens: int, blocks: Sequence[Block], width: int) -> None:
        super().__init__()
        self.patches, self.blocks = patches, nn.ModuleList(blocks)
        self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        condition = x[:, 0]
        for block in self.blocks:
            x = block(x, condition)
        found: Tensor = self.norm(x).mean(1)
        return found


def _stream(
    width: int, heads: int, tokens: int, patches: nn.Module, layers: int, conditioned: bool
) -> Stream:
    blocks = [Block(width, heads, conditioned=conditioned) for _ in range(layers)]
    return Stream(patches, tokens, blocks, width)


def build_vit(layers: int) -> Stream:
    """ViT-L/16."""
    return _stream(1024, 16, 196, nn.Conv2d(3, 1024, 16, 16), layers, conditioned=False)


def build_dit(layers: int) -> Stream:
    """DiT-XL/2."""
    return _stream(1152, 16, 256, nn.Conv2d(4, 1152, 2, 2), layers, conditioned=True)


def build_whisper(layers: int) -> Stream:
    """Whisper-small's encoder."""
    patches = nn.Sequential(
        nn.Conv1d(80, 768, 3, padding=1), nn.GELU(), nn.Conv1d(768, 768, 3, 2, 1), nn.GELU()
    )
    return _stream(768, 12, 1500, patches, layers, conditioned=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and the shape of what it reads."""

    title: str
    build: Callable[[int], nn.Module]
    shape: tuple[int, ...]


CASES: Final[Mapping[str, Case]] = {
    "vit": Case(title="ViT-L/16, 16 images", build=build_vit, shape=(16, 3, 224, 224)),
    "dit": Case(title="DiT-XL/2, 16 images", build=build_dit, shape=(16, 4, 32, 32)),
    "whisper": Case(title="Whisper-small's encoder, 8 x 30 s", build=build_whisper, shape=(8, 80, 3000)),
}


@contextmanager
def layouts_as_captured() -> Iterator[None]:
    """Schedule without the pass `layouts`."""
    kept = Pass[pipeline.Draft, Settings](
        name="layouts", run=lambda draft, settings: draft, why="everything lies as captured"
    )
    table = pipeline.PASSES
    without = replace(table, passes=tuple(kept if row.name == "layouts" else row for row in table.passes))
    with patch.object(pipeline, "PASSES", without):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel, or one loop or call: how often it runs, and what it costs as captured and with the pass."""

    name: str
    count: int
    captured: float
    chosen: float


def predict(case: Case, layers: int) -> list[Row]:
    """Bytes of each loop and call that cost otherwise with the pass, in MB; and of all of them, last."""
    graph = capture(case.build(layers), case.shape)
    targets, options = declare_capabilities(Targets(main=TARGETS[TARGET]), find_codegen), ScheduleOptions()
    steps: list[tuple[str, Graph]] = []
    schedule(graph, targets, options, observe=lambda name, after: steps.append((name, after)))
    place = next(k for k, (name, _) in enumerate(steps) if name == "layouts")
    before, after = (_weigh(steps[k][1], targets, options) for k in (place - 1, place))
    changed: Counter[tuple[str, float, float]] = Counter()
    for name in dict.fromkeys((*before, *after)):
        costs = before.get(name, 0.0), after.get(name, 0.0)
        if costs[0] != costs[1]:
            changed[(_stem(name), *costs)] += 1
    rows = [Row(name=n, count=c, captured=c * old, chosen=c * new) for (n, old, new), c in changed.items()]
    everything = Row(
        name="all loops and calls",
        count=len(after),
        captured=sum(before.values()),
        chosen=sum(after.values()),
    )
    return [*_order(rows), everything]


def _weigh(graph: Graph, targets: Targets, options: ScheduleOptions) -> dict[str, float]:
    """MB that each node of `graph` moves by the rules of the pass, by the first buffer that it makes."""
    hints = make_size_hints(options)
    context = collect_layout_facts(graph, analyse(graph), targets=targets, sizes=hints)
    found: dict[str, float] = {}
    for position, sites in list_sites(context, RULES, options).items():
        made = list_defined_buffers(graph.nodes[position])
        if made:
            found[made[0].name] = sum(site.cost(context.strides_of_capture) for site in sites) / SCALE / 1e6
    return found


def time_kernels(case: Case, layers: int) -> list[Row]:
    """Microseconds of each kernel in a call, and of all of them, last."""
    with torch.random.fork_rng(devices=["cuda"]):
        torch.manual_seed(0)
        model = case.build(layers).eval().cuda()
        x = torch.randn(case.shape, device="cuda")
    captured, chosen = _times(model, x, is_captured=True), _times(model, x, is_captured=False)
    rows = [
        Row(
            name=name,
            count=(chosen.get(name) or captured[name])[0],
            captured=captured.get(name, (0, 0.0))[1],
            chosen=chosen.get(name, (0, 0.0))[1],
        )
        for name in dict.fromkeys((*captured, *chosen))
    ]
    everything = Row(
        name="all kernels",
        count=sum(count for count, _ in chosen.values()),
        captured=sum(us for _, us in captured.values()),
        chosen=sum(us for _, us in chosen.values()),
    )
    return [*_order(rows), everything]


def _times(model: nn.Module, x: Tensor, *, is_captured: bool) -> dict[str, tuple[int, float]]:
    torch._dynamo.reset()
    # an entry of the cache would hide the pass
    compiled = torch.compile(model, backend=backend, options={"cache": False})

    def call() -> Tensor:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            found: Tensor = compiled(x)
            return found

    if is_captured:
        with layouts_as_captured():
            call()
    for _ in range(3):
        call()
    found: dict[str, tuple[int, float]] = {}
    for kernel in kernel_times(call, repeats=_REPEATS):
        count, us = found.get(_stem(kernel.name), (0, 0.0))
        found[_stem(kernel.name)] = (count + kernel.launches, us + kernel.total_us)
    return found


def _stem(name: str) -> str:
    return _NUMBERS.sub("", name.split("<")[0].split("(")[0])[:60]


def _order(rows: Sequence[Row]) -> list[Row]:
    """Return those that differ most."""
    return sorted(rows, key=lambda row: -abs(row.captured - row.chosen))[:_MOST_ROWS]


def table_of(case: Case, layers: int, *, is_timed: bool) -> str:
    """The table of one model, in Markdown."""
    rows = time_kernels(case, layers) if is_timed else predict(case, layers)
    unit = "us" if is_timed else "MB by the rules"
    lines = [
        f"### {case.title}, {layers} layers",
        "",
        f"| kernel | times | as captured, {unit} | chosen, {unit} |",
        "|---|---|---|---|",
        *(f"| {r.name} | {r.count} | {r.captured:.1f} | {r.chosen:.1f} |" for r in rows),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream_layouts", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--predict", action="store_true", help="bytes, though there is a GPU")
    parser.add_argument("--output", type=Path, help="file to write; else the tables are printed")
    found = parser.parse_args(arguments)
    is_timed = torch.cuda.is_available() and not found.predict
    text = "\n".join(table_of(CASES[name], found.layers, is_timed=is_timed) for name in found.models)
    if found.output is None:
        print(text)
    else:
        facts = machine_description("cuda" if is_timed else "cpu").items()
        machine = "\n".join(f"- {name}: {said}" for name, said in facts)
        found.output.write_text(f"{_HEAD.strip()}\n\n{machine}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
