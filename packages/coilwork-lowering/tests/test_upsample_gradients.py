"""Derivatives of resizing are sums over the results that an element counts for: as eager's, on CPUs and on
accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import loop_evaluator
import pytest
import torch
from accelerator_graphs import as_eager_on_an_accelerator
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch import Tensor

from coilwork_ir.loops import Pointwise, Reduce
from coilwork_lowering import Lowered, LoweringOptions

aten = torch.ops.aten
OPERATORS: dict[str, tuple[int, Any]] = {
    "linear": (1, aten.upsample_linear1d_backward.default),
    "bilinear": (2, aten.upsample_bilinear2d_backward.default),
    "trilinear": (3, aten.upsample_trilinear3d_backward.default),
    "bicubic": (2, aten.upsample_bicubic2d_backward.default),
}
SIZES = {
    "twice": ((8, 6, 4), (16, 12, 8)),
    "three times": ((5, 7, 3), (15, 21, 9)),
    "no whole factor": ((5, 7, 3), (14, 11, 7)),
    "smaller": ((9, 12, 5), (4, 5, 2)),
    "half": ((8, 6, 4), (4, 3, 2)),
    "both": ((9, 3, 4), (4, 11, 4)),
    "from one": ((1, 3, 2), (4, 1, 5)),
    "from two": ((2, 2, 2), (7, 9, 3)),
    "to one": ((12, 9, 5), (1, 1, 2)),
    "as large": ((7, 7, 3), (7, 7, 3)),
    "much larger": ((2, 3, 4), (80, 30, 8)),
}


def slope(name: str, sizes: str, corners: bool) -> tuple[Callable[[Tensor], Tensor], tuple[int, ...]]:
    """The derivative, as a function of the result's gradient, and the latter's shape."""
    rank, operator = OPERATORS[name]
    before, after = (each[:rank] for each in SIZES[sizes])
    return lambda g: operator(g, list(after), [2, 3, *before], corners), (2, 3, *after)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_upsampling_call_nothing_on_accelerators(name: str, sizes: str, corners: bool) -> None:
    function, shape = slope(name, sizes, corners)
    gradient = torch.randn(shape, dtype=torch.float64)
    assert_as_eager(function, gradient, extern=True)
    assert externs(as_eager_on_an_accelerator(function, gradient)) == []


@pytest.mark.parametrize("name", OPERATORS)
def test_twice_as_large_is_one_kernel(name: str) -> None:
    function, shape = slope(name, "twice", False)
    graph = as_eager_on_an_accelerator(function, torch.randint(-4, 5, shape).float())
    (node,) = graph.nodes
    assert isinstance(node, Pointwise)


def test_long_windows_are_summed_up_along_one_dimension_after_the_other() -> None:
    function, shape = slope("bilinear", "much larger", True)
    graph = as_eager_on_an_accelerator(function, torch.randn(shape, dtype=torch.float64))
    assert [type(node) for node in graph.nodes] == [Reduce, Pointwise]


@pytest.mark.parametrize("scales", [(2.1, 1.7), (0.53, 3.0), (3.4, 0.4)])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_gradients_use_scales_as_given(name: str, scales: tuple[float, float]) -> None:
    after = [int(10 * scale) for scale in scales]
    operator = OPERATORS[name][1]

    def function(g: Tensor) -> Tensor:
        found: Tensor = operator(g, after, [1, 2, 10, 10], False, *scales)
        return found

    as_eager_on_an_accelerator(function, torch.randn(1, 2, *after, dtype=torch.float64))


def lowered_and_run(function: Callable[[Tensor], Tensor], gradient: Tensor) -> tuple[Lowered, Tensor]:
    lowered = trace_and_lower(function, (gradient,))
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [gradient])
    return lowered, found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", ["twice", "three times", "no whole factor", "much larger"])
@pytest.mark.parametrize("name", ["bilinear", "bicubic", "trilinear"])
def test_types_are_summed_in_32_bits(name: str, sizes: str, dtype: torch.dtype) -> None:
    function, shape = slope(name, sizes, False)
    gradient = torch.randn(shape).to(dtype)
    _, found = lowered_and_run(function, gradient)
    assert found.dtype is dtype
    bound = max(2**-18, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(found.double(), function(gradient.double()), rtol=bound, atol=16 * bound)


def strided(shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """A tensor whose dimensions lie in memory in this `order`, the last one densest."""
    made = torch.randn([shape[k] for k in order], dtype=torch.float64)
    return made.permute([list(order).index(k) for k in range(len(shape))])


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3)], ids=["channels-last", "channels first"])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_gradients_keep_the_layout_of_eager(name: str, order: tuple[int, ...]) -> None:
    function, shape = slope(name, "twice", False)
    assert_as_eager(function, strided(shape, order))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_gradients_of_no_images_are_empty(shape: tuple[int, int]) -> None:
    lowered, found = lowered_and_run(
        lambda g: aten.upsample_bilinear2d_backward.default(g, [4, 4], [*shape, 2, 2], False),
        torch.randn(*shape, 4, 4),
    )
    assert found.shape == (*shape, 2, 2)
    assert externs(lowered.graph) == []


def test_an_infinity_stays_where_it_counts() -> None:
    function, shape = slope("bilinear", "twice", False)
    gradient = torch.zeros(shape)
    gradient[0, 0, 5, 5] = float("inf")
    _, found = lowered_and_run(function, gradient)
    torch.testing.assert_close(found, function(gradient))


def test_few_results_with_computed_weights_are_atens_on_a_cpu() -> None:
    function, shape = slope("bilinear", "twice", True)
    assert externs(lowered_and_run(function, torch.randn(shape))[0].graph)
    # in 16 bits ATen adds up what it has rounded
    assert not externs(lowered_and_run(function, torch.randn(shape).bfloat16())[0].graph)


def test_weights_are_rounded_as_eagers_where_numbers_are_kept() -> None:
    function, shape = slope("bicubic", "three times", False)
    gradient = torch.randn(shape)
    options = LoweringOptions(numerics="eager")
    lowered = trace_and_lower(function, (gradient,), options=options)
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [gradient])
    torch.testing.assert_close(found, function(gradient), rtol=1e-5, atol=1e-5)
