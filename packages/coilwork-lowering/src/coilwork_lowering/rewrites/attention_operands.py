"""Operands of `scaled_dot_product_attention` that its kernels refuse, laid out so that they take them.

One head of keys for all heads of queries, as multi-query models have it, and a mask whose last dimension is
expanded send the operator to its fallback: products, a softmax and products again, of `f32` and in memory.
Keys and values are small beside the scores, and a boolean mask that is one number per row hides all of it or
nothing: no kernel has to see it.

Rows of which everything is hidden are zeros in the fallback. Kernels differ in that, so such rows are filled
with zeros here.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F

from coilwork_lowering.rewrites.attention import pays
from coilwork_lowering.rewrites.condition import (
    Condition,
    dtype_among,
    equals,
    has_rank,
    same_dtype,
    same_sizes,
)
from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.rewrites.pattern import call, either, tensor, value
from coilwork_lowering.rewrites.rewrite import Rewrite
from coilwork_lowering.torch_compat.sizes import surely

_HEADS, _LAST = 1, 3

_CALLED: Final = call(
    "scaled_dot_product_attention",
    query=tensor("query"),
    key=tensor("key"),
    value=tensor("values"),
    attn_mask=either(tensor("mask"), value("nothing")),
    dropout_p=value("p"),
    is_causal=value("causal"),
    scale=value("scale"),
)


def _shares_a_head(match: Match) -> bool:
    heads = match.value("query").shape[_HEADS]
    return surely(match.value("key").shape[_HEADS] == 1) and isinstance(heads, int) and heads > 1


def _heads_agree(match: Match) -> bool:
    query, key, values = (match.value(name) for name in ("query", "key", "values"))
    alike = same_sizes(key.shape[:-1], values.shape[:-1]) and same_sizes(query.shape[-1:], values.shape[-1:])
    return (
        alike
        and same_sizes(query.shape[:1], key.shape[:1])
        and (same_sizes(query.shape[1:2], key.shape[1:2]) or _shares_a_head(match))
    )


def _hides_rows(mask: Any) -> bool:
    """Tell if `mask` is one boolean per row, expanded."""
    expanded = surely(mask.stride(_LAST) == 0) and surely(mask.shape[_LAST] > 1)
    return bool(expanded and mask.dtype is torch.bool)


def _mask_fits(match: Match) -> bool:
    """Tell whether the mask, if there is one, has the scores' shape or broadcasts to it, and no gradient.

    With gradients, kernels that see a mask may make NaN of rows that it hides.
    """
    if "mask" not in match.captures:
        return True
    mask, query, key = (match.value(name) for name in ("mask", "query", "key"))
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.requires_grad:
        return False
    wanted = (*query.shape[:-1], key.shape[-2])
    if not _hides_rows(mask) and (_is_trained(match) or surely(mask.stride(_LAST) == 0)):
        return False
    fits = all(surely(n == 1) or surely(n == m) for n, m in zip(mask.shape, wanted, strict=True))
    return fits and mask.dtype in (torch.bool, query.dtype)


def _is_trained(match: Match) -> bool:
    return torch.is_grad_enabled() and any(
        match.value(name).requires_grad for name in ("query", "key", "values")
    )


def _result_is_dense(match: Match) -> bool:
    return bool(match.result.is_contiguous())


def _pays(match: Match) -> bool:
    query, key = match.value("query"), match.value("key")
    return pays(match, (*query.shape[:-1], key.shape[-2]))


def _is_refused(match: Match) -> bool:
    return _shares_a_head(match) or ("mask" in match.captures and _hides_rows(match.value("mask")))


def _laid_out(query: Any, key: Any, values: Any, mask: Any, p: Any, causal: Any, scale: Any, **_: Any) -> Any:
    heads = query.value.shape[_HEADS]
    if key.value.shape[_HEADS] != heads:
        key, values = (each.expand(-1, heads, -1, -1).contiguous() for each in (key, values))
    seen = None if mask is not None and _hides_rows(mask.value) else mask
    found = F.scaled_dot_product_attention(
        query, key, values, attn_mask=seen, dropout_p=p, is_causal=causal, scale=scale
    ).contiguous()
    return found if mask is None else found.masked_fill(_hidden_rows(mask), 0.0)


def _hidden_rows(mask: Any) -> Any:
    """True for rows of which `mask` hides everything."""
    if _hides_rows(mask.value):
        return mask.narrow(_LAST, 0, 1).logical_not()
    hidden = mask.logical_not() if mask.value.dtype is torch.bool else mask == float("-inf")
    return hidden.all(dim=_LAST, keepdim=True)


ATTENTION_OPERANDS: Final = Rewrite(
    name="attention-operands",
    doc=(
        "Operands of scaled_dot_product_attention that its kernels refuse are laid out so that they take "
        "them: scores stay on chip."
    ),
    pattern=_CALLED,
    replacement=_laid_out,
    conditions=(
        has_rank("query", 4),
        has_rank("key", 4),
        has_rank("values", 4),
        same_dtype("query", "key", "values"),
        # what kernels round to these types the fallback computes in f32
        dtype_among("query", torch.bfloat16, torch.float16),
        equals("p", 0),
        Condition(name="heads agree, or keys have one", holds=_heads_agree),
        Condition(name="the mask broadcasts to the scores", holds=_mask_fits),
        Condition(name="kernels refuse the operands", holds=_is_refused),
        Condition(name="a dense result", holds=_result_is_dense),
        Condition(name="scores are large", holds=_pays),
    ),
    level="captured",
    inexact=True,
)
