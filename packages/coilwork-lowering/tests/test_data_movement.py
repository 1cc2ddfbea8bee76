"""Joins of many tensors: generated for GPUs where their rows are whole vectors, else ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Extern, Graph, Pointwise
from coilwork_lowering import LoweringOptions, lower


def lowered(function: Callable[..., Tensor], *tensors: Tensor, device: str = "cuda") -> Graph:
    gm = make_fx(function, tracing_mode="fake")(*tensors)
    with FakeTensorMode():
        for node in gm.graph.nodes:
            if isinstance(value := node.meta.get("val"), Tensor):
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=device
                )
    return lower(gm, name="graph", options=LoweringOptions()).graph


def kinds(graph: Graph) -> list[str]:
    return [type(node).__name__ for node in graph.nodes if isinstance(node, Extern | Pointwise)]


def along(dim: int, count: int = 24, **layout: Any) -> tuple[Callable[..., Tensor], list[Tensor]]:
    tensors = [torch.empty(4, 16, 6, 8, dtype=torch.bfloat16).to(**layout) for _ in range(count)]
    return lambda *parts: torch.cat(parts, dim), tensors


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_rows_of_vectors_are_joined_by_a_kernel(dim: int) -> None:
    function, tensors = along(dim)
    assert kinds(lowered(function, *tensors)) == ["Pointwise"]
    assert kinds(lowered(function, *tensors, device="cpu")) == ["Extern"]


def test_a_concatenation_of_images_channels_last_is_one_kernel() -> None:
    function, tensors = along(1, memory_format=torch.channels_last)
    assert kinds(lowered(function, *tensors)) == ["Pointwise"]


@pytest.mark.parametrize("shape", [(4, 6), (4, 7, 49)])
def test_others_are_atens(shape: tuple[int, ...]) -> None:
    """Parts of twelve bytes, and rows of 98, in which a vector would have elements of two."""
    tensors = [torch.empty(shape, dtype=torch.bfloat16) for _ in range(24)]
    assert kinds(lowered(lambda *parts: torch.cat(parts, 1), *tensors)) == ["Extern"]


def test_more_than_a_kernel_takes() -> None:
    function, tensors = along(1, 65)
    assert kinds(lowered(function, *tensors)) == ["Extern"]


def test_types_that_are_converted() -> None:
    function, tensors = along(1)
    assert kinds(lowered(function, *tensors[:-1], tensors[-1].float())) == ["Extern"]


@pytest.mark.parametrize(("computed", "joins"), [(8, "Pointwise"), (24, "Extern")])
def test_parts_that_are_computed(computed: int, joins: str) -> None:
    """A kernel that joins them may compute them, and would compute all of them for each element."""
    _, tensors = along(1)

    def function(*parts: Tensor) -> Tensor:
        return torch.cat([part.sin() if k < computed else part for k, part in enumerate(parts)], 1)

    assert kinds(lowered(function, *tensors)) == ["Pointwise"] * computed + [joins]
