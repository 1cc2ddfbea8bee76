"""Resizing with antialiasing is eager's, in both directions, and so is its derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.decompositions.images import resize_decompositions

aten = torch.ops.aten
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
def test_sizes(name: str, before: tuple[int, int], after: tuple[int, int], corners: bool) -> None:
    image = torch.randn(2, 3, *before, dtype=torch.float64 if corners else torch.float32)
    found = traced(lambda x: FORWARD[name](x, after, corners), image)
    torch.testing.assert_close(found, FORWARD[name](image, after, corners))
    gradient, shape = torch.randn_like(found), (2, 3, *before)
    given = traced(lambda x: BACKWARD[name](x, after, shape, corners), gradient)
    torch.testing.assert_close(given, BACKWARD[name](gradient, after, shape, corners))


@pytest.mark.parametrize("scales", [(0.53, 0.47), (2.1, 1.9)])
def test_given_scales(scales: tuple[float, float]) -> None:
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
