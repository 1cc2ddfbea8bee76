"""Data moved from one order to another on the way through small computations, as models and input pipelines
do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make
from benchmarks.memory_bound.cases.inputs import normal, normal_f32

F16, F32 = torch.float16, torch.float32


def pictures(make: Make, *shape: int) -> Arguments:
    channels = shape[-1]
    return (
        make.integers(*shape, below=256, dtype=torch.uint8),
        make.normal(channels, dtype=F32),
        make.near_one(channels, dtype=F32),
    )


def standardized_pictures(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return ((x.float() / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


def rolled(x: Tensor) -> Tensor:
    return torch.roll(x, (37, -101), (0, 1))


def flipped(x: Tensor) -> Tensor:
    return x.flip(-1)


def lower_triangle(x: Tensor) -> Tensor:
    return x.tril(-3)


def lower_triangle_bytes(x: Tensor) -> int:
    n = x.shape[-1]
    return n * (n - 1) // 2 * x.element_size()


def shuffled_pixels(x: Tensor) -> Tensor:
    return functional.pixel_shuffle(x, 2)


def reflected(x: Tensor) -> Tensor:
    return functional.pad(x, (3, 3, 3, 3), mode="reflect")


def two_layouts(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return (
        make.normal(n, c, h, w),
        make.normal(n, h, w, c).permute(0, 3, 1, 2),
        make.normal(c, dtype=F32),
        make.near_one(c, dtype=F32),
    )


def batch_norm_sums(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    shape = (-1, 1, 1)
    normal = (x - mean.view(shape)) * rstd.view(shape)
    return dy.sum((0, 2, 3), dtype=F32), (dy * normal).sum((0, 2, 3))


def squared_error(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return functional.mse_loss(x.float(), y.float())


def turned_matrices(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(m, n)


def turned_dots(x: Tensor, y: Tensor) -> Tensor:
    return (x * y.t()).sum(-1, dtype=F32)


def turned_softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x + y.t(), -1)


def middle_dots(x: Tensor, y: Tensor) -> Tensor:
    return (x * y.permute(2, 0, 1)).sum((0, 2), dtype=F32)


def sums_around(x: Tensor) -> Tensor:
    return x.sum((0, 2), dtype=F32)


def turned_cubes(make: Make, a: int, b: int, c: int) -> Arguments:
    return make.normal(a, b, c), make.normal(b, c, a)


def every_third(x: Tensor) -> Tensor:
    return x[..., 1].sum((0, 1), dtype=F32)


def two_widths(make: Make, n: int, a: int, b: int) -> Arguments:
    return make.normal(n, a), make.normal(n, b)


def side_by_side(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y.relu()], dim=-1)


def two_matrices(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(n, m)


def interleaved(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x, y], dim=-1).flatten(-2)


def repeated_heads(x: Tensor) -> Tensor:
    b, heads, length, width = x.shape
    return x[:, :, None].expand(b, heads, 4, length, width).reshape(b, heads * 4, length, width)


def split_heads(x: Tensor) -> Tensor:
    b, length, width = x.shape
    return x.view(b, length, 3, width // 192, 64).permute(2, 0, 3, 1, 4).contiguous()


def rotary_inputs(make: Make, b: int, length: int, heads: int, width: int) -> Arguments:
    angles = make.normal(length, width // 2, dtype=F32)
    return make.normal(b, length, heads, width), angles.cos(), angles.sin()


def interleaved_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def conditioned(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(n, c, h, w), make.normal(c), make.normal(n, c)


def add_conditions(x: Tensor, bias: Tensor, time: Tensor) -> Tensor:
    return functional.silu(x + bias[:, None, None] + time[:, :, None, None])


def normed_channels(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(n, c, h, w), make.near_one(c), make.normal(c)


def layer_norm_of_channels(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    normed = functional.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias)
    return normed.permute(0, 3, 1, 2).contiguous()


CASES = (
    Case(
        name="standardized pictures 64x512x512x3 u8",
        function=standardized_pictures,
        inputs=pictures,
        size=(64, 512, 512, 3),
        tiny=(2, 5, 7, 3),
        set="other",
    ),
    Case(
        name="roll 8192x8192", function=rolled, inputs=normal, size=(8192, 8192), tiny=(70, 130), set="other"
    ),
    Case(
        name="flip 8192x8192", function=flipped, inputs=normal, size=(8192, 8192), tiny=(7, 13), set="other"
    ),
    Case(
        name="tril 8192x8192 f32",
        function=lower_triangle,
        inputs=normal_f32,
        size=(8192, 8192),
        tiny=(13, 13),
        reads=lower_triangle_bytes,
        set="other",
    ),
    Case(
        name="pixel shuffle 16x256x128x128",
        function=shuffled_pixels,
        inputs=normal,
        size=(16, 256, 128, 128),
        tiny=(1, 8, 3, 5),
        set="other",
    ),
    Case(
        name="reflected edges 64x64x112x112",
        function=reflected,
        inputs=normal,
        size=(64, 64, 112, 112),
        tiny=(1, 2, 7, 9),
        set="other",
    ),
    Case(
        name="cat of 3000 and 5000 columns",
        function=side_by_side,
        inputs=two_widths,
        size=(16384, 3000, 5000),
        tiny=(5, 3, 7),
        set="other",
    ),
    Case(
        name="interleaved 8192x8192",
        function=interleaved,
        inputs=two_matrices,
        size=(8192, 8192),
        tiny=(5, 7),
        set="other",
    ),
    Case(
        name="repeated heads 8x8x2048x128",
        function=repeated_heads,
        inputs=normal,
        size=(8, 8, 2048, 128),
        tiny=(2, 2, 5, 8),
        set="other",
    ),
    Case(
        name="queries, keys, values 32x1024x3072",
        function=split_heads,
        inputs=normal,
        size=(32, 1024, 3072),
        tiny=(2, 5, 192),
        set="other",
    ),
    Case(
        name="rotary of neighbours 8x2048x32x128",
        function=interleaved_rotary,
        inputs=rotary_inputs,
        size=(8, 2048, 32, 128),
        tiny=(2, 5, 3, 8),
        set="other",
    ),
    Case(
        name="conditions+SiLU 32x320x64x64",
        function=add_conditions,
        inputs=conditioned,
        size=(32, 320, 64, 64),
        tiny=(2, 3, 5, 7),
        set="other",
    ),
    Case(
        name="layer norm of channels 64x96x112x112",
        function=layer_norm_of_channels,
        inputs=normed_channels,
        size=(64, 96, 112, 112),
        tiny=(2, 5, 7, 9),
        set="other",
    ),
    # sums of two layouts: neighbours of one operand are of one result, those of the other of several
    *(
        Case(
            name=f"batch norm sums, two layouts {'x'.join(map(str, size))}",
            function=batch_norm_sums,
            inputs=two_layouts,
            size=size,
            tiny=(3, 5, 4, 7),
            set="other",
        )
        for size in ((64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14))
    ),
    Case(
        name="squared error, two layouts 64x256x56x56",
        function=squared_error,
        inputs=two_layouts,
        size=(64, 256, 56, 56),
        tiny=(3, 5, 4, 7),
        set="other",
    ),
    Case(
        name="dots with turned rows 8192x8192",
        function=turned_dots,
        inputs=turned_matrices,
        size=(8192, 8192),
        tiny=(7, 13),
        set="other",
    ),
    Case(
        name="softmax of x + y.t() 8192x4096",
        function=turned_softmax,
        inputs=turned_matrices,
        size=(8192, 4096),
        tiny=(7, 13),
        set="other",
    ),
    Case(
        name="sums around a kept axis 512x256x512",
        function=middle_dots,
        inputs=turned_cubes,
        size=(512, 256, 512),
        tiny=(6, 5, 7),
        set="other",
    ),
    # rows of results have runs of neighbours: of 16 bytes, and of a line
    *(
        Case(
            name=f"sums around a kept axis of one operand {'x'.join(map(str, size))}",
            function=sums_around,
            inputs=normal,
            size=size,
            tiny=(6, 5, 8),
            set="other",
        )
        for size in ((32768, 256, 8), (4096, 256, 64))
    ),
    Case(
        name="column sums of every third 256x512x1024x3",
        function=every_third,
        inputs=normal,
        size=(256, 512, 1024, 3),
        tiny=(3, 4, 6, 3),
        set="other",
    ),
)
