"""Layer, RMS, batch, group and instance norm, forward and with backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, Set, first_bytes

F32 = torch.float32
BACKWARD = "the backward pass reads the input again"
STATISTICS = (
    "a channel is larger than a multiprocessor's memory, and its statistics come before the first result"
)


def affine_rows(dtype: torch.dtype = torch.bfloat16) -> Callable[..., Arguments]:
    """Rows, and weight and bias for them."""

    def inputs(make: Make, n: int, m: int) -> Arguments:
        return make.normal(n, m, dtype=dtype), make.normal(m, dtype=dtype), make.normal(m, dtype=dtype)

    return inputs


def weighted_rows(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(m)


def weighted_pair(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(n, m), make.normal(m)


def images(form: torch.memory_format, dtype: torch.dtype = torch.bfloat16) -> Callable[..., Arguments]:
    """Images in the memory format, and weight and bias per channel."""

    def inputs(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
        x = make.normal(n, c, h, w, dtype=dtype)
        if form is torch.channels_last:
            x = x.view(n, h, w, c).permute(0, 3, 1, 2)
        return x, make.normal(c, dtype=dtype), make.normal(c, dtype=dtype)

    return inputs


NCHW, NHWC = images(torch.contiguous_format), images(torch.channels_last)
LAYOUTS = (("NCHW", NCHW), ("NHWC", NHWC))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-6)


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight), total


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32 if x.shape[1] >= 32 else 2, weight, bias))


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=weight, bias=bias)


def twice(x: Tensor, *_: object) -> int:
    return 2 * x.nbytes


def four_times(x: Tensor, *_: object) -> int:
    return 4 * x.nbytes


def batch_norm_cases(n: int, c: int, h: int, w: int, *, fits: bool, set: Set) -> list[Case]:
    """Forward and with backward, in both layouts.

    `fits`: a channel of NCHW images fits a multiprocessor's memory, so that each pass reads it once. In NHWC
    the narrowest column that is read at the memory's speed, 16 channels of all images, never fits.
    """
    found = []
    for layout, inputs in LAYOUTS:
        once = fits and layout == "NCHW"
        for train in (False, True):
            # With backward: the input is there again; statistics need one more pass of it, their gradients
            # one more of the input and of the result's gradient.
            again = (first_bytes if once else four_times) if train else (None if once else first_bytes)
            found.append(
                Case(
                    name=f"batch norm {'fwd+bwd' if train else 'fwd'} {layout} {n}x{c}x{h}x{w}",
                    function=batch_norm,
                    inputs=inputs,
                    size=(n, c, h, w),
                    tiny=(4, 3, 5, 4),
                    train=train,
                    again=again,
                    why="" if again is None else BACKWARD if once else STATISTICS,
                    set=set,
                )
            )
    return found


def norm_case(
    name: str,
    function: Callable[..., object],
    inputs: Callable[..., Arguments],
    size: tuple[int, ...],
    *,
    train: bool = False,
    set: Set = "main",
) -> Case:
    """A norm whose groups fit a multiprocessor's memory."""
    return Case(
        name=name,
        function=function,
        inputs=inputs,
        size=size,
        tiny=(6, 96) if len(size) == 2 else (2, 8, 6, 5),
        train=train,
        again=first_bytes if train else None,
        why=BACKWARD if train else "",
        set=set,
    )


CASES = (
    norm_case("layer norm fwd 16384x4096", layer_norm, affine_rows(), (16384, 4096)),
    norm_case("layer norm fwd+bwd 16384x4096", layer_norm, affine_rows(), (16384, 4096), train=True),
    norm_case("RMS norm+residual 16384x4096", rms_norm_residual, weighted_pair, (16384, 4096)),
    norm_case("RMS norm fwd+bwd 16384x4096", rms_norm, weighted_rows, (16384, 4096), train=True),
    *batch_norm_cases(256, 64, 56, 56, fits=False, set="main"),
    *batch_norm_cases(256, 2048, 7, 7, fits=True, set="more"),
    norm_case("group norm+SiLU NCHW 32x320x64x64", group_norm_silu, NCHW, (32, 320, 64, 64)),
    norm_case("layer norm of rows of 64 1048576x64", layer_norm, affine_rows(), (1 << 20, 64)),
    norm_case("layer norm fwd 65536x1024 f32", layer_norm, affine_rows(F32), (65536, 1024), set="more"),
    norm_case("layer norm fwd 2048x32768", layer_norm, affine_rows(), (2048, 32768), set="more"),
    norm_case(
        "layer norm fwd+bwd 65536x768 f32", layer_norm, affine_rows(F32), (65536, 768), train=True, set="more"
    ),
    norm_case(
        "layer norm fwd+bwd 131072x256", layer_norm, affine_rows(), (131072, 256), train=True, set="more"
    ),
    norm_case("RMS norm fwd 131072x512", rms_norm, weighted_rows, (131072, 512), set="more"),
    norm_case("RMS norm of rows of 128 524288x128", rms_norm, weighted_rows, (524288, 128), set="more"),
    norm_case("RMS norm fwd+bwd 8192x8192", rms_norm, weighted_rows, (8192, 8192), train=True, set="more"),
    Case(
        name="group norm+SiLU NHWC 32x320x64x64",
        function=group_norm_silu,
        inputs=NHWC,
        size=(32, 320, 64, 64),
        tiny=(2, 8, 6, 5),
        set="more",
    ),
    norm_case("instance norm NCHW 32x128x64x64", instance_norm, NCHW, (32, 128, 64, 64), set="more"),
    norm_case("layer norm fwd 4096x1024 in cache", layer_norm, affine_rows(), (4096, 1024), set="cached"),
    norm_case(
        "layer norm fwd+bwd 2048x1024 in cache",
        layer_norm,
        affine_rows(),
        (2048, 1024),
        train=True,
        set="cached",
    ),
    norm_case(
        "RMS norm+residual 2048x2048 in cache", rms_norm_residual, weighted_pair, (2048, 2048), set="cached"
    ),
)
