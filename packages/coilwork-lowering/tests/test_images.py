"""Padding and antialiased resizing, decomposed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from aot_compilers import TracingMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.decompositions.images import resize_decompositions

aten = torch.ops.aten
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3), (1, 2)),
    ((2, 3, 4), (0, 3)),
    ((2, 3, 4), (-1, 2)),
    ((1, 3, 4, 5), (1, 0, 2, 3)),
    ((3, 4, 5), (-2, 1, 2, -3)),
    ((2, 2, 3, 4, 2), (1, 1, 0, 2, 2, 0)),
    ((2, 1, 1, 1), (3, 3, 2, 2)),
)


@pytest.mark.parametrize("shape, padding", CASES)
def test_gradients_of_replicated_borders_are_those_of_eager(
    shape: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    dims = len(padding) // 2
    backward = getattr(aten, f"replication_pad{dims}d_backward").default
    value = torch.zeros(shape)
    padded = getattr(aten, f"replication_pad{dims}d")(value, padding)
    gradient = torch.arange(1.0, 1 + padded.numel()).view(padded.shape)

    def function() -> Any:
        return backward(gradient, value, padding)

    gm = make_fx(function, decomposition_table=decompositions())()
    assert not [node for node in gm.graph.nodes if "backward" in str(node.target)]
    torch.testing.assert_close(gm(), function(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "shape, padding", [((2, 4), (1, 2)), ((3, 4, 5), (0, 3, 2, 0)), ((2, 2, 3, 4, 3), (1, 2, 0, 2, 2, 0))]
)
def test_gradients_of_reflected_borders_are_those_of_eager(
    shape: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    dims = len(padding) // 2
    backward = getattr(aten, f"reflection_pad{dims}d_backward").default
    value = torch.zeros(shape)
    padded = getattr(aten, f"reflection_pad{dims}d")(value, padding)
    gradient = torch.arange(1.0, 1 + padded.numel()).view(padded.shape)

    def function() -> Any:
        return backward(gradient, value, padding)

    gm = make_fx(function, decomposition_table=decompositions())()
    assert not [node for node in gm.graph.nodes if "backward" in str(node.target)]
    torch.testing.assert_close(gm(), function(), rtol=0, atol=0)


def test_what_is_cut_off_whole_is_left_alone() -> None:
    value, gradient = torch.zeros(2, 2), torch.ones(2, 3)

    def function() -> Any:
        return aten.replication_pad1d_backward.default(gradient, value, (-2, 3))

    gm = make_fx(function, decomposition_table=decompositions())()
    torch.testing.assert_close(gm(), function())


@pytest.mark.parametrize("padding", [(0, -2), (-1, 0, 0, -1), (0, 0), (-1, -1, -2, 0, 0, -1)])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_what_only_cuts_keeps_the_layout(padding: tuple[int, ...], mode: TracingMode) -> None:
    def function(given: torch.Tensor) -> torch.Tensor:
        cut: torch.Tensor = aten.constant_pad_nd(given, padding)
        return cut

    _agrees(function, torch.arange(5.0 * 9 * 6).view(5, 9, 6).transpose(1, 2), mode)


def test_what_is_cut_to_a_known_size_keeps_the_layout() -> None:
    def function(given: torch.Tensor) -> torch.Tensor:
        size = given.shape[2]
        cut: torch.Tensor = aten.constant_pad_nd(given, (0, 7 - size if size > 7 else 0))
        return cut

    _agrees(function, torch.arange(5.0 * 9 * 6).view(5, 9, 6).transpose(1, 2), "symbolic")


def _agrees(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, mode: TracingMode) -> None:
    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode=mode)(value)
    torch.testing.assert_close(gm(value), function(value), rtol=0, atol=0, check_stride=True)
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, torch.fx.Node)
    promised: torch.Tensor = returned.meta["val"]
    assert [int(stride) for stride in promised.stride()] == list(function(value).stride())


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape, dims, format",
    [
        ((2, 3, 4, 5), 2, torch.channels_last),
        ((2, 3, 4, 5, 4), 3, torch.channels_last_3d),
        ((3, 3, 4, 5), 3, torch.channels_last),
    ],
    ids=["images", "volumes", "one volume"],
)
def test_in_channels_last(
    kind: str, dtype: torch.dtype, shape: tuple[int, ...], dims: int, format: torch.memory_format
) -> None:
    name, padding = f"{kind}_pad{dims}d", (1, 2) * dims
    value = torch.randn(shape).to(dtype).to(memory_format=format)
    gradient = torch.randn_like(getattr(aten, name)(value, padding)).round()  # whose sums are exact
    _agrees(lambda given: getattr(aten, name)(given, padding), value, "fake")
    _agrees(lambda given: getattr(aten, f"{name}_backward")(gradient, given, padding), value, "real")


def test_other_layouts_are_padded_without_guards() -> None:
    value = torch.randn(2, 3, 4, 5, 6).transpose(2, 3)
    gm = make_fx(
        lambda given: aten.replication_pad3d(given, (1, 1, 1, 1, 1, 1)),
        decomposition_table=decompositions(),
        tracing_mode="symbolic",
    )(value)
    assert gm.shape_env is not None
    assert not [guard for guard in gm.shape_env.guards if ">" in str(guard.expr)]


TABLE = decompositions()
FORWARD = {"bilinear": aten._upsample_bilinear2d_aa.default, "bicubic": aten._upsample_bicubic2d_aa.default}
BACKWARD = {
    "bilinear": aten._upsample_bilinear2d_aa_backward.default,
    "bicubic": aten._upsample_bicubic2d_aa_backward.default,
}
SIZES = [((9, 7), (4, 12)), ((13, 3), (5, 8)), ((6, 6), (1, 1)), ((1, 5), (3, 5))]


def traced(
    function: Callable[..., Any], *inputs: torch.Tensor, table: Mapping[Any, Callable[..., Any]] = TABLE
) -> Any:
    gm = make_fx(function, decomposition_table=dict(table))(*inputs)
    assert not [node for node in gm.graph.nodes if "upsample" in str(node.target)]
    return gm(*inputs)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize(("before", "after"), SIZES)
@pytest.mark.parametrize("name", FORWARD)
def test_resized_images_and_their_gradients_are_those_of_eager(
    name: str, before: tuple[int, int], after: tuple[int, int], corners: bool
) -> None:
    image = torch.randn(2, 3, *before, dtype=torch.float64 if corners else torch.float32)
    found = traced(lambda x: FORWARD[name](x, after, corners), image)
    torch.testing.assert_close(found, FORWARD[name](image, after, corners))
    gradient, shape = torch.randn_like(found), (2, 3, *before)
    given = traced(lambda x: BACKWARD[name](x, after, shape, corners), gradient)
    torch.testing.assert_close(given, BACKWARD[name](gradient, after, shape, corners))


@pytest.mark.parametrize("scales", [(0.53, 0.47), (2.1, 1.9)])
def test_scales_that_are_given_are_used_as_given(scales: tuple[float, float]) -> None:
    image, after = torch.randn(1, 2, 10, 10), [int(10 * scale) for scale in scales]

    def function(image: torch.Tensor) -> Any:
        return FORWARD["bicubic"](image, after, False, *scales)

    torch.testing.assert_close(traced(function, image), function(image))


def test_channels_last_stays() -> None:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    found = traced(lambda x: FORWARD["bilinear"](x, (4, 5), False), image)
    wanted = FORWARD["bilinear"](image, (4, 5), False)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("strides", [(300, 1, 50, 5), (5, 1, 50, 5)], ids=["channels-last", "of-one-image"])
def test_layouts_of_derivatives(name: str, strides: tuple[int, ...]) -> None:
    gradient = torch.randn(300).as_strided((1, 5, 6, 10), strides)
    found = traced(lambda x: BACKWARD[name](x, (6, 10), (1, 5, 4, 7), False), gradient)
    wanted = BACKWARD[name](gradient, (6, 10), (1, 5, 4, 7), False)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def test_16_bits_are_added_in_32() -> None:
    image = torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
    # eager has a kernel for them on GPUs alone: on CPUs the operator is left to ATen
    table = resize_decompositions()
    found = traced(lambda x: FORWARD["bilinear"](x, (5, 5), False), image, table=table)
    exact = FORWARD["bilinear"](image.double(), (5, 5), False)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-8)
