"""Rows of a length that is no power of two, reduced together: whole ones in each power of two of lanes."""

from __future__ import annotations

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Hints, Kernel, Store
from coilwork_ir.scalar import load, op, reduce
from coilwork_ir.target import target
from coilwork_triton import TritonCodegen

F32, I64 = DType.F32, DType.I64


def channels(images: int, count: int, length: int, *, wide: bool = False) -> Kernel:
    """Of each channel of images the mean, what it is off the mean, and where it is greatest; contiguous ones if `wide`."""
    x, r, s = along("x0", count), along("r0", images, "r"), along("r1", length, "r", 1.0)
    row = x.symbol * images + r.symbol if wide else r.symbol * count + x.symbol
    index = row * length + s.symbol
    value = load("in0", [index], F32)
    axes = [r.symbol, s.symbol]
    mean = reduce("welford", [value], axes)
    total = images * count * length
    return Kernel(
        name="channels",
        ranges=(x, r, s),
        args=(
            arg("in0", F32, total),
            arg("out0", F32, count),
            arg("out1", I64, count),
            arg("out2", F32, total),
        ),
        stores=(
            Store(buffer="out0", index=x.symbol, value=mean),
            Store(buffer="out1", index=x.symbol, value=reduce("argmax", [value], axes)),
            Store(buffer="out2", index=index, value=op("sub", value, mean)),
        ),
        hints=Hints(reduction="persistent"),
    )


def emitted(kernel: Kernel) -> KernelSource:
    return TritonCodegen().emit(kernel, target("sm_90"), {})


@pytest.mark.parametrize(("images", "length"), [(37, 49), (256, 49), (64, 9)])
def test_channels_of_images(engine: TritonProcess, images: int, length: int) -> None:
    data = torch.randn(images, 3, length, generator=torch.Generator().manual_seed(2))
    data[:, 1] = data[:, 1].round()
    source = emitted(channels(images, 3, length))
    assert "rmask = (rindex % " in source.text
    for number in range(len(source.configs)):
        given = [
            data.reshape(-1),
            torch.zeros(3),
            torch.zeros(3, dtype=torch.int64),
            torch.zeros(data.numel()),
        ]
        _, mean, where, rest = (t.cpu() for t in run_source(engine, source, given, (), number))
        wanted = data.double().mean((0, 2)).float()
        torch.testing.assert_close(mean, wanted)
        assert torch.equal(where, data.transpose(0, 1).flatten(1).argmax(1))
        torch.testing.assert_close(rest.view(data.shape), data - wanted[:, None])


@pytest.mark.parametrize(
    "kernel",
    [
        channels(256, 3, 64),
        channels(256, 3, 49, wide=True),
        channels(3, 3, 2200),
        channels(41, 3, 49),
        channels(64, 3, 196),
    ],
    ids=["whole lanes", "one behind the other", "long", "no room", "wide"],
)
def test_flat_positions_stay_where_they_are_as_good(kernel: Kernel) -> None:
    text = emitted(kernel).text
    assert "rmask = (rindex % " not in text and "rindex = tl.arange(0, R0_BLOCK)" in text
