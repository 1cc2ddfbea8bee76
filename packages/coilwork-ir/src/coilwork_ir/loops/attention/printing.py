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

from coilwork_ir.buffers import Buffer, SymbolOutput
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.loops.nodes import Attention, AttentionGradient, Weights
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    format_argument,
    format_buffer,
    format_list,
    format_number,
    format_symbol,
)
from coilwork_ir.text.scalars import format_scalars


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
