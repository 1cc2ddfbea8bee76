"""The programs whose calls are measured: chains of kernels and of products, and a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from benchmarks.models import Setting, Size, find_case, instantiate

PRODUCT_SIZE: Final = 256
Call = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function and its inputs.

    Attributes:
        title: what it is, for a table.
        make: the function and its inputs, on the GPU.
        launches: how long the chain is; 0 for a model.
    """

    title: str
    make: Callable[[], tuple[Call, tuple[Tensor, ...]]]
    launches: int = 0


def _chain_kernels(count: int) -> Callable[[], tuple[Call, tuple[Tensor, ...]]]:
    """Kernels that wait for each other: each needs all of the last one's results."""

    def chain(x: Tensor) -> Tensor:
        for k in range(count):
            x = x / (x.sum(k % 2, keepdim=True) + 2)
        return x

    return lambda: (chain, (torch.rand(64, 64, device="cuda"),))


def _products(count: int) -> Callable[[], tuple[Call, tuple[Tensor, ...]]]:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = x @ w
        return x

    def make() -> tuple[Call, tuple[Tensor, ...]]:
        shape = (PRODUCT_SIZE, PRODUCT_SIZE)
        x = torch.rand(shape, device="cuda", dtype=torch.bfloat16)
        # permuting rows: products stay of one size however many there are
        return chain, (x, torch.eye(PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16).roll(1, 0))

    return make


def _gpt2() -> tuple[Call, tuple[Tensor, ...]]:
    setting = Setting(size=Size.FULL, device=torch.device("cuda"), dtype=torch.bfloat16)
    instance = instantiate(find_case("gpt2"), setting, training=False)
    return instance.module, tuple(value[:1] for value in instance.inputs)


PROGRAMS: Final[Mapping[str, Program]] = {
    **{
        f"kernels-{count}": Program(
            title=f"{count:,} kernels that wait for each other" if count > 1 else "one kernel",
            make=_chain_kernels(count),
            launches=count,
        )
        for count in (1, 10, 100, 1000)
    },
    **{
        f"products-{count}": Program(
            title=f"{count} products of {PRODUCT_SIZE} x {PRODUCT_SIZE} in bf16",
            make=_products(count),
            launches=count,
        )
        for count in (10, 100)
    },
    "gpt2": Program(title="GPT-2, one sequence, bf16", make=_gpt2),
}
