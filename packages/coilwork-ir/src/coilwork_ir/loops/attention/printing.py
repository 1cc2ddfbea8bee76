"""Text of attention and its gradient. Bodies share statements; lines behind them say which value is what.

    (%o: f32[2, 8, 4], %s: f32[2, 8]) = attention f32 [i0: 2, i1: 8, i2: 4 | r0: 8, r1: 4] {
      t0 = load %q[i0, i1, r1] : f32
      t1 = load %k[i0, r0, r1] : f32
      t2 = load %v[i0, r0, i2] : f32
      t3 = parameter 0 : f32
      t4 = const 0.5 : f32
      t5 = mul(t3, t4)
      t6 = index [r0]
      t7 = index [i1]
      t8 = le(t6, t7)
      query t0, key t1, value t2
      score t5
      mask t8
      logsumexp at [i0, i1]
    }

`yield t9` before the logsumexp says what the epilogue makes of the weighted sum. Behind the domain stands
what there is of `flash (_, %seed: i64[])`, the form of the state and the state, and `dropout 0.1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.loops.attention_nodes import STATE_LAYOUTS, Attention, AttentionGradient, StateForm, Weights
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    Symbols,
    format_argument,
    format_buffer,
    format_list,
    format_number,
    format_symbol,
    parse_argument,
    parse_indices,
    parse_list,
    parse_origins,
    read_result,
)
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import Values, format_scalars, parse_statements, parse_value

_FORMS: Final[tuple[StateForm, ...]] = tuple(STATE_LAYOUTS)
Domain: TypeAlias = tuple[tuple[Expr, ...], tuple[Expr, ...], Symbols]
"""Ranges, axes, and the symbols that bodies know."""


def format_attention(node: Attention, domain: str, indent: str) -> str:
    """Text of `node`, whose ranges and axes are `domain`."""
    head = f"{format_list(map(_format_result, (node.output, node.logsumexp)))} = attention"
    lines, names = format_scalars(node.bodies, indent + "  ")
    last = [] if node.epilogue is None else [f"yield {names[node.epilogue]}"]
    last += [] if node.logsumexp_at is None else [f"logsumexp at {_format_index(node.logsumexp_at)}"]
    state = format_list(map(_format_result, node.state))
    head = f"{head} {node.weights.accumulate.text} {domain}{_format_form(node.weights, state)} {{"
    inner = indent + "  "
    parts = format_weights(node.weights, names, inner)
    return "\n".join([indent + head, *lines, *parts, *(inner + part for part in last), f"{indent}}}"])


def format_gradient(node: AttentionGradient, domain: str, indent: str) -> str:
    """Text of `node`, whose ranges and axes are `domain`."""
    head = f"{format_list(map(_format_result, node.outputs))} = attention_gradient"
    lines, names = format_scalars(node.bodies, indent + "  ")
    last = [
        f"output {names[node.output]}, logsumexp {names[node.logsumexp]}, gradient {names[node.gradient]}",
        f"slope {names[node.slope]}",
    ]
    if node.bias is not None:
        last.append(f"bias {names[node.bias]} at {_format_index(node.bias_at)}")
    state = format_list(map(format_argument, node.state))
    head = f"{head} {node.weights.accumulate.text} {domain}{_format_form(node.weights, state)} {{"
    inner = indent + "  "
    parts = format_weights(node.weights, names, inner)
    return "\n".join([indent + head, *lines, *parts, *(inner + part for part in last), f"{indent}}}"])


def _format_form(weights: Weights, state: str) -> str:
    form = f" {weights.form} {state}" if weights.form != "plain" else ""
    return form + (f" dropout {format_number(weights.dropout)}" if weights.dropout else "")


def format_weights(weights: Weights, names: Mapping[Scalar, str], indent: str) -> list[str]:
    """Lines that say which of the values that have `names` is which body of `weights`."""
    parts = [f"query {names[weights.query]}, key {names[weights.key]}, value {names[weights.value]}"]
    parts.append(f"score {names[weights.score]}")
    if weights.mask is not None:
        parts.append(f"mask {names[weights.mask]}")
    return [indent + part for part in parts]


def _format_index(index: Sequence[Expr]) -> str:
    return f"[{', '.join(map(format_expr, index))}]"


def _format_result(output: Buffer | SymbolOutput | None) -> str:
    match output:
        case None:
            return "_"
        case SymbolOutput():
            return f"size {format_symbol(output.symbol)}"
        case Buffer():
            return format_buffer(output)


def read_attention(
    reader: Reader,
    symbols: Symbols,
    outputs: Sequence[Buffer | None],
    accumulate: DType,
    domain: Domain,
) -> Attention:
    """Return what `format_attention` wrote, from behind the domain on."""
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
    """Return what `format_gradient` wrote, from behind the domain on."""
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
    output, logsumexp, gradient = read_saved(reader, values)
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
        output=output,
        logsumexp=logsumexp,
        gradient=gradient,
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


def read_saved(reader: Reader, values: Values) -> tuple[Scalar, Scalar, Scalar]:
    """The output, the logsumexp and the gradient of the output that a gradient starts from."""
    output = _read_named(reader, values, "output")
    reader.expect(",")
    logsumexp = _read_named(reader, values, "logsumexp")
    reader.expect(",")
    return output, logsumexp, _read_named(reader, values, "gradient")


def read_weights(
    reader: Reader,
    accumulate: DType,
    domain: Domain,
    values: Values,
    *,
    form: StateForm = "plain",
    dropout: float = 0.0,
) -> Weights:
    """Return what `format_weights` wrote of `values`."""
    ranges, axes, _ = domain
    query = _read_named(reader, values, "query")
    reader.expect(",")
    key = _read_named(reader, values, "key")
    reader.expect(",")
    value = _read_named(reader, values, "value")
    score = _read_named(reader, values, "score")
    mask = parse_value(reader, values) if reader.accept("mask") else None
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
    )


def _read_named(reader: Reader, values: Values, word: str) -> Scalar:
    reader.expect(word)
    return parse_value(reader, values)


def _read_index(reader: Reader, domain: Domain) -> tuple[Expr, ...]:
    reader.expect("at")
    return parse_indices(reader, domain[2], "[", "]")
