"""How intermediates of two models lie in memory, and why: `python -m benchmarks.layout_tables [--output
docs/layouts.md]`.

Captured on a CPU and scheduled for a GPU that is not there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.pages import wrap_prose
from benchmarks.planner import Planner
from coilwork.registries import find_codegen
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.layouts.assign import explain_layouts
from coilwork_scheduler.layouts.rules import format_rules

TARGET: Final = "sm_90"


class WindowStream(nn.Module):
    """A residual stream behind an embedding of windows that overlap: a norm, two products and a sum."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.windows = nn.Conv2d(64, width, 3, 2, 1)
        self.places = nn.Parameter(torch.zeros(1, 196, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        stream = self.windows(images).flatten(2).transpose(1, 2) + self.places
        for norm, wide, narrow in zip(self.norms, self.wide, self.narrow, strict=True):
            stream = stream + narrow(nn.functional.gelu(wide(norm(stream))))
        mean: Tensor = stream.mean(1)
        return mean


def convolution_stack() -> nn.Module:
    """Three convolutions with activations between them."""
    layers: list[nn.Module] = []
    for before, behind in ((3, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(before, behind, 3, padding=1), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))


MODELS: Final[tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...]], ...]] = (
    ("A residual stream behind a convolution", WindowStream, (16, 64, 28, 28)),
    ("A stack of convolutions", convolution_stack, (16, 3, 64, 64)),
)


def capture(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """The loop graph of `model` in inference, under autocast to bf16."""
    torch._dynamo.reset()
    planner = Planner(target=TARGET)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.compile(model.eval(), backend=planner)(torch.zeros(shape))
    (graph,) = planner.graphs
    return graph


def tabulate(graph: Graph) -> str:
    """The decision table of `graph`."""
    steps: list[tuple[str, Graph]] = []
    targets, options = declare_capabilities(Targets(main=TARGETS[TARGET]), find_codegen), ScheduleOptions()
    made = schedule(graph, targets, options, observe=lambda name, after: steps.append((name, after)))
    return explain_layouts(steps, made.decisions, targets=targets, options=options)


def page() -> str:
    """The page of the documentation."""
    parts = [
        "# How intermediates lie in memory",
        (
            "Made by `python -m benchmarks.layout_tables`. A trace of a compiled model holds the same table "
            "of each of its graphs: `*.layouts.txt`."
        ),
        "Costs are those of the rules, a table in `coilwork_scheduler/layouts/rules.py`; "
        "[decision 0033](decisions/0033-layouts-of-intermediates.md) says how the choice is made.",
        f"```text\n{format_rules()}```",
        "`fixed` memory lies as captured, for the reason given; `free` memory might lie otherwise, but "
        "does not gain by it; `moved` memory "
        "lies otherwise than captured. What follows is the runner-up, and what it would cost more. A second "
        "table has copies, and what libraries convert and loops read across memory nevertheless.",
    ]
    for title, make, shape in MODELS:
        parts += [f"## {title}", f"```text\n{tabulate(capture(make(), shape))}```"]
    return wrap_prose("\n\n".join(parts) + "\n")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("docs/layouts.md"))
    parser.parse_args().output.write_text(page())


if __name__ == "__main__":
    main()
