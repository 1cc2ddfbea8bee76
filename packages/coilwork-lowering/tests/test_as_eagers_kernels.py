"""What eager's kernels for CPUs do at the edges: to the bit, whatever the roundings between operators."""

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

from coilwork_ir.errors import InterpretError
from coilwork_ir.loops import Pointwise
from coilwork_lowering import Lowered, decompositions, lower

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
NAN, INF = math.nan, math.inf
# Whole vectors: elements behind the last are for kernels of their own, which take NaN otherwise.
EDGES = torch.tensor([0.0, -0.0, 1, -1, NAN, INF, -INF, -1e-3, 2, 3, 0.3, -0.3, 0.25, 0.5, -0.5, 6]).repeat(4)


def lowered(function: Callable[..., Tensor], *inputs: Tensor) -> Lowered:
    gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
    return lower(gm, name="graph")


def evaluated(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    made = lowered(function, *inputs)
    assert externs(made.graph) == []
    (found,) = loop_evaluator.run(made.graph, made.constants, [x.clone() for x in inputs])
    assert isinstance(found, Tensor)
    return found


def assert_as_eager(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    found, expected = evaluated(function, *inputs), function(*inputs)
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), (found, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bound", [0.0, 0.1, 0.3, 0.5])
def test_softshrink_takes_the_bound_as_it_is(dtype: torch.dtype, bound: float) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    with torch.inference_mode():
        assert_as_eager(lambda x: F.softshrink(x, bound), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["hardshrink_backward", "softshrink_backward"])
@pytest.mark.parametrize("bound", [0.3, 0.5])
def test_gradients_of_shrinking(dtype: torch.dtype, name: str, bound: float) -> None:
    function = getattr(aten, name)
    assert_as_eager(lambda g, x: function(g, x, bound), EDGES.flip(0).to(dtype), EDGES.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("limits", [(-1.0, 1.0), (0.3, 0.5), (NAN, 1.0)])
def test_gradients_of_clamped_activations(dtype: torch.dtype, limits: tuple[float, float]) -> None:
    gradient, x = EDGES.flip(0).to(dtype), EDGES.to(dtype)
    assert_as_eager(lambda g, x: aten.hardtanh_backward(g, x, *limits), gradient, x)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older kernels multiply 0 by the infinite alpha, too")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("alpha", [INF, -INF, NAN])
def test_elu_of_0_is_0(dtype: torch.dtype, alpha: float) -> None:
    x = EDGES.to(dtype)
    assert evaluated(lambda x: F.elu(x, alpha), x)[:2].tolist() == [0.0, 0.0]
    assert_as_eager(lambda x: F.elu(x, alpha), x)
    assert_as_eager(lambda x: F.celu(x, alpha), x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["linspace", "logspace"])
@pytest.mark.parametrize(
    "ends", [(0, 1, 50), (-3.3, 2.7, 100), (0.1, 0.3, 33), (1, 0, 7), (-3, 1.7, 301), (2, 3, 1), (2, 3, 2)]
)
def test_numbers_in_steps(dtype: torch.dtype, name: str, ends: tuple[float, float, int]) -> None:
    start, end, steps = ends
    function = getattr(torch, name)
    assert_as_eager(lambda: function(start, end, steps, dtype=dtype))
    assert_as_eager(
        lambda a, b: function(a, b, steps, dtype=dtype), torch.tensor(float(start)), torch.tensor(float(end))
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_mvlgamma_in_narrow_types_is_eagers(dtype: torch.dtype, dimensions: int) -> None:
    generator = torch.Generator().manual_seed(dimensions)
    x = (torch.rand(256, generator=generator) * 20 + dimensions / 2).to(dtype)
    found = evaluated(lambda x: torch.mvlgamma(x, dimensions), x)
    # the logarithms themselves are within a few units of f32, which decides a rounding in a thousand
    assert (found != torch.mvlgamma(x, dimensions)).sum() <= 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [1e39, -1e39, 4e38, 1e38, 1e300, 70000.0, INF])
def test_norms_of_orders_that_f32_does_not_hold(dtype: torch.dtype, order: float) -> None:
    x = torch.tensor([[0.5, 0.25, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0], [0.5, 0.2, NAN]], dtype=dtype)
    assert_as_eager(lambda x: torch.linalg.vector_norm(x, order, dim=1), x)
    assert_as_eager(lambda x: torch.linalg.vector_norm(x, order, dim=0), x[:1])


FILLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda x, v: x.masked_fill(torch.tensor([True, False, True, False]), v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([1, 3]), v),
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float16, torch.tensor(70000.0)),
        (torch.float16, torch.tensor(70000)),
        (torch.bfloat16, torch.tensor(1e300, dtype=torch.float64)),
        (torch.float32, torch.tensor(-1e300, dtype=torch.float64)),
        (torch.int8, torch.tensor(-300)),
        (torch.uint8, torch.tensor(-256)),
    ],
)
def test_an_element_that_does_not_fit_is_refused(fill: str, dtype: torch.dtype, number: Tensor) -> None:
    function, x = FILLS[fill], torch.arange(4).to(dtype)
    with pytest.raises(RuntimeError, match="without overflow"):
        function(x, number)
    made = lowered(function, x, number)
    with pytest.raises((InterpretError, RuntimeError), match="without overflow"):
        loop_evaluator.run(made.graph, made.constants, [x, number])


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float16, torch.tensor(65504.0)),
        (torch.float16, torch.tensor(-INF)),
        (torch.bfloat16, torch.tensor(NAN)),
        (torch.int8, torch.tensor(-128)),
        (torch.uint8, torch.tensor(-255)),
        (torch.float32, torch.tensor(2**40)),
    ],
)
def test_an_element_that_fits_is_taken(fill: str, dtype: torch.dtype, number: Tensor) -> None:
    x = torch.arange(4).to(dtype)
    assert_as_eager(FILLS[fill], x, number)


def test_an_element_that_is_known_to_fit_is_not_checked() -> None:
    def filled(x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(mask, torch.tensor(-INF)).masked_fill(~mask, torch.full((), -1e4))

    graph = lowered(filled, torch.randn(4).bfloat16(), torch.tensor([True, False, True, False])).graph
    assert [node.checks for node in graph.nodes if isinstance(node, Pointwise) and node.checks] == []


NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "native": lambda x, w: aten.native_batch_norm(x, w, w, w, w, False, 0.1, 1e-5)[0],
    "no statistics": lambda x, w: aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5)[0],
    "no training": lambda x, w: aten._native_batch_norm_legit_no_training(x, w, w, w, w, 0.1, 1e-5)[0],
    "no update": lambda x, w: aten._batch_norm_no_update(x, w, w, w, w, 0.1, 1e-5)[0],
}


@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_of_one_vector_are_refused(name: str) -> None:
    norm, x, weight = NORMS[name], torch.randn(3), torch.ones(3)
    with pytest.raises(IndexError):
        norm(x, weight)
    # left to ATen, which refuses it when it runs
    assert externs(lowered(norm, x, weight).graph) != []
    assert externs(lowered(norm, x.expand(2, 3).clone(), weight).graph) == []
