"""Pooling and its derivatives against eager, fractional pooling among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from accelerator_graphs import as_eager_on_an_accelerator
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from lowering_backend import Recorder
from torch import Tensor
from torch.nn import functional

from coilwork_ir.loops import Pointwise, Reduce
from coilwork_lowering import Lowered
from coilwork_lowering.ops import pooling

aten = torch.ops.aten
Function = Callable[[Tensor], Any]

# kernel, stride, padding, dilation, ceil_mode
MAX_WINDOWS = [
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], True),
    ([2, 3], [1, 2], [1, 0], [1, 2], False),
    ([3], [3], [1], [2], True),
    ([2, 2], [], [0], [1], True),
    ([1, 1], [3, 2], [0, 0], [1, 1], False),
    ([2, 2], [4, 4], [1, 1], [3, 3], True),
    ([6, 7], [3, 2], [3, 3], [1, 1], True),
    ([6, 6], [1, 1], [3, 0], [1, 1], False),
]
# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
MEAN_WINDOWS = [
    ([3, 3], [2, 2], [1, 1], False, True, None),
    ([3, 3], [2, 2], [1, 1], False, False, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 2], [2, 3], [1, 1], True, False, None),
    ([3, 3], [2, 1], [0, 1], True, True, 7),
    ([2], [], [0], True, False, None),
    ([1, 2], [3, 3], [0, 0], False, True, None),
    ([6, 6], [2, 5], [3, 2], True, True, None),
    ([6, 6], [2, 5], [3, 2], True, False, None),
]
LEFT_TO_ATEN = pooling._is_left_to_aten
LAYOUTS = {"rows": torch.contiguous_format, "channels-last": torch.channels_last}
FLOATS = [torch.float32, torch.bfloat16, torch.float64]


@pytest.fixture(autouse=True)
def all_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on devices where nothing is left to ATen."""
    monkeypatch.setattr(pooling, "_is_left_to_aten", lambda device: False)


def image(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "rows") -> Tensor:
    """Few distinct numbers, so that windows hold several maxima."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randint(-9, 10, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        values = values / 4
    return values.contiguous(memory_format=LAYOUTS[layout]) if len(shape) == 4 else values


def tolerance(dtype: torch.dtype) -> float | None:
    return 2e-2 if dtype is torch.bfloat16 else None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", MAX_WINDOWS, ids=str)
def test_maxima_and_their_positions(window: tuple[Any, ...], layout: str) -> None:
    x = image(2, 3, 11, 13, layout=layout)
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, *window), x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16, torch.int32, torch.int64, torch.uint8, torch.int8])
@pytest.mark.parametrize("kernel", [3, 6])
def test_maxima_of_element_types(dtype: torch.dtype, kernel: int) -> None:
    x = image(2, 3, 9, 10, dtype=dtype)
    if not dtype.is_floating_point:
        x[0, 0] = torch.iinfo(dtype).min
    else:
        x[0, 0] = float("-inf")
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, [kernel] * 2, [2, 2], [1, 1]), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [3, 6])
def test_nan_is_the_maximum_and_infinities_are_numbers(kernel: int, layout: str) -> None:
    x = image(2, 3, 14, 14, layout=layout)
    generator = torch.Generator().manual_seed(1)
    chosen = torch.rand(x.shape, generator=generator)
    x[chosen < 0.1] = float("nan")
    x[(chosen > 0.1) & (chosen < 0.8)] = float("-inf")
    x[chosen > 0.97] = float("inf")
    x[0] = float("-inf")
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, [kernel] * 2, [2, 2], [1, 1], [1, 1], True), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", MEAN_WINDOWS, ids=str)
def test_means_of_windows_are_those_of_eager(window: tuple[Any, ...], dtype: torch.dtype) -> None:
    x = image(2, 3, 11, 13, dtype=dtype)
    assert_as_eager(lambda a: aten.avg_pool2d(a, *window), x, tolerance=tolerance(dtype))


@pytest.mark.parametrize("window", MEAN_WINDOWS[:4], ids=str)
def test_means_keep_the_layout_and_let_nan_through(window: tuple[Any, ...]) -> None:
    x = image(2, 3, 11, 13, layout="channels-last")
    x[0, 1, 4, 4] = float("nan")
    x[1, 2, 0, 0] = float("inf")
    assert_as_eager(lambda a: aten.avg_pool2d(a, *window), x)


@pytest.mark.parametrize("size", [(3, 4), (5, 7), (1, 1), (14, 9), (12, 12)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_adaptive_pooling_is_eagers_and_calls_nothing(size: tuple[int, int], layout: str) -> None:
    x = image(2, 3, 12, 12, layout=layout)
    assert_as_eager(lambda a: aten._adaptive_avg_pool2d(a, size), x)
    lowered = trace_and_lower(lambda a: aten.adaptive_max_pool2d(a, size), (x,))
    assert externs(lowered.graph) == []
    assert_as_eager(lambda a: aten.adaptive_max_pool2d(a, size), x)


def test_one_and_three_dimensions_and_no_batch() -> None:
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, [3, 3], [2, 2], [1, 1]), image(3, 9, 10))
    assert_as_eager(lambda a: aten.avg_pool2d(a, [3, 3], [2, 2], [1, 1]), image(3, 9, 10))
    assert_as_eager(lambda a: aten.avg_pool1d(a, [3], [2], [1], True, False), image(2, 3, 10))
    volume = image(2, 3, 7, 8, 9)
    assert_as_eager(lambda a: aten.max_pool3d_with_indices(a, [2, 3, 2], [2, 2, 2], [1, 1, 0]), volume)
    assert_as_eager(lambda a: aten.max_pool3d_with_indices(a, [4, 3, 4], [2, 2, 2], [1, 1, 0]), volume)
    assert_as_eager(lambda a: aten.avg_pool3d(a, [2, 3, 2], [2, 2, 2], [1, 1, 0], True, False), volume)
    assert_as_eager(lambda a: aten._adaptive_avg_pool3d(a, [3, 4, 2]), volume)
    assert_as_eager(lambda a: aten.adaptive_max_pool3d(a, [3, 4, 2]), volume)


def test_pooling_of_no_images_is_empty() -> None:
    empty = torch.empty(0, 3, 9, 9)
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, [3, 3], [2, 2], [1, 1]), empty)
    assert_as_eager(lambda a: aten.max_pool2d_with_indices(a, [7, 7], [2, 2], [1, 1]), empty)
    assert_as_eager(lambda a: aten.avg_pool2d(a, [7, 7]), empty)


def nodes_of(lowered: Lowered) -> list[str]:
    return [type(node).__name__ for node in lowered.graph.nodes]


def test_positions_that_nobody_reads_are_not_computed() -> None:
    x = image(2, 3, 12, 12)

    def values(a: Tensor) -> Any:
        return aten.max_pool2d_with_indices(a, [3, 3], [2, 2], [1, 1])[0]

    assert nodes_of(assert_as_eager(values, x)) == ["Pointwise"]
    both = trace_and_lower(lambda a: aten.max_pool2d_with_indices(a, [3, 3], [2, 2], [1, 1]), (x,))
    assert nodes_of(both) == ["Pointwise", "Pointwise"]


def test_small_windows_are_written_out_and_large_ones_reduced() -> None:
    x = image(2, 3, 12, 12)
    small = trace_and_lower(lambda a: aten.avg_pool2d(a, [5, 5]), (x,))
    large = trace_and_lower(lambda a: aten.avg_pool2d(a, [6, 6]), (x,))
    assert [type(node) for node in small.graph.nodes] == [Pointwise]
    assert [type(node) for node in large.graph.nodes] == [Reduce, Pointwise]


def test_integer_means_stay_with_aten() -> None:
    x = image(2, 3, 9, 9, dtype=torch.int64)
    lowered = assert_as_eager(lambda a: aten.avg_pool2d(a, [2, 2]), x, extern=True)
    assert externs(lowered.graph) == ["aten.avg_pool2d.default"]


# derivatives


def test_what_is_dear_stays_with_aten_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_is_left_to_aten", LEFT_TO_ATEN)
    x = image(2, 3, 12, 12)
    maxima = aten.max_pool2d_with_indices
    assert externs(trace_and_lower(lambda a: maxima(a, [6, 6]), (x,)).graph) == [str(maxima.default)]
    assert externs(trace_and_lower(lambda a: maxima(a, [6, 6])[0], (x,)).graph) == []
    assert externs(trace_and_lower(lambda a: maxima(a, [5, 5]), (x,)).graph) == []
    window = ([6, 6], [1, 1], [3, 0], [1, 1], False)
    y, positions = aten.max_pool2d_with_indices(x, *window)
    lowered = assert_as_eager(
        lambda g, a, i: aten.max_pool2d_with_indices_backward(g, a, *window, i),
        torch.randn_like(y),
        x,
        positions,
        extern=True,
    )
    assert externs(lowered.graph) == ["aten.max_pool2d_with_indices_backward.default"]
    uneven = torch.randn(2, 3, 5, 7)
    lowered = assert_as_eager(lambda g, a: aten._adaptive_avg_pool2d_backward(g, a), uneven, x, extern=True)
    assert externs(lowered.graph) == ["aten._adaptive_avg_pool2d_backward.default"]
    even = torch.randn(2, 3, 4, 6)
    assert_as_eager(lambda g, a: aten._adaptive_avg_pool2d_backward(g, a), even, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", MAX_WINDOWS, ids=str)
def test_derivative_of_maxima(window: tuple[Any, ...], layout: str) -> None:
    x = image(2, 3, 11, 13, layout=layout)
    kernel, step, padding, dilation, ceil_mode = window
    y, positions = aten.max_pool2d_with_indices(x, *window)
    grad = torch.randn_like(y)
    assert_as_eager(
        lambda g, a, i: aten.max_pool2d_with_indices_backward(
            g, a, kernel, step, padding, dilation, ceil_mode, i
        ),
        grad,
        x,
        positions,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", MEAN_WINDOWS, ids=str)
def test_derivative_of_means(window: tuple[Any, ...], dtype: torch.dtype) -> None:
    x = image(2, 3, 11, 13, dtype=dtype)
    grad = torch.randn_like(aten.avg_pool2d(x, *window))
    assert_as_eager(lambda g, a: aten.avg_pool2d_backward(g, a, *window), grad, x, tolerance=tolerance(dtype))


@pytest.mark.parametrize("size", [(3, 4), (5, 7), (1, 1), (14, 9)])
def test_derivative_of_adaptive_pooling(size: tuple[int, int]) -> None:
    x = image(2, 3, 12, 12)
    grad = torch.randn(2, 3, *size)
    assert_as_eager(lambda g, a: aten._adaptive_avg_pool2d_backward(g, a), grad, x)
    positions = aten.adaptive_max_pool2d(x, size)[1]
    assert_as_eager(lambda g, a, i: aten.adaptive_max_pool2d_backward(g, a, i), grad, x, positions)


MODELS: dict[str, Function] = {
    "max": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max 1d": lambda x: functional.max_pool1d(x[0], 3, 2, 1),
    "max 3d": lambda x: functional.max_pool3d(x, 2),
    "max large": lambda x: functional.max_pool2d(x, 7, 1, 3),
    "mean": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean 1d": lambda x: functional.avg_pool1d(x[0], 3),
    "mean large": lambda x: functional.avg_pool2d(x, 7, 3),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive max": lambda x: functional.adaptive_max_pool2d(x, (3, 5)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_training_through_autograd(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = torch.compile(MODELS[name], backend=recorder, dynamic=dynamic, fullgraph=True)
    sizes = [(2, 3, 12, 15), (4, 5, 9, 14)] if dynamic else [(2, 3, 12, 15)]
    for shape in sizes:
        x = torch.randn(shape, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        actual, wanted = compiled(x), MODELS[name](again)
        grad = torch.randn_like(wanted)
        actual.backward(grad)
        wanted.backward(grad)
        torch.testing.assert_close(actual, wanted)
        torch.testing.assert_close(x.grad, again.grad)
    assert len(recorder.lowered) >= 2
    assert all(externs(lowered.graph) == [] for lowered in recorder.lowered)


@pytest.mark.parametrize("kernel", [3, 6])
def test_one_graph_serves_all_sizes(kernel: int) -> None:
    window = ([kernel] * 2, [2, 2], [1, 1], [1, 1], False)
    lowered = trace_and_lower(
        lambda a: aten.max_pool2d_with_indices(a, *window), (image(2, 3, 9, 10),), mode="symbolic"
    )
    for shape in ((1, 2, 7, 12), (3, 1, 10, 8), (2, 3, 23, 6)):
        x = image(*shape)
        found = loop_evaluator.run(lowered.graph, lowered.constants, [x])
        for got, wanted in zip(found, aten.max_pool2d_with_indices(x, *window), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("pool", [functional.avg_pool2d, functional.avg_pool3d])
def test_means_are_not_divided_by_zero(pool: Callable[..., Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        return pool(x, 2, divisor_override=0)

    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        assert_as_eager(function, torch.randn(1, 4, 4, 4), extern=True)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_maxima_of_integers_are_refused(rank: int) -> None:
    function = getattr(functional, f"adaptive_max_pool{rank}d")
    compiled = torch.compile(lambda x: function(x.argmax(1), 2), backend=Recorder())
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        compiled(torch.randn([2] * (rank + 2)))


@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d])
def test_accelerators_write_larger_windows_out_where_sizes_differ(pool: Callable[..., Tensor]) -> None:
    graph = as_eager_on_an_accelerator(lambda x: pool(x, 7), torch.randn(2, 3, 30, 31))
    assert {type(node) for node in graph.nodes} == {Pointwise}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("window", "places"), [((2, 3), (3, 2)), ((1, 1), (5, 1)), ((3, 2), (1, 4))])
def test_fractional_pooling_of_images_is_eagers(
    window: tuple[int, int], places: tuple[int, int], dtype: torch.dtype
) -> None:
    samples = torch.tensor([[[0.0, 0.99], [0.5, 0.3]], [[0.7, 0.1], [0.25, 0.75]]], dtype=dtype)
    image = torch.randn(2, 2, 7, 6).to(dtype)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, window, places, r), image, samples)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, window, places, r), image[0], samples[:1])


def test_fractional_pooling_of_volumes_is_eagers() -> None:
    image, samples = torch.randn(2, 3, 5, 6, 7), torch.rand(2, 3, 3)
    assert_as_eager(lambda x, r: aten.fractional_max_pool3d(x, (2, 2, 2), (2, 3, 4), r), image, samples)


def test_the_last_that_is_no_number_wins() -> None:
    image, samples = torch.randn(1, 1, 6, 6), torch.full((1, 1, 2), 0.4)
    image[0, 0, 1, 1], image[0, 0, 2, 1], image[0, 0, 4, 4] = math.nan, math.nan, math.inf
    image[0, 0, 4:, :2] = -math.inf
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, (3, 3), (2, 2), r), image, samples)


def test_windows_that_are_large_or_nothing_are_left_to_aten() -> None:
    image, samples = torch.randn(1, 1, 9, 9), torch.rand(1, 1, 2)
    assert_as_eager(
        lambda x, r: aten.fractional_max_pool2d(x, (6, 6), (2, 2), r), image, samples, extern=True
    )
    none = torch.randn(0, 1, 9, 9)
    assert_as_eager(
        lambda x, r: aten.fractional_max_pool2d(x, (2, 2), (2, 2), r), none, samples[:0], extern=True
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_where_windows_begin_is_rounded(dtype: torch.dtype) -> None:
    image, samples = torch.randn(200, 1, 33, 33).to(dtype), torch.rand(200, 1, 2).to(dtype)
    assert_as_eager(lambda x, r: aten.fractional_max_pool2d(x, (2, 2), (16, 16), r), image, samples)
