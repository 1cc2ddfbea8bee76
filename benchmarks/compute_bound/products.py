"""Products of matrices in 16 and 32 bits, with what precedes and follows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compute_bound.case import Case, Function, Program, draw, draw_weight

Activation = Callable[[Tensor], Tensor]
gelu: Final = partial(F.gelu, approximate="tanh")

# ---- Functions ----


def activate(activation: Activation, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return activation(F.linear(x, w, b))


def add_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def normalise_sum(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b) + r
    return y, F.layer_norm(y, y.shape[-1:])


def drop(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.dropout(F.linear(x, w, b), 0.1)


def keep_both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.silu(y)


def quantise_to_fp8(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def quantise_to_int8(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (y / scale).round().clamp(-127, 127).to(torch.int8), scale


def cap(x: Tensor, w: Tensor) -> Tensor:
    return 30 * torch.tanh(F.linear(x, w) / 30)


def gate(activation: Activation, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return activation(F.linear(x, w)) * F.linear(x, v)


def gate_halves(activation: Activation, x: Tensor, w: Tensor) -> Tensor:
    left, right = F.linear(x, w).chunk(2, -1)
    return activation(left) * right


def feed_forward(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return F.linear(gate(F.silu, x, w, v), u)


def adapt(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w) + 0.5 * F.linear(F.linear(x, a), b)


def normalise_root(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


def project_normalised(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return F.linear(normalise_root(x, g), w)


def project_layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:]), w, b)


def project_activated(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.silu(x), w)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def rotate_heads(
    x: Tensor, w: Tensor, cos: Tensor, sin: Tensor, *, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = F.linear(x, w).view(x.shape[0], 3, heads, -1).unbind(1)
    cos, sin = cos[:, None], sin[:, None]
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def project_apart(x: Tensor, q: Tensor, k: Tensor, v: Tensor, *, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    def split(w: Tensor) -> Tensor:
        return F.linear(x, w).view(2, x.shape[0] // 2, heads, -1).transpose(1, 2).contiguous()

    return split(q), split(k), split(v)


def scale_batches(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.bmm(x, y)) * 0.5


def cap_batches(x: Tensor, y: Tensor) -> Tensor:
    return 20 * torch.tanh(torch.bmm(x, y.mT) / 20)


def pass_gradient(g: Tensor, w: Tensor, h: Tensor) -> Tensor:
    return (g @ w) * (h > 0)


def find_weight_gradient(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return g.t() @ x, g.sum(0)


def find_activated_gradients(g: Tensor, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.where(h > 0, g, torch.zeros_like(g))
    return d.t() @ x, d.sum(0)


# ---- Cases ----


def linear(
    function: Function,
    m: int,
    n: int,
    k: int,
    more: str = "",
    dtype: torch.dtype = torch.bfloat16,
) -> Callable[[], Program]:
    """Return what builds a program of `x [m, k]`, a weight `[n, k]`, and more: `b`, a bias; `r`, a value like
    the result; `w`, another weight.
    """

    def build() -> Program:
        shapes = {"b": (n,), "r": (m, n)}
        others = [
            draw_weight(n, k, dtype=dtype) if one == "w" else draw(*shapes[one], dtype=dtype) for one in more
        ]
        return Program(
            function=function, given=(draw(m, k, dtype=dtype), draw_weight(n, k, dtype=dtype), *others)
        )

    return build


def given(
    function: Function, *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> Callable[[], Program]:
    """Return what builds a program of tensors of `shapes`, all but the first of which are weights."""

    def build() -> Program:
        first, *others = shapes
        return Program(
            function=function,
            given=(draw(*first, dtype=dtype), *(draw_weight(*shape, dtype=dtype) for shape in others)),
        )

    return build


_PLAIN: Final = (
    (1, 4096, 4096),
    (4, 11008, 4096),
    (64, 4096, 4096),
    (256, 4096, 11008),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (16384, 4096, 1024),
    (4095, 4097, 4093),
    (1000, 1001, 4096),
)

CASES: Final = (
    *(Case(name=f"mm-{m}x{n}x{k}", build=given(torch.mm, (m, k), (k, n))) for m, n, k in _PLAIN),
    Case(name="addmm-1024", build=linear(F.linear, 1024, 3072, 768, "b")),
    Case(name="bmm-64x512", build=given(torch.bmm, (64, 512, 128), (64, 128, 512))),
    Case(name="baddbmm-64x256", build=given(torch.baddbmm, (64, 256, 256), (64, 256, 128), (64, 128, 256))),
    Case(name="relu-4096", build=linear(partial(activate, torch.relu), 4096, 4096, 4096, "b")),
    Case(name="gelu-768", build=linear(partial(activate, gelu), 8192, 3072, 768, "b")),
    Case(name="silu-16384", build=linear(partial(activate, F.silu), 16384, 4096, 1024, "b")),
    Case(name="silu-256", build=linear(partial(activate, F.silu), 256, 4096, 4096, "b")),
    Case(name="relu-odd-2047", build=linear(partial(activate, torch.relu), 2047, 2051, 2049, "b")),
    Case(name="residual-768", build=linear(add_residual, 8192, 768, 3072, "br")),
    Case(name="residual-4096", build=linear(add_residual, 4096, 4096, 4096, "br")),
    Case(name="norm-1024", build=linear(normalise_sum, 8192, 1024, 1024, "br")),
    Case(name="dropout-1024", build=linear(drop, 4096, 4096, 1024, "b"), is_random=True),
    Case(name="both-1024", build=linear(keep_both, 8192, 4096, 1024, "b")),
    Case(name="to-fp8-4096", build=linear(quantise_to_fp8, 4096, 4096, 2048)),
    Case(name="to-int8-4096", build=linear(quantise_to_int8, 4096, 4096, 2048)),
    Case(name="cap-50304", build=linear(cap, 2048, 50304, 1024)),
    Case(name="swiglu-64", build=linear(partial(gate, F.silu), 64, 11008, 4096, "w")),
    Case(name="swiglu-2048", build=linear(partial(gate, F.silu), 2048, 8192, 2048, "w")),
    Case(name="swiglu-4096", build=linear(partial(gate, F.silu), 4096, 11008, 4096, "w")),
    Case(name="geglu-640", build=linear(partial(gate, F.gelu), 8192, 2560, 640, "w")),
    Case(name="geglu-halves", build=linear(partial(gate_halves, gelu), 4096, 10240, 1280)),
    Case(
        name="feed-forward-2048",
        build=given(feed_forward, (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632)),
    ),
    Case(name="lora-4096", build=given(adapt, (4096, 4096), (4096, 4096), (16, 4096), (4096, 16))),
    Case(name="lora-32", build=given(adapt, (32, 4096), (4096, 4096), (16, 4096), (4096, 16))),
    Case(
        name="rotary-2048",
        build=given(partial(rotate_heads, heads=16), (2048, 2048), (6144, 2048), (2048, 128), (2048, 128)),
    ),
    Case(
        name="qkv-apart",
        build=given(partial(project_apart, heads=16), (4096, 1024), (1024, 1024), (1024, 1024), (1024, 1024)),
    ),
    Case(name="rms-prologue", build=given(project_normalised, (4096, 2048), (2048,), (6144, 2048))),
    Case(name="rms-prologue-16", build=given(project_normalised, (16, 4096), (4096,), (6144, 4096))),
    Case(name="layer-norm-prologue", build=linear(project_layer_norm, 8192, 2304, 768, "b")),
    Case(name="silu-prologue", build=linear(project_activated, 4096, 1024, 4096)),
    Case(name="bmm-relu-64", build=given(scale_batches, (1024, 64, 64), (1024, 64, 64))),
    Case(name="bmm-relu-128", build=given(scale_batches, (1024, 128, 128), (1024, 128, 128))),
    Case(name="bmm-64", build=given(torch.bmm, (1024, 64, 64), (1024, 64, 64))),
    Case(name="bmm-cap", build=given(cap_batches, (64, 1024, 64), (64, 1024, 64))),
    Case(name="f32-2048", build=linear(partial(activate, F.relu), 2048, 2048, 2048, "b", torch.float32)),
    Case(
        name="tf32-4096",
        build=linear(partial(activate, F.relu), 4096, 4096, 4096, "b", torch.float32),
        tf32=True,
    ),
    Case(name="f16-gelu", build=linear(partial(activate, F.gelu), 4096, 4096, 1024, "b", torch.float16)),
    Case(name="f16-512", build=linear(partial(activate, F.relu), 512, 512, 512, "b", torch.float16)),
    Case(name="complex-1024", build=given(torch.mm, (1024, 1024), (1024, 1024), dtype=torch.complex64)),
    Case(name="input-gradient", build=given(pass_gradient, (8192, 768), (768, 3072), (8192, 3072))),
    Case(name="weight-gradient", build=given(find_weight_gradient, (8192, 1024), (8192, 4096))),
    Case(
        name="relu-weight-gradient",
        build=given(find_activated_gradients, (8192, 3072), (8192, 3072), (8192, 768)),
    ),
)
"""Cases of products."""
