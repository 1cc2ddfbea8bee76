"""Operands of convolutions with gaps are copied once, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from layout_graphs import added, output_strides, traced
from torch import Tensor

from coilwork_ir.machine import MachineModel, find_like_model
from coilwork_lowering import LayoutOptions, lay_out_convolutions
from coilwork_lowering.aten_layouts.convolution_layout import copy_operands_with_gaps

ON_CPU = LayoutOptions(devices=("cpu",), tf32_convolutions=False)


def as_gpu(device: str) -> MachineModel:
    """The figures of a GPU, which has such copies made, wherever tensors are here."""
    return find_like_model("cuda")


def windowed(joined: Tensor, weight: Tensor) -> tuple[Tensor]:
    """A depthwise convolution along the second dimension of some of the columns of [b, s, columns]."""
    mixed = joined[..., 64 : 64 + weight.shape[0]].transpose(1, 2)
    return (torch.conv1d(mixed, weight, padding=3, groups=weight.shape[0]),)


def test_an_operand_with_gaps_is_copied_and_results_stay() -> None:
    inputs = torch.randn(2, 1024, 320), torch.randn(192, 1, 4)
    captured = traced(windowed, *inputs)
    made, decision = lay_out_convolutions(captured, ON_CPU)
    assert decision.dense_copies == 1 and "1 operands" in decision.reason
    assert added(captured, made) == {("clone", "contiguous_format"): 1}
    assert output_strides(captured) == output_strides(made)
    torch.testing.assert_close(made(*inputs), windowed(*inputs))


def test_the_copy_is_shared() -> None:
    inputs = torch.randn(2, 1024, 320), torch.randn(192, 1, 4)

    def twice(joined: Tensor, weight: Tensor) -> Tensor:
        mixed = joined[..., 64:256].transpose(1, 2)
        return torch.conv1d(mixed, weight, groups=192) + torch.conv1d(mixed, 2 * weight, groups=192)

    captured = traced(twice, *inputs)
    made, copies = copy_operands_with_gaps(captured, ("cpu",), as_gpu)
    assert copies == 1 and sum(added(captured, made).values()) == 1
    torch.testing.assert_close(made(*inputs), twice(*inputs))


@pytest.mark.parametrize("columns", [slice(0, 320), slice(0, 64)], ids=["dense", "small"])
def test_dense_and_small_operands_stay(columns: slice) -> None:
    inputs = torch.randn(2, 1024, 320), torch.randn(len(range(320)[columns]), 1, 4)

    def whole(joined: Tensor, weight: Tensor) -> Tensor:
        return torch.conv1d(joined[..., columns].transpose(1, 2), weight, groups=weight.shape[0])

    captured = traced(whole, *inputs)
    made, copies = copy_operands_with_gaps(captured, ("cpu",), as_gpu)
    assert copies == 0 and made is captured


def test_other_devices_stay_as_captured() -> None:
    captured = traced(windowed, torch.randn(2, 1024, 320), torch.randn(192, 1, 4))
    made, copies = copy_operands_with_gaps(captured, ("cuda",))
    assert copies == 0 and made is captured


def test_results_of_another_layout_are_not_taken() -> None:
    """Channels together, with gaps between pixels: a dense copy in channels-last keeps the layout of the
    result.
    """
    inputs = torch.randn(2, 32, 32, 192), torch.randn(128, 128, 3, 3)

    def spatial(pixels: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (torch.conv2d(pixels[..., :128].permute(0, 3, 1, 2), weight, padding=1),)

    captured = traced(spatial, *inputs)
    made, copies = copy_operands_with_gaps(captured, ("cpu",), as_gpu)
    assert output_strides(captured) == output_strides(made) and copies == 1
    assert made(*inputs)[0].stride() == spatial(*inputs)[0].stride()
    torch.testing.assert_close(made(*inputs), spatial(*inputs), rtol=1e-4, atol=1e-4)
