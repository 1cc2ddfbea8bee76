"""Gradients of resized images are those of one operator where sizes are known, and eager's everywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend
from coilwork_frontend.capture.operator_fixes import keep_resize_operators
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_lowering import decompositions, partition

SHAPES = {
    "linear": (2, 3, 9),
    "bilinear": (2, 3, 6, 5),
    "bicubic": (2, 3, 6, 5),
    "trilinear": (2, 3, 4, 5, 3),
}


def resized(**how: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x, **how)


def operators(function: Callable[[Tensor], Tensor], x: Tensor, *, dynamic: bool = False) -> list[str]:
    """What the backward graph of `function` calls."""
    called: list[str] = []

    def forward(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        assert not [node for node in gm.graph.nodes if "upsample" in str(node.target)]
        return make_boxed_func(gm.forward)

    def backward(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        called.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
        return make_boxed_func(gm.forward)

    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        keep_resize_operators(gm)
        return compile_with_aot_autograd(
            gm,
            inputs,
            forward=forward,
            backward=backward,
            inference=forward,
            decompositions=decompositions(),
            partition=partition,
        )

    torch._dynamo.reset()
    x = x.detach().requires_grad_()
    torch.compile(function, backend=compiler, dynamic=dynamic)(x).sum().backward()
    return called


def assert_as_eager(function: Callable[[Tensor], Tensor], x: Tensor, *, dynamic: bool | None = False) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, options={"strict": True})
    mine, its = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    got, wanted = compiled(mine), function(its)
    torch.testing.assert_close(got, wanted)
    factor = torch.randn_like(wanted)
    (got * factor).sum().backward()
    (wanted * factor).sum().backward()
    torch.testing.assert_close(mine.grad, its.grad)
    assert mine.grad is not None and its.grad is not None
    assert mine.grad.stride() == its.grad.stride()


@pytest.mark.parametrize("mode", SHAPES)
def test_the_gradient_is_one_operator(mode: str) -> None:
    x = torch.randn(SHAPES[mode])
    called = operators(resized(scale_factor=2, mode=mode), x)
    assert [name for name in called if "upsample" in name or "index" in name] == [
        f"aten.upsample_{mode}{x.dim() - 2}d_backward.default"
    ]


@pytest.mark.parametrize("how", [{"size": 13}, {"scale_factor": 2, "align_corners": True}])
def test_vectors_of_cpus_with_computed_weights_are_summed_up_by_position(how: dict[str, Any]) -> None:
    called = operators(resized(mode="linear", **how), torch.randn(2, 3, 9))
    assert not [name for name in called if "upsample" in name]


def test_open_sizes_are_summed_up_by_position() -> None:
    called = operators(resized(scale_factor=2, mode="bilinear"), torch.randn(2, 3, 6, 5), dynamic=True)
    assert not [name for name in called if "upsample" in name]


HOWS: dict[str, dict[str, Any]] = {
    "factor": {"scale_factor": 2},
    "factors": {"scale_factor": 1.7, "align_corners": True},
    "recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
    "smaller": {"scale_factor": 0.6},
    "size": {"size": 13, "align_corners": True},
    "sizes": {"size": 11},
}


@pytest.mark.parametrize("how", HOWS)
def test_as_eager(how: str) -> None:
    for mode, shape in SHAPES.items():
        assert_as_eager(resized(mode=mode, **HOWS[how]), torch.randn(shape, dtype=torch.float64))


def test_open_sizes_are_as_eager() -> None:
    x = torch.randn(SHAPES["bilinear"], dtype=torch.float64)
    assert_as_eager(resized(mode="bilinear", scale_factor=2), x, dynamic=True)


def test_each_dimension_in_its_way() -> None:
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    assert_as_eager(lambda x: functional.interpolate(x, (9, 4), mode="bilinear"), x)
    assert_as_eager(lambda x: functional.interpolate(x, None, (0.5, 3), "bicubic"), x)
    assert_as_eager(
        lambda x: functional.interpolate(input=x, size=[9, 4], mode="bilinear", antialias=True), x
    )
    assert_as_eager(lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"), x)


def test_channels_last() -> None:
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    assert_as_eager(resized(scale_factor=2, mode="bilinear"), x)


def test_among_others() -> None:
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64)

    def block(x: Tensor) -> Tensor:
        larger = functional.interpolate(functional.conv2d(x, weight).relu(), scale_factor=2, mode="bilinear")
        return functional.interpolate(larger.sigmoid(), size=(5, 7), mode="bicubic")

    x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    assert_as_eager(block, x)
    assert_as_eager(lambda x: checkpoint(block, x, use_reentrant=False), x)


def test_without_gradients() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 6, 5)
    compiled = torch.compile(resized(scale_factor=2, mode="bilinear"), backend=backend)
    torch.testing.assert_close(compiled(x), functional.interpolate(x, scale_factor=2, mode="bilinear"))


def test_within_transforms() -> None:
    def loss(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode="bilinear").square().sum()

    x = torch.randn(2, 1, 3, 4, 5)
    for function in (torch.func.vmap(torch.func.grad(loss)), torch.func.vmap(loss)):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))


def test_in_16_bits() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 6, 5)
    function = resized(scale_factor=2, mode="bilinear")

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(x)

    assert_as_eager(cast, x)
    half = x.bfloat16().requires_grad_()
    (got,) = torch.autograd.grad(torch.compile(function, backend=backend)(half).sum(), half)
    torch.testing.assert_close(got, torch.full_like(got, 4))


@pytest.mark.parametrize("how", [{"size": 5, "scale_factor": 2}, {"size": (5,)}, {}])
def test_what_eager_refuses(how: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 6, 5, requires_grad=True)
    function = resized(mode="bilinear", **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in (function, torch.compile(function, backend=backend)):
            torch._dynamo.reset()
            with pytest.raises((ValueError, RuntimeError)):
                one(x)
