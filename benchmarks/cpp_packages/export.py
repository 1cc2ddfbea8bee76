"""Exports the measured model by one side: `python -m benchmarks.cpp_packages.export SIDE PATH LAYERS WIDTH
ROWS`.
"""

from __future__ import annotations

import importlib
import sys

import torch


class Blocks(torch.nn.Module):
    """Residual blocks: a norm, two products with a GELU between them."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(layers))
        self.first = torch.nn.ModuleList(torch.nn.Linear(width, 4 * width) for _ in range(layers))
        self.second = torch.nn.ModuleList(torch.nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all blocks on rows."""
        for norm, first, second in zip(self.norms, self.first, self.second, strict=True):
            x = x + second(torch.nn.functional.gelu(first(norm(x))))
        return x


def main(side: str, path: str, layers: int, width: int, rows: int) -> None:
    """Write the package."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, args = Blocks(layers, width).eval(), (torch.ones(rows, width),)
    if side == "coilwork":
        importlib.import_module("coilwork").export(model, args, path=path)
        return
    program = torch.export.export(model, args)
    torch._inductor.aoti_compile_and_package(program, package_path=path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
