"""Rewrites that produce `scaled_dot_product_attention` and operands its fused kernels accept.

`ATTENTIONS` match attention written out, `softmax(q @ k.T * scale + mask) @ v`, as Hugging Face's `eager`
attention and plain code spell it. They work on captured graphs, before autograd, so one match serves
inference and training. The fused operator does not round scores in between, hence numerics `fast`. A row that
-inf masks entirely is NaN in the written form and zero in the operator's, so the replacement puts NaN there.

`ATTENTION_OPERANDS` lays operands out that fused kernels refuse: one head of keys for all heads of queries
(multi-query models), and a mask whose last dimension is expanded. Without it such calls run as products and a
softmax of `f32` in memory. Rows with everything masked are filled with zeros, as the fallback does; the
kernels differ there.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch
import torch.nn.functional as F

from coilwork_lowering.rewrites.rewrite import (
    Call,
    Condition,
    Match,
    Pattern,
    Rewrite,
    call,
    dtype_among,
    either,
    equals,
    has_rank,
    same_dtype,
    same_sizes,
    tensor,
    value,
)
from coilwork_lowering.torch_compat.flex_attention import attend_with_cap
from coilwork_lowering.torch_compat.sizes import hint_of, is_surely

# written-out attention


_SCORES: Final = call("matmul", self=tensor("query"), other=tensor("key"))
_SCALED: Final = either(
    call("mul", self=_SCORES, other=value("scale"), commutes=("self", "other")),
    call("div", self=_SCORES, other=value("divisor")),
    _SCORES,
)
_DIVIDED: Final = either(
    call("mul", self=_SCALED, other=value("cap_scale"), commutes=("self", "other")),
    call("div", self=_SCALED, other=value("cap_divisor")),
)
_CAPPED: Final = call("mul", self=call("tanh", self=_DIVIDED), other=value("cap"), commutes=("self", "other"))


def _match_masked(scores: Pattern) -> Pattern:
    """`scores`, perhaps with a mask."""
    return either(
        call(
            "add",
            self=call("add", self=scores, other=tensor("bias"), commutes=("self", "other")),
            other=tensor("mask"),
            commutes=("self", "other"),
        ),
        call("add", self=scores, other=tensor("mask"), commutes=("self", "other")),
        call("masked_fill", self=scores, mask=tensor("hidden"), value=value("fill")),
        call("where", condition=tensor("seen"), self=scores, other=value("fill")),
        call("where", condition=tensor("hidden"), self=value("fill"), other=scores),
        scores,
    )


def _match_weights(scores: Pattern) -> Pattern:
    """Return the softmax of `scores`, perhaps in a wider type, and back in theirs."""
    wide = either(scores, call("to", self=scores, dtype=value("wider")))
    softmax = call("softmax", self=wide, dim=value("dim"), dtype=value("softmax_dtype"))
    return either(softmax, call("to", self=softmax, dtype=value("narrow")))


def _match_attention(weights: Pattern) -> Call:
    return call("matmul", self=weights, other=tensor("values"))


def _match_dropout(weights: Pattern) -> Pattern:
    return either(
        call("dropout", self=weights, p=value("p"), training=value("training"), inplace=value("inplace")),
        weights,
    )


def _dropout_probability(match: Match) -> float:
    p = match.captures.get("p")
    return float(p) if match.captures.get("training") and isinstance(p, int | float) else 0.0


def _scale_is_known(match: Match) -> bool:
    scale, divisor = match.captures.get("scale"), match.captures.get("divisor")
    if scale is None and divisor is None:
        return True
    return type(scale) in (int, float) or (type(divisor) in (int, float) and divisor != 0)


def _is_last(match: Match) -> bool:
    return match.captures["dim"] in (-1, match.value("query").dim() - 1)


def _batches_agree(match: Match) -> bool:
    query, key, values = (match.value(name) for name in ("query", "key", "values"))
    return same_sizes(query.shape[:-2], key.shape[:-2]) and same_sizes(query.shape[:-2], values.shape[:-2])


def _types_agree(match: Match) -> bool:
    """Tell if the softmax is in a type that holds the scores, and what follows is in the operands' own."""
    own = match.value("query").dtype
    wide = match.captures.get("softmax_dtype") or match.captures.get("wider") or own
    result = match.captures.get("narrow") or wide
    return wide in (own, torch.float32, "torch.float32") and result in (own, str(own))


def _scores_shape(match: Match) -> tuple[Any, ...]:
    query, key = match.value("query"), match.value("key")
    return (*query.shape[:-1], key.shape[-1])


def _mask_fits(match: Match) -> bool:
    """Tell if masks broadcast to the scores, without making them larger."""
    wanted = _scores_shape(match)
    for name in ("mask", "bias", "hidden", "seen"):
        if name not in match.captures:
            continue
        mask = match.value(name)
        if not isinstance(mask, torch.Tensor) or mask.dim() > len(wanted):
            return False
        if not all(is_surely(n == 1) or is_surely(n == m) for n, m in zip(mask.shape[::-1], wanted[::-1])):
            return False
        own = match.value("query").dtype if name in ("mask", "bias") else torch.bool
        if mask.dtype != own:
            return False
    return True


def _fill_hides(match: Match) -> bool:
    """Tell if what masked scores become hides them, whatever they are: scores vanish beside it."""
    fill = match.captures.get("fill")
    if "hidden" not in match.captures and "seen" not in match.captures:
        return True
    return isinstance(fill, float) and (fill == float("-inf") or fill <= -1e30)


def _has_no_dropout(match: Match) -> bool:
    return _dropout_probability(match) == 0.0


def _has_dropout(match: Match) -> bool:
    return 0.0 < _dropout_probability(match) < 1.0 and match.captures["inplace"] is False


def _build_mask(added: Any, bias: Any, hidden: Any, seen: Any, fill: Any, dtype: torch.dtype) -> Any:
    """Return the mask that the operator takes, of what is added to scores."""
    if added is not None:
        return _propagate_masked_rows(added if bias is None else bias + added)
    if hidden is None and seen is None:
        return None
    shown = seen if hidden is None else hidden.logical_not()
    # A finite number leaves a row of which everything is masked with equal weights.
    mask = torch.where(shown, shown.new_zeros((), dtype=dtype), fill)
    return _propagate_masked_rows(mask) if fill == float("-inf") else mask


def _flatten_to_matrix(mask: Any) -> Any:
    """`mask`, or a matrix of one row where it has fewer dimensions, which the operator refuses."""
    return mask if mask is None or mask.value.dim() >= 2 else mask.expand(1, -1 if mask.value.dim() else 1)


def _propagate_masked_rows(mask: Any) -> Any:
    """`mask` with NaN in rows that hide everything. It has no heads, mostly: that costs little beside the
    scores.
    """
    nowhere = (mask == float("-inf")).all(dim=-1, keepdim=True)
    return mask.masked_fill(nowhere, float("nan"))


def _attend(
    query: Any,
    key: Any,
    values: Any,
    scale: Any,
    divisor: Any,
    mask: Any,
    bias: Any,
    hidden: Any,
    seen: Any,
    fill: Any,
    p: Any,
    training: Any,
    **rest: Any,
) -> Any:
    shown = _flatten_to_matrix(_build_mask(mask, bias, hidden, seen, fill, query.value.dtype))
    factor = float(scale) if scale is not None else 1.0 if divisor is None else 1.0 / divisor
    # Kernels take four dimensions: of three, the first becomes the batch, with one head.
    three = query.value.dim() == 3
    q, k, v = (t.unsqueeze(1) if three else t for t in (query, key.transpose(-2, -1), values))
    if three and shown is not None and shown.value.dim() == 3:
        shown = shown.unsqueeze(1)
    result = F.scaled_dot_product_attention(
        q, k, v, attn_mask=shown, dropout_p=float(p) if training and p else 0.0, scale=factor
    )
    result = result.squeeze(1) if three else result
    # The kernel's result may lie in memory as it likes, a matrix product's was dense.
    return result.contiguous()


def are_scores_large(match: Match, scores: tuple[Any, ...]) -> bool:
    """Tell if `scores`, so many, are large enough to be worth keeping on chip. Sizes that are not known count
    as large.
    """
    query, figures = match.value("query"), match.machine("query").libraries
    trained = torch.is_grad_enabled() and any(
        match.value(name).requires_grad for name in ("query", "key", "values")
    )
    sizes = [hint_of(size) for size in scores]
    known = [size for size in sizes if size is not None]
    least = figures.trained_attention_bytes if trained else figures.attention_bytes
    return len(known) < len(sizes) or bool(prod(known) * query.element_size() >= least)


def _fusion_pays(match: Match) -> bool:
    return are_scores_large(match, _scores_shape(match))


FUSION_PAYS: Final = Condition(name="scores are large", holds=_fusion_pays)

_CONDITIONS: Final = (
    FUSION_PAYS,
    has_rank("query", 3, 4),
    has_rank("key", 3, 4),
    has_rank("values", 3, 4),
    same_dtype("query", "key", "values"),
    dtype_among("query", torch.float32, torch.bfloat16, torch.float16),
    Condition(name="the scale is a number known now", holds=_scale_is_known),
    Condition(name="softmax is over the last dimension", holds=_is_last),
    Condition(name="batch dimensions are equal", holds=_batches_agree),
    Condition(name="the softmax's type holds the scores", holds=_types_agree),
    Condition(name="masks broadcast to the scores", holds=_mask_fits),
    Condition(name="what fills masked places hides them", holds=_fill_hides),
)
_WITHOUT: Final = Condition(name="no dropout", holds=_has_no_dropout)
_WITH: Final = Condition(name="dropout of a part", holds=_has_dropout)

ATTENTION: Final = Rewrite(
    name="attention",
    doc="Attention written out becomes scaled_dot_product_attention, which keeps the scores on chip.",
    pattern=_match_attention(_match_dropout(_match_weights(_match_masked(_SCALED)))),
    replacement=_attend,
    conditions=(*_CONDITIONS, _WITHOUT),
    level="captured",
    inexact=True,
)

ATTENTION_WITH_DROPOUT: Final = Rewrite(
    name="attention-with-dropout",
    doc="The same with dropout of the weights, where random numbers need not be eager's.",
    pattern=_match_attention(_match_dropout(_match_weights(_match_masked(_SCALED)))),
    replacement=_attend,
    conditions=(*_CONDITIONS, _WITH),
    level="captured",
    inexact=True,
    random=True,
)


def _is_trained_without_masks(match: Match) -> bool:
    """Tell if gradients are asked for, and none of what is added to scores."""
    masks = [match.captures.get(name) for name in ("mask", "bias")]
    values = [match.vocabulary.value(one) for one in masks if one is not None]
    return _is_trained(match) and not any(one.requires_grad for one in values)


def _has_known_cap(match: Match) -> bool:
    numbers = [match.captures.get(name) for name in ("cap", "cap_scale", "cap_divisor")]
    return all(type(n) in (int, float) and n != 0 for n in numbers if n is not None)


# Kernels of attention keep the sums of a head's gradients on chip; of larger heads, products are faster.
_LARGEST_CAPPED_HEAD: Final = 128


def _has_small_heads(match: Match) -> bool:
    sizes = (match.vocabulary.value(match.captures[name]).shape[-1] for name in ("query", "values"))
    return all(is_surely(size <= _LARGEST_CAPPED_HEAD) for size in sizes)


def _attend_with_cap(
    query: Any,
    key: Any,
    values: Any,
    scale: Any,
    divisor: Any,
    cap: Any,
    cap_scale: Any,
    cap_divisor: Any,
    mask: Any,
    bias: Any,
    hidden: Any,
    seen: Any,
    fill: Any,
    **rest: Any,
) -> Any:
    shown = _build_mask(mask, bias, hidden, seen, fill, query.value.dtype)
    three = query.value.dim() == 3
    q, k, v = (t.unsqueeze(1) if three else t for t in (query, key.transpose(-2, -1), values))
    if shown is not None:
        if three and shown.value.dim() == 3:
            shown = shown.unsqueeze(1)
        shown = shown.expand(*q.value.shape[:-1], k.value.shape[-2])
    factor = float(scale) if scale is not None else 1.0 if divisor is None else 1.0 / divisor
    inner = float(cap_scale) if cap_scale is not None else 1.0 / cap_divisor
    arguments = (q, k, v, shown, factor, inner, float(cap))
    result = query.tracer.create_proxy("call_function", attend_with_cap, arguments, {})
    return result.squeeze(1) if three else result


CAPPED_ATTENTION: Final = Rewrite(
    name="capped-attention",
    doc=(
        "Attention written out whose scores have a soft cap becomes flex_attention where it is trained: its "
        "gradient computes scores again, and none are saved."
    ),
    pattern=_match_attention(_match_dropout(_match_weights(_match_masked(_CAPPED)))),
    replacement=_attend_with_cap,
    conditions=(
        *_CONDITIONS,
        _WITHOUT,
        # products of others are faster, and kernels of attention round no sums
        dtype_among("query", torch.bfloat16, torch.float16),
        Condition(name="heads are small enough for gradients on chip", holds=_has_small_heads),
        Condition(name="the cap is a number known now", holds=_has_known_cap),
        Condition(name="gradients of operands alone are asked for", holds=_is_trained_without_masks),
    ),
    level="captured",
    inexact=True,
)

ATTENTIONS: Final = (ATTENTION, ATTENTION_WITH_DROPOUT, CAPPED_ATTENTION)


# refused operands


_HEADS, _LAST = 1, 3

_SDPA_CALL: Final = call(
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
    return is_surely(match.value("key").shape[_HEADS] == 1) and isinstance(heads, int) and heads > 1


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
    expanded = is_surely(mask.stride(_LAST) == 0) and is_surely(mask.shape[_LAST] > 1)
    return bool(expanded and mask.dtype is torch.bool)


def _operand_mask_fits(match: Match) -> bool:
    """Tell whether the mask, if there is one, has the scores' shape or broadcasts to it, and no gradient.

    With gradients, kernels that see a mask may make NaN of rows that it hides.
    """
    if "mask" not in match.captures:
        return True
    mask, query, key = (match.value(name) for name in ("mask", "query", "key"))
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.requires_grad:
        return False
    wanted = (*query.shape[:-1], key.shape[-2])
    if not _hides_rows(mask) and (_is_trained(match) or is_surely(mask.stride(_LAST) == 0)):
        return False
    fits = all(is_surely(n == 1) or is_surely(n == m) for n, m in zip(mask.shape, wanted, strict=True))
    return fits and mask.dtype in (torch.bool, query.dtype)


def _is_trained(match: Match) -> bool:
    return torch.is_grad_enabled() and any(
        match.value(name).requires_grad for name in ("query", "key", "values")
    )


def _result_is_dense(match: Match) -> bool:
    return bool(match.result.is_contiguous())


def _operands_pay(match: Match) -> bool:
    query, key = match.value("query"), match.value("key")
    return are_scores_large(match, (*query.shape[:-1], key.shape[-2]))


def _is_refused(match: Match) -> bool:
    return _shares_a_head(match) or ("mask" in match.captures and _hides_rows(match.value("mask")))


def _lay_out_operands(
    query: Any, key: Any, values: Any, mask: Any, p: Any, causal: Any, scale: Any, **_: Any
) -> Any:
    heads = query.value.shape[_HEADS]
    if key.value.shape[_HEADS] != heads:
        key, values = (each.expand(-1, heads, -1, -1).contiguous() for each in (key, values))
    seen = None if mask is not None and _hides_rows(mask.value) else mask
    attention = F.scaled_dot_product_attention(
        query, key, values, attn_mask=seen, dropout_p=p, is_causal=causal, scale=scale
    ).contiguous()
    return attention if mask is None else attention.masked_fill(_find_hidden_rows(mask), 0.0)


def _find_hidden_rows(mask: Any) -> Any:
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
    pattern=_SDPA_CALL,
    replacement=_lay_out_operands,
    conditions=(
        has_rank("query", 4),
        has_rank("key", 4),
        has_rank("values", 4),
        same_dtype("query", "key", "values"),
        # what kernels round to these types the fallback computes in f32
        dtype_among("query", torch.bfloat16, torch.float16),
        equals("p", 0),
        Condition(name="heads agree, or keys have one", holds=_heads_agree),
        Condition(name="the mask broadcasts to the scores", holds=_operand_mask_fits),
        Condition(name="kernels refuse the operands", holds=_is_refused),
        Condition(name="a dense result", holds=_result_is_dense),
        Condition(name="scores are large", holds=_operands_pay),
    ),
    level="captured",
    inexact=True,
)
