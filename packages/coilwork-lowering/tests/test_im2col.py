"""`im2col` and `col2im` are masked reads, one node each, of any windows; and each other's derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from accelerator_graphs import as_eager_on_an_accelerator
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import fold, unfold

from coilwork_ir.loops import Pointwise
from coilwork_lowering import decompositions, lower

WINDOWS: dict[str, dict[str, Any]] = {
    "padded": {"kernel_size": 3, "padding": 1},
    "plain": {"kernel_size": (2, 3)},
    "side by side": {"kernel_size": 2, "stride": 2},
    "apart": {"kernel_size": 2, "stride": 3},
    "overlapping": {"kernel_size": 5, "stride": (2, 3), "padding": (2, 1)},
    "dilated": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "dilated and strided": {"kernel_size": 3, "dilation": (2, 3), "stride": (3, 2), "padding": 3},
    "of one element": {"kernel_size": 1, "stride": 2},
    "more padding than window": {"kernel_size": 1, "padding": 2},
    "large": {"kernel_size": 7, "padding": 3},
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("shape", [(2, 3, 9, 10), (3, 8, 7)], ids=["batch", "one"])
def test_unfold_is_eagers_in_two_nodes(name: str, shape: tuple[int, ...]) -> None:
    lowered = assert_as_eager(lambda x: unfold(x, **WINDOWS[name]), torch.randn(shape))
    assert len(lowered.graph.nodes) <= 2


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("shape", [(2, 3, 9, 10), (3, 8, 7)], ids=["batch", "one"])
def test_fold_of_few_windows_is_pointwise(name: str, shape: tuple[int, ...]) -> None:
    windows = torch.randn_like(unfold(torch.randn(shape, dtype=torch.float64), **WINDOWS[name]))
    large = name == "large"
    lowered = assert_as_eager(lambda x: fold(x, shape[-2:], **WINDOWS[name]), windows, extern=large)
    # many windows over an element are ATen's on a CPU
    assert bool(externs(lowered.graph)) is large
    assert all(isinstance(node, Pointwise) for node in lowered.graph.nodes) is not large


@pytest.mark.parametrize("name", ["large", "padded", "dilated and strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fold_on_an_accelerator(name: str, dtype: torch.dtype) -> None:
    windows = torch.randint(-4, 5, unfold(torch.randn(2, 3, 9, 10), **WINDOWS[name]).shape).to(dtype)
    graph = as_eager_on_an_accelerator(lambda w: fold(w, (9, 10), **WINDOWS[name]), windows)
    assert externs(graph) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_windows_of_every_type_are_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 9, 10).to(dtype)
    assert_as_eager(lambda x: unfold(x, 3, padding=1), x)
    windows = torch.randn(2, 27, 90)
    exact = fold(windows.to(dtype).double(), (9, 10), 3, padding=1)
    lowered = trace_and_lower(lambda w: fold(w, (9, 10), 3, padding=1), (windows.to(dtype),))
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [windows.to(dtype)])
    # rounded once, where eager on CPUs rounds every sum
    torch.testing.assert_close(found, exact.to(dtype))


def test_a_part_of_an_image() -> None:
    x = torch.randn(2, 9, 12, 3).permute(0, 3, 1, 2)
    assert_as_eager(lambda x: unfold(x[..., 1:8], 3, padding=1, stride=2), x)


@pytest.mark.parametrize("function", [lambda x: unfold(x, 2), lambda x: fold(x.flatten(2), (3, 3), 2)])
def test_windows_of_no_images_are_empty(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_eager(function, torch.randn(0, 4, 2, 2), extern=True)


def test_gradients_are_each_other() -> None:
    def slope(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        windows = unfold(x, 3, padding=1, stride=2)
        image = fold(windows * w, (9, 10), 3, padding=1, stride=2)
        return torch.autograd.grad(image.square().sum(), (x, w))

    x = torch.randn(2, 3, 9, 10, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 27, 25, dtype=torch.float64, requires_grad=True)
    gm = make_fx(slope, tracing_mode="fake", decomposition_table=decompositions())(x, w)
    assert not [node for node in gm.graph.nodes if "index" in str(node.target)]
    lowered = lower(gm, name="graph")
    assert externs(lowered.graph) == []
    found = loop_evaluator.run(lowered.graph, lowered.constants, [x.detach(), w.detach()])
    for got, wanted in zip(found, slope(x, w), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", ["padded", "plain", "side by side", "dilated"])
def test_windows_of_open_sizes_call_nothing(name: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        windows = unfold(x, **WINDOWS[name])
        return windows, fold(windows, x.shape[-2:], **WINDOWS[name])

    x = torch.randn(2, 3, 12, 14)
    lowered = trace_and_lower(function, (x,), mode="symbolic")
    assert externs(lowered.graph) == []
    for given in (x, torch.randn(3, 4, 16, 10)):
        found = loop_evaluator.run(lowered.graph, lowered.constants, [given])
        for got, wanted in zip(found, function(given), strict=True):
            torch.testing.assert_close(got, wanted)


def test_other_types_are_taken_apart() -> None:
    x = torch.randn(2, 3, 5, 6, dtype=torch.complex64)
    gm = make_fx(lambda x: unfold(x, 2), decomposition_table=decompositions())(x)
    assert not [node for node in gm.graph.nodes if "im2col" in str(node.target)]


@pytest.mark.parametrize(("length", "size", "step"), [(1, 1, 1), (7, 2, 3), (8, 2, 2), (9, 2, 2), (5, 5, 7)])
def test_windows_that_do_not_overlap_keep_signs(length: int, size: int, step: int) -> None:
    """Behind a write into `x.unfold(...)`, windows go back to their places: nothing is added to 0."""

    def put_back(windows: Tensor) -> Tensor:
        return torch.ops.aten.unfold_backward(windows, (2, length, 3), 1, size, step)

    windows = torch.zeros(2, (length - size) // step + 1, 3, size).neg()
    traced = make_fx(put_back, decomposition_table=decompositions())(windows)
    expected = put_back(windows)
    assert torch.equal(traced(windows).signbit(), expected.signbit())
    assert traced(windows).stride() == expected.stride()
    assert not any("index" in str(node.target) for node in traced.graph.nodes)
