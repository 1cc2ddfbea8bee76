"""Results of operands that lie differently have eager's strides within a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

SIZES = (2, 3, 4)
ORDERS = list(itertools.permutations(range(3)))


def laid_out(order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers from 1 on, of `SIZES`, whose dimensions lie in memory in `order`."""
    dense = torch.arange(1, 25).to(dtype).view([SIZES[k] for k in order])
    return dense.permute([order.index(k) for k in range(3)])


@pytest.mark.parametrize("function", [torch.copysign, torch.floor_divide])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.float32, torch.int64),
        (torch.int64, torch.float32),
        (torch.float64, torch.float32),
        (torch.int32, torch.int64),
        (torch.int32, torch.int32),
        (torch.float32, torch.float32),
    ],
)
def test_unlike_types_and_layouts(
    function: Callable[..., torch.Tensor], left: torch.dtype, right: torch.dtype
) -> None:
    for one, other in itertools.product(ORDERS, ORDERS):
        operands: tuple[Any, ...] = (laid_out(one, left), laid_out(other, right))
        wanted = function(*operands)
        gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*operands)
        (output,) = gm.graph.find_nodes(op="output")
        fake = output.args[0].meta["val"]
        assert (fake.dtype, fake.stride()) == (wanted.dtype, wanted.stride()), (one, other)
        assert torch.equal(gm(*operands), wanted)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_gradients_of_losses_are_contiguous(loss: str) -> None:
    function = getattr(torch.ops.aten, f"{loss}_backward").default
    further = (0,) if loss == "mse_loss" else (0, 1.0)
    for one, other in itertools.product(ORDERS, ORDERS):
        operands = tuple(laid_out(order, torch.float32) for order in (one, one, other))

        def gradient(*given: torch.Tensor) -> Any:
            return function(*given, *further)

        gm = make_fx(gradient, tracing_mode="fake", decomposition_table=decompositions())(*operands)
        (output,) = gm.graph.find_nodes(op="output")
        wanted = gradient(*operands)
        assert output.args[0].meta["val"].stride() == wanted.stride()
        assert torch.equal(gm(*operands), wanted)


@pytest.mark.parametrize(
    ("left", "right"),
    [(torch.bfloat16, torch.int32), (torch.float16, torch.float16), (torch.int64, torch.float16)],
)
def test_signs_of_16_bits(left: torch.dtype, right: torch.dtype) -> None:
    test_unlike_types_and_layouts(torch.copysign, left, right)


BACKWARD: dict[str, Callable[..., Any]] = {
    "elu": lambda g, x: torch.ops.aten.elu_backward.default(g, 1.5, 1.0, 0.5, False, x),
    "softplus": lambda g, x: torch.ops.aten.softplus_backward.default(g, x, 1.0, 20.0),
    "hardtanh": lambda g, x: torch.ops.aten.hardtanh_backward.default(g, x, 0.1, 0.9),
    "hardswish": lambda g, x: torch.ops.aten.hardswish_backward.default(g, x),
    "logit": lambda g, x: torch.ops.aten.logit_backward.default(g, x),
    "log_softmax": lambda g, x: torch.ops.aten._log_softmax_backward_data.default(g, x, 1, torch.float32),
    "cross entropy": lambda g, x: torch.ops.aten.binary_cross_entropy_backward.default(g, x, x.square()),
    "taken": lambda g, x: torch.ops.aten.take.default(x, (g * 20).long()),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_of_two_tensors_that_lie_differently(name: str) -> None:
    for one, other in itertools.product(ORDERS, ORDERS):
        operands = tuple(laid_out(order, torch.float32) / 25 for order in (one, other))
        wanted = BACKWARD[name](*operands)
        gm = make_fx(BACKWARD[name], tracing_mode="fake", decomposition_table=decompositions())(*operands)
        (output,) = gm.graph.find_nodes(op="output")
        assert output.args[0].meta["val"].stride() == wanted.stride(), (one, other)
        torch.testing.assert_close(gm(*operands), wanted)
