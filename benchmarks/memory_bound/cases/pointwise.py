"""Element by element: activations, layouts, concatenation, casts, dropout, optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make

F32, FP8 = torch.float32, torch.float8_e4m3fn
FP8_MAX = 448.0
DROPPED = 0.1


def matrix(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m),)


def two_matrices(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(n, m)


def pointwise_chain(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x * 1.5 + y).tanh() * y - x.sigmoid()


def geglu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * functional.gelu(gate)


def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    return functional.silu(gate) * value


def heads(make: Make, b: int, n: int, h: int, d: int) -> Arguments:
    return (make.normal(b, n, h, d),)


def rotary_inputs(make: Make, b: int, n: int, h: int, d: int) -> Arguments:
    return make.normal(b, n, h, d), make.normal(n, d), make.normal(n, d)


def rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x * cosine[:, None] + turned * sine[:, None]


def add_transposed(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous()


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


def channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2).contiguous()


def six(make: Make, n: int, m: int) -> Arguments:
    return tuple(make.normal(n, m) for _ in range(6))


def joined(*parts: Tensor) -> Tensor:
    return functional.gelu(torch.cat(parts, 1)) * 0.5


def dropout(x: Tensor) -> Tensor:
    return functional.dropout(x, DROPPED, training=True)


def dropped(inputs: Arguments, results: Sequence[Tensor]) -> str:
    """Return what is kept is scaled, about the right share is, and the gradient lost the same elements."""
    (x,) = inputs
    value, gradient = results
    kept = value != 0
    share, allowed = kept.double().mean().item(), 5 * (0.09 / x.numel()) ** 0.5 + 0.005
    if abs(share - (1 - DROPPED)) > allowed:
        return f"{share:.4f} kept"
    if not torch.allclose(value[kept].float(), x[kept].float() / (1 - DROPPED), rtol=1e-2):
        return "what is kept is not scaled"
    # an element that is zero by itself, or whose gradient is, says nothing
    return "" if ((gradient != 0) & ~kept & (x != 0)).sum() == 0 else "the gradient was dropped elsewhere"


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / FP8_MAX
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def quantized_well(inputs: Arguments, results: Sequence[Tensor]) -> str:
    """Codes are eager's, but for a few that division rounds to the neighbour."""
    codes, scales = quantized_rows(*inputs)
    found, found_scales = results
    if not torch.allclose(found_scales, scales, rtol=1e-6):
        return "other scales than eager's"
    differing = (found.view(torch.uint8) != codes.view(torch.uint8)).double().mean().item()
    if differing > 1e-3:
        return f"{differing:.2%} of the codes differ"
    far = (found.float() - codes.float()).abs() > codes.float().abs() * 0.126 + 2.0**-9
    return "a code is farther off than its neighbour" if far.any() else ""


def weight_only(make: Make, m: int, n: int, k: int) -> Arguments:
    weight = make.integers(n, k, below=127, dtype=torch.int8)
    return make.normal(m, k), weight, make.normal(n).abs() * 0.01 if make.values else make.normal(n)


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return x @ (weight.to(x.dtype) * scale[:, None]).t()


def images(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return (make.normal(n, c, h, w),)


def upsample(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def upsample_nearest(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def max_pool(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def average_pool(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 2)


def padded(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1, 1, 1)).relu()


def optimizer_state(make: Make, count: int, n: int, m: int) -> Arguments:
    def tensors() -> list[Tensor]:
        return [make.normal(n, m, dtype=F32) for _ in range(count)]

    second = tensors()
    if make.values:
        for moment in second:
            moment.square_()
    return tensors(), tensors(), tensors(), second


def adamw(params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor]) -> None:
    torch._foreach_mul_(params, 1 - 1e-3 * 0.01)
    torch._foreach_lerp_(first, grads, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, grads, grads, 0.001)
    denominators = torch._foreach_sqrt(second)
    torch._foreach_add_(denominators, 1e-8)
    torch._foreach_addcdiv_(params, first, denominators, -1e-3)


def to_f32(x: Tensor) -> Tensor:
    return x.float()


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias, approximate="tanh")


def biased(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(m)


CASES = (
    Case(
        name="pointwise chain 16384x4096",
        function=pointwise_chain,
        inputs=two_matrices,
        size=(16384, 4096),
        tiny=(9, 40),
    ),
    Case(name="GeGLU 8192x22016", function=geglu, inputs=matrix, size=(8192, 22016), tiny=(9, 40)),
    Case(name="SwiGLU 8192x14336", function=swiglu, inputs=two_matrices, size=(8192, 14336), tiny=(9, 40)),
    Case(
        name="rotary 8x2048x32x128",
        function=rotary,
        inputs=rotary_inputs,
        size=(8, 2048, 32, 128),
        tiny=(2, 5, 3, 8),
    ),
    Case(
        name="x + y.t() 8192x8192",
        function=add_transposed,
        inputs=two_matrices,
        size=(8192, 8192),
        tiny=(40, 40),
    ),
    Case(
        name="permute copy 64x56x56x256 to NCHW",
        function=channels_first,
        inputs=heads,
        size=(64, 56, 56, 256),
        tiny=(2, 5, 4, 9),
    ),
    Case(name="cat of 6 + pointwise 8192x1024", function=joined, inputs=six, size=(8192, 1024), tiny=(7, 20)),
    Case(
        name="dropout fwd+bwd 16384x4096",
        function=dropout,
        inputs=matrix,
        size=(16384, 4096),
        tiny=(90, 40),
        train=True,
        check=dropped,
        random=True,
    ),
    Case(
        name="fp8 quantise rows 16384x4096",
        function=quantized_rows,
        inputs=matrix,
        size=(16384, 4096),
        tiny=(9, 40),
        check=quantized_well,
    ),
    Case(
        name="int8 weight-only linear M=16 4096 to 11008",
        function=int8_linear,
        inputs=weight_only,
        size=(16, 11008, 4096),
        tiny=(3, 24, 40),
    ),
    Case(
        name="upsample bilinear 16x64x128x128",
        function=upsample,
        inputs=images,
        size=(16, 64, 128, 128),
        tiny=(1, 2, 6, 5),
    ),
    Case(
        name="max-pool 64x64x112x112",
        function=max_pool,
        inputs=images,
        size=(64, 64, 112, 112),
        tiny=(1, 2, 12, 10),
    ),
    Case(
        name="AdamW over 50 tensors f32",
        function=adamw,
        inputs=optimizer_state,
        size=(50, 1024, 1024),
        tiny=(5, 8, 9),
        mutates=(0, 2, 3),
    ),
    Case(
        name="transpose copy 8192x8192",
        function=transposed,
        inputs=matrix,
        size=(8192, 8192),
        tiny=(20, 30),
        set="more",
    ),
    Case(
        name="heads first 16x2048x32x64",
        function=heads_first,
        inputs=heads,
        size=(16, 2048, 32, 64),
        tiny=(2, 5, 4, 8),
        set="more",
    ),
    Case(
        name="int8 weight-only linear M=16 8192 to 28672",
        function=int8_linear,
        inputs=weight_only,
        size=(16, 28672, 8192),
        tiny=(3, 24, 40),
        set="more",
    ),
    Case(
        name="int8 weight-only linear M=1 8192 to 28672",
        function=int8_linear,
        inputs=weight_only,
        size=(1, 28672, 8192),
        tiny=(1, 24, 40),
        set="more",
    ),
    Case(
        name="upsample nearest 16x64x128x128",
        function=upsample_nearest,
        inputs=images,
        size=(16, 64, 128, 128),
        tiny=(1, 2, 6, 5),
        set="more",
    ),
    Case(
        name="average pool 64x64x112x112",
        function=average_pool,
        inputs=images,
        size=(64, 64, 112, 112),
        tiny=(1, 2, 12, 10),
        set="more",
    ),
    Case(
        name="padding+ReLU 64x64x112x112",
        function=padded,
        inputs=images,
        size=(64, 64, 112, 112),
        tiny=(1, 2, 12, 10),
        set="more",
    ),
    Case(
        name="cast to f32 16384x8192",
        function=to_f32,
        inputs=matrix,
        size=(16384, 8192),
        tiny=(9, 40),
        set="more",
    ),
    Case(
        name="bias+GeLU 16384x8192",
        function=bias_gelu,
        inputs=biased,
        size=(16384, 8192),
        tiny=(9, 40),
        set="more",
    ),
    Case(
        name="GeGLU 65537x2730", function=geglu, inputs=matrix, size=(65537, 2730), tiny=(9, 38), set="more"
    ),
    Case(
        name="SwiGLU 2048x2048 in cache",
        function=swiglu,
        inputs=two_matrices,
        size=(2048, 2048),
        tiny=(9, 40),
        set="cached",
    ),
    Case(
        name="rotary 1x2048x16x128 in cache",
        function=rotary,
        inputs=rotary_inputs,
        size=(1, 2048, 16, 128),
        tiny=(2, 5, 3, 8),
        set="cached",
    ),
    Case(
        name="transpose copy 2048x2048 in cache",
        function=transposed,
        inputs=matrix,
        size=(2048, 2048),
        tiny=(20, 30),
        set="cached",
    ),
)
