"""Three kernels, a norm, a scatter and a product, as the trace shows them, with how they run; and where one
graph's tensors lie.

    python -m benchmarks.traced_kernels > docs/how-to/read-a-kernel.md

What is said of a GPU is planned for one that need not be there; what is said of the CPU is for this machine.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.pages import wrap_prose
from benchmarks.planner import Planner
from coilwork.backend import backend
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.target import TARGETS
from coilwork_triton import TritonCodegen

GPU: Final = "sm_90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program whose kernel the page shows.

    Attributes:
        title: what the kernel computes.
        why: what there is to see in it.
        function: the program.
        inputs: makes its arguments.
    """

    title: str
    why: str
    function: Callable[..., Tensor]
    inputs: Callable[[], tuple[Tensor, ...]]


def normalize(x: Tensor) -> Tensor:
    """A layer norm of rows."""
    return F.layer_norm(x, x.shape[-1:])


def scatter(x: Tensor, at: Tensor) -> Tensor:
    """Rows added to where an index says."""
    return x.new_zeros(16384, x.shape[1]).index_add(0, at, x)


def multiply(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product whose rows are no whole vectors, and its activation."""
    return torch.addmm(bias, x, weight.t()).relu()


def low(*shape: int) -> Tensor:
    """Random numbers of 16 bits."""
    return torch.randn(shape, dtype=torch.bfloat16)


EXAMPLES: Final = (
    Example(
        title="A norm",
        why="A row stays in registers between its two sums and its result on a GPU (`keep`), and is walked "
        "three times on a "
        "CPU, where it stays in the cache.",
        function=normalize,
        inputs=lambda: (torch.randn(4096, 1024),),
    ),
    Example(
        title="A scatter",
        why="Several rows may be added to one place, so a GPU adds atomically: whole numbers, whose sums "
        "need no order. On a CPU "
        "each thread has some columns, and takes all rows in turn.",
        function=scatter,
        inputs=lambda: (
            torch.randint(0, 9, (65536, 64), dtype=torch.int32),
            torch.randint(0, 16384, (65536,)),
        ),
    ),
    Example(
        title="A product",
        why="Libraries write rows of an odd length one element at a time, so this product on a GPU is one "
        "of Coilwork's own, with "
        "its activation in it. The library's is taken on a CPU, and what is left is a kernel.",
        function=multiply,
        inputs=lambda: (low(512, 256), low(50257, 256), low(50257)),
    ),
)


class Stream(nn.Module):
    """A residual stream behind a patch embedding."""

    def __init__(self, width: int = 192, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 256, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """`(N, 3, 64, 64)` to `(N, width)`."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x.mean(1)


def list_traced_texts(function: Callable[..., Tensor], *inputs: Tensor, ending: str) -> list[str]:
    """The texts of one kind that a compile for this machine's CPU traces."""
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        options = {"trace": folder, "strict": True, "conv_layout": "captured", "cache": False}
        torch.compile(function, backend=partial(backend, options=options))(*inputs)
        return [path.read_text().rstrip() for path in sorted(Path(folder).rglob(f"*{ending}"))]


def list_planned_texts(function: Callable[..., Tensor], *inputs: Tensor) -> Iterator[tuple[str, str]]:
    """Each kernel's text, and how it runs, on a GPU."""
    torch._dynamo.reset()
    planner = Planner(target=GPU)
    torch.compile(function, backend=planner)(*inputs)
    for program in planner.programs:
        for kernel in program.kernels:
            text = re.sub(r" loc\(.*\)$", "", format_kernel(kernel).rstrip(), flags=re.MULTILINE)
            yield text, TritonCodegen().describe(kernel, TARGETS[GPU], {}).rstrip()


def page() -> Iterator[str]:
    """The page's parts."""
    yield (
        "# How to read a kernel\n\n"
        "With `COILWORK_TRACE=folder` (or the option `trace`) every graph leaves its stages' texts in a "
        "folder of its own. For\n"
        "each kernel `kernels/NAME.kernel.txt` says what it computes and `kernels/NAME.mapping.txt` how "
        "it runs: a list of\n"
        "directives, each documented in `coilwork_ir.mapping`. This page is made by `python -m "
        "benchmarks.traced_kernels`."
    )
    for example in EXAMPLES:
        torch.manual_seed(0)
        inputs = example.inputs()
        yield f"## {example.title}\n\n{example.why}"
        for kernel, mapping in list_planned_texts(example.function, *inputs):
            yield f"```text\n{kernel}\n```\n\nOn a GPU ({GPU}):\n\n```text\n{mapping}\n```"
        for mapping in list_traced_texts(example.function, *inputs, ending=".mapping.txt"):
            yield f"On this CPU:\n\n```text\n{mapping}\n```"
    decisions = "\n".join(
        list_traced_texts(Stream().eval(), torch.randn(2, 3, 64, 64), ending=".decisions.txt")
    )
    layouts = [line for line in decisions.splitlines() if line.split()[1:2] in (["rule"], ["layout"])]
    yield (
        "## Where tensors lie\n\n"
        "`NAME.decisions.txt` holds what was decided, and why. Of a residual stream behind a patch "
        "embedding, the layouts:\n\n"
        "```text\n" + "\n".join(layouts) + "\n```"
    )


def main() -> int:
    """Print the page."""
    sys.stdout.write(wrap_prose("\n\n".join(page()) + "\n"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
