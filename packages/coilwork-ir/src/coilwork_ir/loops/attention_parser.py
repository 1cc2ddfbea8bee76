"""The parser of attention and its gradient, in graphs and in kernels; `text.py` shows the form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loops.nodes import (
    BLOCK_SIDES,
    STATE_LAYOUTS,
    Attention,
    AttentionGradient,
    BlockList,
    BlockLists,
    BlockSide,
    StateForm,
    Weights,
)
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    Symbols,
    parse_argument,
    parse_indices,
    parse_list,
    parse_origins,
    read_result,
)
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import Values, parse_statements, parse_value

_FORMS: Final[tuple[StateForm, ...]] = tuple(STATE_LAYOUTS)
Domain: TypeAlias = tuple[tuple[Expr, ...], tuple[Expr, ...], Symbols]
"""Ranges, axes, and the symbols that bodies know."""


def read_attention(
    reader: Reader,
    symbols: Symbols,
    outputs: Sequence[Buffer | None],
    accumulate: DType,
    domain: Domain,
) -> Attention:
    """Read the text that `format_attention` writes, from behind the domain on."""
    if len(outputs) != 2 or outputs[0] is None:
        raise reader.error("an attention has an output and a logsumexp, which may be `_`")
    form = _read_form(reader)
    state = () if form == "plain" else parse_list(reader, lambda: read_result(reader, symbols))
    dropout = _read_dropout(reader)
    reader.expect("{")
    values = parse_statements(reader, domain[2])
    weights = read_weights(reader, accumulate, domain, values, form=form, dropout=dropout)
    epilogue = parse_value(reader, values) if reader.accept("yield") else None
    at = None
    if reader.accept("logsumexp"):
        at = _read_index(reader, domain)
    reader.expect("}")
    return Attention(
        weights=weights,
        output=outputs[0],
        epilogue=epilogue,
        logsumexp=outputs[1],
        logsumexp_at=at,
        state=state,
        origins=parse_origins(reader),
    )


def read_gradient(
    reader: Reader,
    symbols: Symbols,
    outputs: Sequence[Buffer | None],
    accumulate: DType,
    domain: Domain,
) -> AttentionGradient:
    """Read the text that `format_gradient` writes, from behind the domain on."""
    if len(outputs) != 4 or None in outputs[:3]:
        raise reader.error("gradients are those of query, key, value and a bias, which may be `_`")
    of_query, of_key, of_value, of_bias = outputs
    assert of_query is not None and of_key is not None and of_value is not None
    form = _read_form(reader)
    state = () if form == "plain" else parse_list(reader, lambda: parse_argument(reader, symbols))
    dropout = _read_dropout(reader)
    reader.expect("{")
    values = parse_statements(reader, domain[2])
    weights = read_weights(reader, accumulate, domain, values, form=form, dropout=dropout)
    saved = read_saved(reader, values)
    reader.expect("slope")
    slope = parse_value(reader, values)
    bias: Scalar | None = None
    at: tuple[Expr, ...] = ()
    if reader.accept("bias"):
        bias, at = parse_value(reader, values), _read_index(reader, domain)
    reader.expect("}")
    return AttentionGradient(
        weights=weights,
        of_query=of_query,
        of_key=of_key,
        of_value=of_value,
        of_bias=of_bias,
        **saved,
        slope=slope,
        bias=bias,
        bias_at=at,
        state=state,
        origins=parse_origins(reader),
    )


def _read_form(reader: Reader) -> StateForm:
    return next((form for form in _FORMS if reader.accept(form)), "plain")


def _read_dropout(reader: Reader) -> float:
    return float(reader.number()) if reader.accept("dropout") else 0.0


def read_saved(reader: Reader, values: Values) -> dict[str, Any]:
    """Read the bodies that forward saved for a gradient, by name: output or `inner`, logsumexp, gradient."""
    found: dict[str, Any] = {}
    for name in ("output", "inner"):
        if reader.accept(name):
            found[name] = parse_value(reader, values)
            reader.expect(",")
    found["logsumexp"] = _read_named(reader, values, "logsumexp")
    reader.expect(",")
    return found | {"gradient": _read_named(reader, values, "gradient")}


def read_weights(
    reader: Reader,
    accumulate: DType,
    domain: Domain,
    values: Values,
    *,
    form: StateForm = "plain",
    dropout: float = 0.0,
) -> Weights:
    """Read the text that `format_weights` writes of `values`."""
    ranges, axes, _ = domain
    query = _read_named(reader, values, "query")
    reader.expect(",")
    key = _read_named(reader, values, "key")
    reader.expect(",")
    value = _read_named(reader, values, "value")
    score = _read_named(reader, values, "score")
    mask = parse_value(reader, values) if reader.accept("mask") else None
    blocks = _read_blocks(reader, values) if reader.accept("blocks") else None
    is_binary = reader.accept("logarithms") and bool(reader.choice(("binary",), "a kind of logarithms"))
    return Weights(
        ranges=ranges,
        axes=axes,
        query=query,
        key=key,
        value=value,
        accumulate=accumulate,
        score=score,
        mask=mask,
        dropout=dropout,
        form=form,
        logsumexp="binary" if is_binary else "natural",
        blocks=blocks,
    )


def _read_blocks(reader: Reader, values: Values) -> BlockLists:
    row_block = reader.integer()
    reader.expect("by")
    key_block = reader.integer()
    lists = parse_list(reader, lambda: _read_block_list(reader, values))
    return BlockLists(row_block=row_block, key_block=key_block, lists=lists)


def _read_block_list(reader: Reader, values: Values) -> tuple[BlockSide, BlockList]:
    word = reader.choice(BLOCK_SIDES, "a kind of lists of blocks")
    count, index = parse_list(reader, lambda: parse_value(reader, values))
    return next(side for side in BLOCK_SIDES if side == word), BlockList(count, index)


def _read_named(reader: Reader, values: Values, word: str) -> Scalar:
    reader.expect(word)
    return parse_value(reader, values)


def _read_index(reader: Reader, domain: Domain) -> tuple[Expr, ...]:
    reader.expect("at")
    return parse_indices(reader, domain[2], "[", "]")
