"""Decompositions with numbers beside tensors give eager's results: to the bit in 16-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions, lower
from coilwork_lowering.decompositions.scalar_operands import round_to_type

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
TABLE = decompositions()


def values(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Whole vectors: elements behind the last are rounded more often by eager's kernels."""
    x = 2 * torch.randn(64, generator=torch.Generator().manual_seed(seed))
    x[:9] = torch.tensor([0.1, 1 / 3, 0.5, 0.9, 0.0, 1.0, 300.0, math.inf, math.nan])
    return x.to(dtype)


def evaluated(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    gm = make_fx(function, tracing_mode="fake", decomposition_table=TABLE)(*inputs)
    lowered = lower(gm, name="graph")
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x.clone() for x in inputs])
    assert isinstance(found, Tensor)
    return found


def beside(function: Callable[..., Tensor], other: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x, other)


def assert_as_eager(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    found, expected = evaluated(function, *inputs), function(*inputs)
    assert found.dtype is expected.dtype
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), (found, expected)


WITH_A_NUMBER: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "xlogy": lambda x, y, n: torch.xlogy(x, n),
    "xlogy of a number": lambda x, y, n: torch.xlogy(n, x),
    "xlog1py": lambda x, y, n: torch.special.xlog1py(x, n),
    "xlog1py of a number": lambda x, y, n: torch.special.xlog1py(n, x),
    "xlog1py of a tensor of one": lambda x, y, n: torch.special.xlog1py(torch.tensor(n), x),
    "logaddexp": lambda x, y, n: torch.logaddexp(x, torch.tensor(n)),
    "logaddexp2": lambda x, y, n: torch.logaddexp2(x, torch.tensor(n)),
    "addr": lambda x, y, n: torch.addr(x.view(8, 8), y[10:18], x[20:28], beta=n, alpha=0.7),
    "addr, scaled": lambda x, y, n: torch.addr(x.view(8, 8), y[10:18], x[20:28], alpha=n),
    "logit": lambda x, y, n: torch.logit(x, n),
    "logit backward": lambda x, y, n: aten.logit_backward(x, y, n),
    "huber": lambda x, y, n: F.huber_loss(x, y, delta=n, reduction="none"),
    "huber, summed": lambda x, y, n: F.huber_loss(x[9:], y[9:], delta=n, reduction="sum"),
    "huber backward": lambda x, y, n: aten.huber_loss_backward(x, y, x.flip(0), 0, n),
    "smooth": lambda x, y, n: F.smooth_l1_loss(x, y, beta=n, reduction="none"),
    "threshold backward": lambda x, y, n: aten.threshold_backward(x, y, n),
    "number // tensor": lambda x, y, n: torch.floor_divide(torch.tensor(n), x),
    "tensor of one / tensor": lambda x, y, n: torch.tensor(n) / x,
    "atan2": lambda x, y, n: torch.atan2(x, torch.tensor(n)),
    "hypot": lambda x, y, n: torch.hypot(torch.tensor(n), x),
    "addcmul": lambda x, y, n: torch.addcmul(x, y, torch.tensor(n)),
    "addcdiv": lambda x, y, n: torch.addcdiv(x, y, torch.tensor(n)),
}


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-9])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WITH_A_NUMBER)
def test_operators_with_a_number_are_those_of_eager(name: str, dtype: torch.dtype, number: float) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return WITH_A_NUMBER[name](x, y, number)

    assert_as_eager(function, values(dtype), values(dtype, 1))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "combine", [torch.mul, torch.div, torch.atan2, torch.floor_divide, torch.true_divide]
)
def test_integers_are_rounded_where_they_are_many(combine: Callable[..., Tensor], dtype: torch.dtype) -> None:
    x, many, one = values(dtype), torch.arange(2030, 2094), torch.tensor([2049])
    for other in (many, one):
        assert_as_eager(combine, x, other)
        assert_as_eager(lambda x, other: combine(other, x), x, other)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("exponent", [2, 3, -2, 4, -1])
def test_powers_with_whole_exponents_are_those_of_eager(exponent: int, dtype: torch.dtype) -> None:
    assert_as_eager(lambda x: x**exponent, values(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_numbers_beside_integers_lose_their_fractions(dtype: torch.dtype) -> None:
    x = torch.arange(64).to(dtype)
    for number in (0.1, 2.7):
        assert_as_eager(beside(lambda x, n: F.threshold(x, n, 5.5), number), x)
        assert_as_eager(beside(lambda x, n: aten.threshold_backward(x, x, n), number), x)
        assert_as_eager(beside(lambda x, n: torch.addcmul(x, x, x, value=n), number), x)


def test_without_a_range_logits_have_no_gradient_elsewhere() -> None:
    x, y = values(torch.float32), values(torch.float32, 1)
    found = evaluated(lambda g, x: aten.logit_backward(g, x, -0.5), x, y)
    torch.testing.assert_close(found, aten.logit_backward(x, y, -0.5), equal_nan=True)


def test_numbers_beyond_f32() -> None:
    x = values(torch.float32)
    for function in (torch.xlogy, torch.special.xlog1py):
        found = evaluated(beside(function, 1e39), x)
        torch.testing.assert_close(found, function(x, 1e39), equal_nan=True)


@pytest.mark.parametrize("number", [0.1, 2049])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_a_number_is_looked_for_as_eager_does(dtype: torch.dtype, number: float) -> None:
    x = torch.tensor([0.1, 2048.0, 3.0]).to(dtype)
    assert_as_eager(lambda x: torch.isin(number, x), x)


def test_ends_that_are_truth_values() -> None:
    for line in (torch.linspace, torch.logspace):
        assert_as_eager(beside(lambda x, line: x + line(False, True, 5), line), torch.ones(5))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_a_number_is_rounded_to_the_type_of_its_tensor(dtype: torch.dtype) -> None:
    numbers = [
        0.1,
        -1 / 3,
        2049,
        65519.0,
        65520.0,
        1e-9,
        6e-8,
        3.3895e38,
        3.4e38,
        1e39,
        -1e39,
        math.inf,
        -0.0,
    ]
    numbers += (1e4 * torch.randn(100, dtype=torch.float64)).tolist()
    for number in numbers:
        expected = torch.tensor(number, dtype=torch.float32).to(dtype).item()
        assert round_to_type(number, dtype) == expected
    assert math.isnan(round_to_type(math.nan, dtype))
