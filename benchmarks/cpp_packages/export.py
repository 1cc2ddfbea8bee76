"""Exports the measured model by one side: `python -m benchmarks.cpp_packages.export SIDE PATH MODEL LAYERS
WIDTH ROWS DEVICE TARGET`; an empty target is the device that is here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD: Final = 64
VOCABULARY: Final = 50257


class Blocks(nn.Module):
    """Residual blocks: a norm, two products with a GELU between them."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.first = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.second = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks on rows."""
        for norm, first, second in zip(self.norms, self.first, self.second, strict=True):
            x = x + second(F.gelu(first(norm(x))))
        return x


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = (
            self.attend(self.norms[0](x)).view(batch, length, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        changed: Tensor = x + self.second(F.gelu(self.first(self.norms[1](x)), approximate="tanh"))
        return changed


class GPT(nn.Module):
    """The layers of GPT-2 as its authors describe them, with one table for embedding and logits."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Tokens [b, s] -> logits [b, s, vocabulary]."""
        x = self.tokens(token_ids) + self.places(torch.arange(token_ids.shape[1], device=token_ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)


MODELS: Final[Mapping[str, tuple[Callable[[int, int], nn.Module], str]]] = MappingProxyType(
    {"blocks": (Blocks, "float"), "gpt": (GPT, "int")}
)
"""Modules by name, and the type of their input."""


def list_sizes(model: str, width: int, rows: int) -> tuple[int, int]:
    """The sizes of the input."""
    return (1, rows) if model == "gpt" else (rows, width)


def make(model: str, layers: int, width: int, rows: int) -> tuple[nn.Module, tuple[Tensor]]:
    """The module, on the CPU, and its input."""
    torch.manual_seed(0)
    build, dtype = MODELS[model]
    ones = torch.ones(
        list_sizes(model, width, rows), dtype=torch.float32 if dtype == "float" else torch.int64
    )
    module = build(layers, width).eval()
    return module.bfloat16() if model == "gpt" else module, (ones,)


def main(
    side: str, path: str, model: str, layers: int, width: int, rows: int, device: str, target: str
) -> None:
    """Write the package."""
    torch.set_num_threads(1)
    module, args = make(model, layers, width, rows)
    if not target:
        module, args = module.to(device), (args[0].to(device),)
    if side == "coilwork":
        importlib.import_module("coilwork").export(module, args, path=path, target=target or None)
        return
    with torch.no_grad():
        program = torch.export.export(module, args)
        torch._inductor.aoti_compile_and_package(program, package_path=path)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], words[2], int(words[3]), int(words[4]), int(words[5]), words[6], words[7])
