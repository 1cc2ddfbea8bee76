"""Numbers that do not fit the type that eager converts them to: the call stays ATen's, which refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import externs
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions, lower
from coilwork_lowering.facts.scalar_overflow import can_convert_number

aten = torch.ops.aten
HALVES = (torch.float16,)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
WIDE = (torch.float32,)  # what narrower floats are computed in, too
INTEGERS = (torch.uint8, torch.int8)
EACH = (*FLOATS, *INTEGERS)


def outside(x: torch.Tensor) -> Any:
    """A number beyond the largest of the type of `x`, which is no infinity."""
    return 300 if not x.is_floating_point() else torch.finfo(x.dtype).max * 10


TAKING: dict[str, tuple[tuple[torch.dtype, ...], Callable[..., Any]]] = {
    "full": (EACH, lambda x, n: torch.full((2,), n, dtype=x.dtype)),
    "full_like": (EACH, lambda x, n: torch.full_like(x, n)),
    "new_full": (EACH, lambda x, n: x.new_full((2,), n)),
    "fill": (EACH, lambda x, n: x.clone().fill_(n)),
    "fill_diagonal": (EACH, lambda x, n: x.clone().fill_diagonal_(n)),
    "masked_fill": (EACH, lambda x, n: x.masked_fill(x > 0, n)),
    "constant_pad_nd": (EACH, lambda x, n: F.pad(x, (1, 1), value=n)),
    "scatter": (EACH, lambda x, n: x.scatter(0, torch.zeros(1, 4, dtype=torch.int64), n)),
    "index_fill": (EACH, lambda x, n: x.index_fill(0, torch.zeros(1, dtype=torch.int64), n)),
    "where": ((torch.float32, *INTEGERS), lambda x, n: torch.where(x > 0, x, n)),
    "linspace": (INTEGERS, lambda x, n: torch.linspace(0, n, 4, dtype=x.dtype)),
    "threshold": (EACH, lambda x, n: F.threshold(x, 1, n)),
    "hardtanh": (FLOATS, lambda x, n: F.hardtanh(x, -n, n)),
    "addcmul": (INTEGERS, lambda x, n: torch.addcmul(x, x, x, value=n)),
    "clamp": (EACH, lambda x, n: torch.clamp(x, 0, n)),
    "clamp_max": (EACH, lambda x, n: torch.clamp_max(x, n)),
    "pow": (HALVES + INTEGERS, lambda x, n: x**n),
    "add": (EACH, lambda x, n: torch.add(x, x, alpha=n)),
    "sub": (EACH, lambda x, n: torch.sub(x, x, alpha=n)),
    "addr": (EACH, lambda x, n: torch.addr(x, x[:, 0], x[0], beta=n)),
    "addr, scaled": (EACH, lambda x, n: torch.addr(x, x[:, 0], x[0], alpha=n)),
    "hardshrink": (FLOATS, lambda x, n: F.hardshrink(x, n)),
    "logit_backward": (FLOATS, lambda x, n: aten.logit_backward(x, x, n)),
    "logspace": (FLOATS, lambda x, n: torch.logspace(0, n, 4, dtype=x.dtype)),
    "threshold_backward": (WIDE + INTEGERS, lambda x, n: aten.threshold_backward(x, x, n)),
    "hardtanh_backward": (WIDE, lambda x, n: aten.hardtanh_backward(x, x, -n, n)),
    "lerp": (WIDE, lambda x, n: torch.lerp(x, x, n)),
    "addcdiv": (WIDE, lambda x, n: torch.addcdiv(x, x, x, value=n)),
    "elu": (WIDE, lambda x, n: F.elu(x, n)),
    "elu_backward": (WIDE, lambda x, n: aten.elu_backward(x, n, 1.0, 1.0, False, x)),
    "celu": (WIDE, lambda x, n: F.celu(x, n)),
    "softplus": (WIDE, lambda x, n: F.softplus(x, n)),
    "softplus, from": (WIDE, lambda x, n: F.softplus(x, 1.0, n)),
    "softplus_backward": (WIDE, lambda x, n: aten.softplus_backward(x, x, n, 20)),
    "leaky_relu": (WIDE, lambda x, n: F.leaky_relu(x, n)),
    "leaky_relu_backward": (WIDE, lambda x, n: aten.leaky_relu_backward(x, x, n, False)),
    "foreach pow": (HALVES + INTEGERS, lambda x, n: torch._foreach_pow([x], n)[0]),
    "foreach clamp_min": (FLOATS, lambda x, n: torch._foreach_clamp_min([x], n)[0]),
    "foreach addcmul": (WIDE, lambda x, n: torch._foreach_addcmul([x], [x], [x], n)[0]),
    "foreach lerp": (WIDE, lambda x, n: torch._foreach_lerp([x], [x], n)[0]),
}
CASES = [(name, dtype) for name, (types, _) in TAKING.items() for dtype in types]


def traced(function: Callable[..., Any], x: torch.Tensor, number: object) -> torch.fx.GraphModule:
    table = decompositions()
    return make_fx(lambda given: function(given, number), tracing_mode="fake", decomposition_table=table)(x)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_what_does_not_fit_is_called(name: str, dtype: torch.dtype) -> None:
    function = TAKING[name][1]
    x = torch.ones(2, 4, dtype=dtype)
    with pytest.raises(RuntimeError, match="without overflow"):
        function(x, outside(x))
    gm = traced(function, x, outside(x))
    with pytest.raises(RuntimeError, match="without overflow"):
        gm(x)
    assert externs(lower(gm, name="graph").graph) != []


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_what_fits_is_computed(name: str, dtype: torch.dtype) -> None:
    function = TAKING[name][1]
    x = torch.ones(2, 4, dtype=dtype)
    numbers: list[Any] = [2]
    if dtype.is_floating_point and name not in ("linspace", "add", "sub"):
        numbers.append(float("inf"))
    elif dtype is torch.uint8 and name in ("masked_fill", "full", "where"):
        numbers.append(-1)
    for number in numbers:
        gm = traced(function, x, number)
        assert torch.equal(gm(x).isnan(), function(x, number).isnan())
        assert externs(lower(gm, name="graph").graph) == []


@pytest.mark.parametrize("function", [torch.add, torch.sub])
@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.int64, 2.5), (torch.bool, 2.5), (torch.int64, True), (torch.float32, True)]
)
def test_factors_of_another_kind_are_called(
    function: Callable[..., Any], dtype: torch.dtype, factor: object
) -> None:
    x = torch.ones(2, 4, dtype=dtype)
    with pytest.raises(RuntimeError):
        function(x, x, alpha=factor)
    try:
        gm = traced(lambda x, factor: function(x, x, alpha=factor), x, factor)
    except (RuntimeError, ValueError):
        return  # tracing itself refuses
    with pytest.raises(RuntimeError):
        gm(x)
    assert externs(lower(gm, name="graph").graph) != []


ASKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "celu": lambda x: F.celu(x, 0.0),
    "huber_loss": lambda x: F.huber_loss(x, x, delta=math.nan),
    "mvlgamma": lambda x: torch.mvlgamma(x, 0),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x, beta=-1.0),
    "sub": lambda x: x - True,
    "rsub": lambda x: torch.rsub(x, True),
    "foreach sub": lambda x: torch._foreach_sub([x], True)[0],
    "isin": lambda x: torch.isin(x, True),
    "addr": lambda x: torch.addr(x, x[:, 0], x[0], beta=True),
    "clamp_min": lambda x: torch.clamp_min(x > 0, True),
    "roll": lambda x: torch.roll(x, [-(1 << 63)], [0]),
    "softplus_backward": lambda x: aten.softplus_backward(x.int(), x.int(), 1, 20),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_eager_asks_of_numbers(name: str) -> None:
    function, x = ASKED[name], torch.ones(2, 4)
    with pytest.raises(RuntimeError) as refused:
        function(x)
    try:
        gm = traced(lambda x, _: function(x), x, None)
    except RuntimeError:
        return  # tracing itself refuses
    with pytest.raises(RuntimeError) as found:
        gm(x)
    assert str(found.value) == str(refused.value)
    assert externs(lower(gm, name="graph").graph) != []


def test_wider_types_that_numbers_bring_are_theirs() -> None:
    x = torch.ones(3, dtype=torch.int8)
    for function in (lambda x, n: x.clamp(0, n), lambda x, n: x**n, lambda x, n: x + n, lambda x, n: x == n):
        gm = traced(function, x, 300.0)
        assert torch.equal(gm(x), function(x, 300.0))
        assert externs(lower(gm, name="graph").graph) == []


@pytest.mark.parametrize("dtype", [*EACH, torch.int64, torch.float64, torch.uint16])
@pytest.mark.parametrize("number", [-1, -1.0, -200, -255, -256, 128, 2.5, 65520.0, 1e39, 2**31, float("nan")])
def test_as_torch_converts(dtype: torch.dtype, number: float) -> None:
    try:
        torch.full((2,), number, dtype=dtype)
    except RuntimeError:
        assert not can_convert_number(number, dtype)
    else:
        assert can_convert_number(number, dtype)


# as callers may whose types nobody checks
SOFTPLUS: Callable[..., torch.Tensor] = F.softplus
THRESHOLD: Callable[..., torch.Tensor] = F.threshold


@pytest.mark.parametrize("call", [lambda x: SOFTPLUS(x, 3, 1j), lambda x: THRESHOLD(x, 1j, 1)])
def test_complex_numbers_are_for_complex_tensors(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gm = make_fx(call, tracing_mode="fake", decomposition_table=decompositions())(torch.ones(3))
    with pytest.raises(RuntimeError, match="cannot be converted"):
        gm(torch.ones(3))
    assert externs(lower(gm, name="graph").graph) != []
