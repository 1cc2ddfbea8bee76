"""Mish and its gradient: one exponential, and a quotient for the logarithm and the hyperbolic tangent of
eager's formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import loop_evaluator
import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import externs
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Graph, Pointwise
from coilwork_ir.scalar import Op, iterate_postorder
from coilwork_lowering import decompositions, lower

aten = torch.ops.aten
EPS = 2.0**-23
# the threshold of eager's softplus, where `exp` overflows, and where it is 0
EDGES = (
    0.0,
    -0.0,
    20.0,
    20.000002,
    19.999998,
    88.8,
    1e30,
    3e38,
    -1e30,
    -3e38,
    -104.0,
    math.inf,
    -math.inf,
    math.nan,
)


def values() -> Tensor:
    return torch.cat([torch.linspace(-80, 30, 20001), torch.tensor(EDGES)])


def loops(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Graph, Tensor]:
    gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
    made = lower(gm, name="graph")
    assert externs(made.graph) == []
    (found,) = loop_evaluator.run(made.graph, made.constants, [x.clone() for x in inputs])
    assert isinstance(found, Tensor)
    return made.graph, found


def operators(graph: Graph) -> set[str]:
    bodies = [node.body for node in graph.nodes if isinstance(node, Pointwise)]
    return {node.op for node in iterate_postorder(bodies) if isinstance(node, Op)}


def same_specials(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())


def test_mish_is_within_a_few_units_of_the_last_place() -> None:
    x = values()
    graph, found = loops(lambda x: F.mish(x), x)
    exact = F.mish(x.double())
    assert operators(graph).isdisjoint({"log1p", "tanh"})
    assert same_specials(found, F.mish(x))
    # below, what eager and the quotient multiply by is a subnormal number
    normal = exact.isfinite() & (x > -80.5)
    assert ((found - exact).abs() <= 3.5 * EPS * exact.abs())[normal].all()


def test_gradient_of_mish() -> None:
    x = values()
    gradient = torch.linspace(-3, 3, len(x))
    graph, found = loops(aten.mish_backward.default, gradient, x)
    exact = aten.mish_backward.default(gradient.double(), x.double())
    assert operators(graph).isdisjoint({"log1p", "tanh", "sigmoid"})
    assert same_specials(found, aten.mish_backward.default(gradient, x))
    finite = exact.isfinite()
    # 1.09 is the largest slope, and near its root what is added cancels, in eager as well
    terms = ((1 + x.double().abs()) * torch.exp(x.double())).clamp(max=1.1)
    bound = 4 * EPS * gradient.double().abs() * terms + 1e-37
    assert ((found - exact).abs() <= bound)[finite].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mish_of_16_bits_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    _, found = loops(lambda x: F.mish(x), x)
    exact = F.mish(x.double()).to(dtype)
    assert same_specials(found, F.mish(x))
    finite = exact.isfinite()
    # 1 of 1000 lies so near the middle of two numbers that an error in f32 decides
    assert (found != exact)[finite].sum() < 65
    torch.testing.assert_close(found, F.mish(x), equal_nan=True)


def test_gradients_reach_the_operator_whole() -> None:
    x = torch.randn(64, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(F.mish(x).sum(), x)
        return gradient

    gm = make_fx(step, decomposition_table=decompositions())(x)
    assert aten.mish_backward.default in {node.target for node in gm.graph.nodes}
