"""Attention by `scaled_dot_product_attention`, written out, and by `flex_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.compute_bound.case import Case, Program, draw

Shape = tuple[int, int, int, int]
_TALL: Final[Shape] = (2, 16, 4096, 64)
_WIDE: Final[Shape] = (4, 16, 2048, 128)

# ---- Operators ----


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def attend_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attend_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    off = i[:, None] - i
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(off >= 0) & (off < 512))


def attend_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


# ---- Written out ----


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def _hide_later(scores: Tensor) -> Tensor:
    i = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill(i > i[:, None], -math.inf)


def write_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(_scores(q, k), -1) @ v


def write_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(_hide_later(50 * torch.tanh(_scores(q, k) / 50)), -1) @ v


def write_alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    return torch.softmax(_hide_later(_scores(q, k) + slopes[:, None, None] * (i - i[:, None])), -1) @ v


def write_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    bias = table[(i - i[:, None]).clamp(-128, 127) + 128].permute(2, 0, 1)
    return torch.softmax(_scores(q, k) + bias, -1) @ v


def write_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(_scores(q, k).masked_fill(~mask[:, None, None], -math.inf), -1) @ v


# ---- Cases ----


def build(function: Callable[..., Any], shape: Shape, *, keys: int = 0, heads: int = 0) -> Program:
    """Return a program of queries of `shape`, and of `keys` keys of `heads` heads, or as many as queries."""
    batch, all_heads, queries, size = shape
    key = (batch, heads or all_heads, keys or queries, size)
    return Program(function=function, given=(draw(*shape), draw(*key), draw(*key)))


def build_more(function: Callable[..., Any], shape: Shape, *more: int) -> Program:
    """Return a program that is given another value, too."""
    program = build(function, shape)
    return Program(function=function, given=(*program.given, draw(*more, scale=0.5)))


def build_alibi(shape: Shape) -> Program:
    slopes = torch.exp2(-(torch.arange(shape[1]) + 1) * 8.0 / shape[1]).bfloat16()
    return Program(function=write_alibi, given=(*build(write_alibi, shape).given, slopes))


def build_mask(shape: Shape) -> Program:
    lengths = torch.randint(shape[2] // 2, shape[2] + 1, (shape[0], 1))
    mask = torch.arange(shape[2]) < lengths
    return Program(function=write_mask, given=(*build(write_mask, shape).given, mask))


def build_flex(kind: str, shape: Shape, heads: int = 0) -> Program:
    """Return `flex_attention` of one kind of score and mask."""
    slopes = torch.exp2(-(torch.arange(shape[1]) + 1) * 8.0 / shape[1])
    documents = (torch.arange(shape[2]) * 7 // shape[2]).to(torch.int32)

    def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slopes[h] * (k - q)

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20)

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k <= 256)

    def document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (documents[q] == documents[k]) & (q >= k)

    score = {"alibi": alibi, "cap": cap}.get(kind)
    mask = {"window": window, "document": document}.get(kind, causal)
    device = str(slopes.device)
    blocks = (
        None if kind == "full" else create_block_mask(mask, None, None, shape[2], shape[2], device=device)
    )

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=bool(heads))

    return build(function, shape, heads=heads)


CASES: Final = (
    Case(name="sdpa-causal-64", build=partial(build, attend_causal, _TALL)),
    Case(name="sdpa-causal-128", build=partial(build, attend_causal, _WIDE)),
    Case(name="sdpa-full-128", build=partial(build, attend, _WIDE)),
    Case(name="sdpa-bias", build=partial(build_more, attend_with_bias, (4, 16, 1024, 64), 1, 16, 1024, 1024)),
    Case(name="sdpa-window", build=partial(build, attend_window, (2, 16, 2048, 64))),
    Case(name="sdpa-cross", build=partial(build, attend, (8, 8, 4096, 64), keys=77)),
    Case(
        name="sdpa-windows-49",
        build=partial(build_more, attend_with_bias, (2048, 3, 49, 32), 1, 3, 49, 49),
    ),
    Case(
        name="sdpa-windows-144",
        build=partial(build_more, attend_with_bias, (400, 16, 144, 32), 1, 16, 144, 144),
    ),
    Case(name="sdpa-patches", build=partial(build, attend, (64, 12, 197, 64))),
    Case(name="gqa-decode-8k", build=partial(build, attend_groups, (8, 32, 1, 128), keys=8192, heads=8)),
    Case(name="written-plain", build=partial(build, write_plain, (4, 16, 1024, 64))),
    Case(name="written-cap", build=partial(build, write_cap, _WIDE)),
    Case(name="written-alibi", build=partial(build_alibi, (2, 16, 2048, 64))),
    Case(name="written-bias", build=partial(build_more, write_bias, (4, 16, 1024, 64), 256, 16)),
    Case(name="written-mask", build=partial(build_mask, (8, 12, 1024, 64))),
    Case(name="flex-causal-64", build=partial(build_flex, "causal", _TALL), is_exact=False),
    Case(name="flex-causal-128", build=partial(build_flex, "causal", _WIDE), is_exact=False),
    Case(name="flex-full", build=partial(build_flex, "full", (2, 16, 2048, 128)), is_exact=False),
    Case(name="flex-window", build=partial(build_flex, "window", _TALL), is_exact=False),
    Case(name="flex-alibi", build=partial(build_flex, "alibi", _TALL), is_exact=False),
    Case(name="flex-cap", build=partial(build_flex, "cap", _TALL), is_exact=False),
    Case(name="flex-document", build=partial(build_flex, "document", _TALL), is_exact=False),
    Case(name="flex-gqa", build=partial(build_flex, "causal", _TALL, 4), is_exact=False),
    Case(name="flex-causal-64", build=partial(build_flex, "causal", _TALL), trains=True, is_exact=False),
    Case(name="flex-cap", build=partial(build_flex, "cap", (2, 16, 2048, 64)), trains=True, is_exact=False),
    Case(name="sdpa-causal-64", build=partial(build, attend_causal, _TALL), trains=True),
    Case(name="written-plain", build=partial(build, write_plain, (4, 16, 1024, 64)), trains=True),
    Case(name="written-cap", build=partial(build, write_cap, (2, 16, 1024, 128)), trains=True),
)
"""Cases of attention."""
