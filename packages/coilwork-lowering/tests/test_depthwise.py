"""Convolutions of single channels: generated on accelerators, where that is faster than a library's kernel."""

from __future__ import annotations

from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from coilwork_ir.loops import Graph, View
from coilwork_ir.loops.parsing import parse_graph
from coilwork_ir.loops.printing import format_graph
from coilwork_lowering import Lowered, LoweringOptions, lower

FUNCTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "causal": ((2, 6, 17), (4,), {"padding": 3}),
    "square": ((2, 6, 9, 11), (3, 3), {"padding": 1}),
    "steps": ((2, 6, 9, 11), (5, 5), {"padding": 2, "stride": 2}),
    "uneven": ((2, 6, 9, 11), (3, 5), {"padding": (0, 2), "stride": (2, 1), "dilation": (2, 1)}),
    "one tap": ((2, 6, 4, 5), (1, 1), {}),
    "wide border": ((2, 6, 2, 2), (3, 3), {"padding": 4}),
    "volume": ((2, 6, 4, 5, 6), (2, 2, 2), {"padding": 1}),
    "no batch": ((6, 9, 11), (3, 3), {"padding": "same"}),
}


def lowered(
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    multiplier: int = 1,
    bias: bool = True,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    groups: int = 0,
    **settings: Any,
) -> Lowered:
    channels = shape[-len(kernel) - 1]
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(shape, device=device, dtype=dtype)
        weight = torch.empty((multiplier * channels, 1, *kernel), device=device, dtype=dtype)
        given = (torch.empty(multiplier * channels, device=device, dtype=dtype),) if bias else ()

        def convolved(x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
            return FUNCTIONS[len(kernel)](x, w, *b, groups=groups or channels, **settings).relu()

        gm = make_fx(convolved, tracing_mode="fake")(image, weight, *given)
        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if (
                channels_last
                and isinstance(value, torch.Tensor)
                and value.shape[-2:] != kernel
                and value.ndim == 4
            ):
                node.meta["val"] = value.to(memory_format=torch.channels_last)
        return lower(gm, name="graph", options=LoweringOptions())


def evaluated(found: Lowered, *inputs: torch.Tensor) -> torch.Tensor:
    here = parse_graph(format_graph(found.graph).replace("cuda:0", "cpu"))
    (result,) = loop_evaluator.run(here, found.constants, list(inputs))
    return result


def laid_out_anew(graph: Graph) -> bool:
    return any(isinstance(node, View) for node in graph.nodes)


@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", list(CASES))
def test_the_sum_over_the_window(case: str, bias: bool, multiplier: int) -> None:
    shape, kernel, settings = CASES[case]
    found = lowered(shape, kernel, bias=bias, multiplier=multiplier, **settings)
    assert not externs(found.graph)
    weight = torch.randn(6 * multiplier, 1, *kernel)
    inputs = (torch.randn(shape), weight, *((torch.randn(6 * multiplier),) if bias else ()))
    expected = FUNCTIONS[len(kernel)](*inputs, groups=6, **settings).relu()
    torch.testing.assert_close(evaluated(found, *inputs), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_side_by_side_channels_have_their_weights_laid_out_anew(dtype: torch.dtype) -> None:
    shape, kernel, settings = CASES["square"]
    found = lowered(shape, kernel, dtype=dtype, channels_last=True, **settings)
    assert not externs(found.graph) and laid_out_anew(found.graph)
    assert not laid_out_anew(lowered(shape, kernel, dtype=dtype, **settings).graph)
    image = torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(6, 1, *kernel, dtype=dtype), torch.randn(6, dtype=dtype)
    exact = functional.conv2d(image.double(), weight.double(), bias.double(), groups=6, padding=1).relu()
    result = evaluated(found, image, weight, bias)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, exact.to(dtype))


@pytest.mark.parametrize(
    ("shape", "kernel", "settings", "channels_last", "generated"),
    [
        ((128, 96, 56, 56), (3, 3), {}, False, True),
        ((128, 96, 56, 56), (7, 7), {}, True, False),
        ((128, 96, 56, 56), (5, 5), {"stride": 2}, True, True),
        ((128, 96, 56, 56), (5, 5), {"stride": 2}, False, False),
        ((1, 384, 14, 14), (7, 7), {}, True, True),
        ((1, 384, 14, 14), (9, 9), {}, True, False),
    ],
)
def test_many_taps_of_large_images_are_left_to_a_library(
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    settings: dict[str, Any],
    channels_last: bool,
    generated: bool,
) -> None:
    found = lowered(shape, kernel, channels_last=channels_last, **settings)
    assert externs(found.graph) == ([] if generated else ["aten.convolution.default"])


def test_what_else_is_left_to_a_library() -> None:
    shape, kernel, settings = CASES["square"]
    assert externs(lowered(shape, kernel, device="cpu", **settings).graph) == ["aten.convolution.default"]
    # channels are mixed
    with FakeTensorMode(allow_non_fake_inputs=True):
        image, weight = torch.empty(2, 6, 9, 9, device="cuda"), torch.empty(6, 2, 3, 3, device="cuda")
        backwards = torch.empty(6, 1, 3, 3, device="cuda")
        pairs = trace_and_lower(lambda x, w: functional.conv2d(x, w, groups=3), (image, weight))
        transposed = trace_and_lower(
            lambda x, w: functional.conv_transpose2d(x, w, groups=6), (image, backwards)
        )
    for found in (pairs, transposed):
        assert externs(found.graph) == ["aten.convolution.default"]
