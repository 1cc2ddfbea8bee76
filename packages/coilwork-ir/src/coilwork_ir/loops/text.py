"""The text form of loop IR: `parse_graph(format_graph(g)) == g`. `parser.py` reads it.

    graph @norm {
      symbol s0 in [2, inf]
      input %x: f32[s0, 1024]
      (%ss: f32[s0]) = reduce sum [i0: s0 | r0: 1024] {
        t0 = load %x[i0, r0] : f32
        yield t0
      } loc("sum_1" "aten.sum.dim_IntList" "model.py":12 "y = x.sum(1)" "norm")
      return (%ss)
    }

The bodies of attention share statements; lines behind them say which value is what.

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

`yield t9` before the logsumexp says what the epilogue makes of the weighted sum. `flash (_, %seed: i64[])`
behind the domain is the form of the state and the state; `dropout 0.1` may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coilwork_ir.buffers import Buffer, Constant, GraphInput, SymbolOutput
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Mutation,
    Node,
    Pointwise,
    Reduce,
    Saved,
    Scan,
    Scatter,
    Sort,
    View,
    Weights,
    Window,
)
from coilwork_ir.loops.parser import parse_graph
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    format_argument,
    format_buffer,
    format_flight,
    format_list,
    format_number,
    format_origins,
    format_output,
    format_paths,
    format_range,
    format_symbol,
)
from coilwork_ir.text.reader import quote
from coilwork_ir.text.scalars import (
    Names,
    format_combining,
    format_scalars,
)

__all__ = ["format_graph", "parse_graph"]


# ---- Graphs ----


def format_graph(graph: Graph, *, origins: bool = True, indent: str = "") -> str:
    """Canonical text of `graph`; without `origins` it depends only on what is computed, as a cache key
    should.
    """
    inner = indent + "  "
    lines = [f"{indent}graph @{graph.name} {{"]
    lines += format_header(graph.symbols, graph.inputs, graph.constants, inner)
    for node in graph.nodes:
        lines.append(format_node(node, inner, origins=origins))
    lines.append(f"{inner}return {format_list(format_output(o) for o in graph.outputs)}")
    if graph.free_results:
        lines[-1] += f" free {format_list(f'%{name}' for name in graph.free_results)}"
    lines.append(indent + "}")
    return "\n".join(lines) + ("" if indent else "\n")


def format_header(
    symbols: Sequence[Expr], inputs: Sequence[GraphInput], constants: Sequence[Constant], indent: str
) -> list[str]:
    """Lines that declare symbols, inputs and constants."""
    lines = [f"{indent}symbol {format_symbol(s)}" for s in symbols]
    for entry in inputs:
        shown = format_buffer(entry) if isinstance(entry, Buffer) else f"size `{format_expr(entry)}`"
        lines.append(f"{indent}input {shown}")
    lines += [f"{indent}constant {quote(c.key)} {format_buffer(c.buffer)}" for c in constants]
    return lines


def format_checks(checks: Sequence[Check], names: Names, indent: str) -> list[str]:
    """`check t3 IndexError "message"` lines."""
    return [f"{indent}check {names[c.condition]} {c.error} {quote(c.message)}" for c in checks]


def format_node(node: Node, indent: str, *, origins: bool = True) -> str:
    """Text of one node, without a final newline."""
    tail = format_origins(node.origins) if origins else ""
    match node:
        case Pointwise():
            head = f"{format_buffer(node.output)} = pointwise {format_domain(node.ranges)}"
            if node.into is not None:
                head += f" into %{node.into}"
            return _print_with_body(head, node.body, node.checks, indent) + tail
        case Reduce():
            head = f"{_outputs(node.outputs)} = reduce {node.kind} {format_domain(node.ranges, node.axes)}"
            return _print_with_body(head, node.body, node.checks, indent) + tail
        case Scan():
            back = (" reverse" if node.reverse else "") + (f" split {node.split}" if node.split != 1 else "")
            kind = format_combining(node.kind)
            domain = format_domain(node.ranges)
            head = f"{_outputs(node.outputs)} = scan {kind} {domain} along {node.axis.name}{back}"
            return _print_with_body(head, node.body, node.checks, indent, node.others) + tail
        case Sort():
            first = "" if node.count is None else f" first `{format_expr(node.count)}`"
            ties = " stable" if node.stable else " as_topk" if node.as_topk else ""
            flags = first + (" descending" if node.descending else "") + ties
            head = (
                f"{_outputs(node.outputs)} = sort {format_domain(node.ranges)} along {node.axis.name}{flags}"
            )
            return _print_with_body(head, node.body, node.checks, indent) + tail
        case Scatter():
            return _format_scatter(node, indent) + tail
        case Contraction():
            return _format_contraction(node, indent) + tail
        case Attention():
            domain = format_domain(node.weights.ranges, node.weights.axes)
            return format_attention(node, domain, indent) + tail
        case AttentionGradient():
            domain = format_domain(node.weights.ranges, node.weights.axes)
            return format_gradient(node, domain, indent) + tail
        case Convolution():
            return _format_convolution(node, indent) + tail
        case View():
            shown = format_buffer(node.output)
            return f"{indent}{shown} = view %{node.source} offset `{format_expr(node.offset)}`{tail}"
        case Extern():
            return indent + format_extern(node) + tail
        case Cond():
            operands = format_list(format_argument(a) for a in node.operands)
            then = format_graph(node.then, origins=origins, indent=indent + "  ")
            otherwise = format_graph(node.otherwise, origins=origins, indent=indent + "  ")
            head = f"{indent}{_outputs(node.outputs)} = cond %{node.predicate} {operands} {{"
            return f"{head}\n{then}\n{otherwise}\n{indent}}}{tail}"
        case Loop():
            carried = format_list(format_argument(a) for a in node.carried)
            extra = format_list(format_argument(a) for a in node.extra)
            nested = "\n".join(
                format_graph(part, origins=origins, indent=indent + "  ")
                for part in (node.condition, node.body)
                if part is not None
            )
            word = "while" if node.rounds is None else f"repeat `{format_expr(node.rounds)}`"
            taken = f" {_mutations(node.mutates)}" if node.mutates else ""
            head = f"{indent}{_outputs(node.outputs)} = {word} {carried} {extra}{taken} {{"
            return f"{head}\n{nested}\n{indent}}}{tail}"
        case AssertSize():
            sides = f"`{format_expr(node.lhs)}` {node.relation} `{format_expr(node.rhs)}`"
            return f"{indent}assert {sides} {quote(node.message)}{tail}"


def format_domain(ranges: Sequence[Expr], axes: Sequence[Expr] = ()) -> str:
    """Ranges and axes, with their extents."""
    text = ", ".join(format_range(r) for r in ranges)
    if axes:
        text = f"{text} | " + ", ".join(format_range(a) for a in axes)
    return f"[{text.strip()}]"


def _outputs(outputs: Sequence[Buffer | SymbolOutput | None]) -> str:
    return format_list(_output(o) for o in outputs)


def _output(output: Buffer | SymbolOutput | None) -> str:
    match output:
        case None:
            return "_"
        case SymbolOutput():
            return f"size {format_symbol(output.symbol)}"
        case Buffer():
            return format_buffer(output)


def _print_with_body(
    head: str, body: Scalar, checks: Sequence[Check], indent: str, others: Sequence[Scalar] = ()
) -> str:
    inner = indent + "  "
    lines, names = format_scalars((body, *others, *(c.condition for c in checks)), inner)
    lines += format_checks(checks, names, inner)
    values = ", ".join(names[value] for value in (body, *others))
    return "\n".join([f"{indent}{head} {{", *lines, f"{inner}yield {values}", f"{indent}}}"])


def _format_scatter(node: Scatter, indent: str) -> str:
    inner = indent + "  "
    mask = () if node.mask is None else (node.mask,)
    roots = (node.value, *node.indirect, *mask, *(c.condition for c in node.checks))
    lines, names = format_scalars(roots, inner)
    lines += format_checks(node.checks, names, inner)
    target = f"{inner}at [{', '.join(format_expr(e) for e in node.index)}]"
    if node.indirect:
        target += f" using {format_list(names[v] for v in node.indirect)}"
    if node.mask is not None:
        target += f" mask {names[node.mask]}"
    head = f"{indent}{format_buffer(node.output)} = scatter {node.mode} {format_domain(node.ranges)}"
    if node.into is not None:
        head += f" into %{node.into}"
    if node.covers:
        head += " covers"
    if node.sparse:
        head += " sparse"
    return "\n".join([f"{head} {{", *lines, target, f"{inner}yield {names[node.value]}", f"{indent}}}"])


def _format_contraction(node: Contraction, indent: str) -> str:
    inner = indent + "  "
    lines, names = format_scalars((node.left, node.right, node.epilogue), inner)
    domain = format_domain(node.ranges, node.axes)
    kind = f"contract {node.accumulate.text}{' approximate' if node.approximate else ''}"
    if node.groups is not None:
        cut = node.groups
        domain += f" groups {format_domain((cut.index,))} along {cut.along.name} end %{cut.ends}"
    head = f"{indent}{format_buffer(node.output)} = {kind} {domain} {{"
    factors = f"{inner}multiply {names[node.left]}, {names[node.right]}"
    return "\n".join([head, *lines, factors, f"{inner}yield {names[node.epilogue]}", f"{indent}}}"])


def _format_convolution(node: Convolution, indent: str) -> str:
    inner = indent + "  "
    bodies = {
        "value": node.value,
        "weight": node.weight,
        "gradient": node.gradient,
        "result": node.epilogue,
    }
    given = {name: body for name, body in bodies.items() if body is not None}
    lines, names = format_scalars([body.value for body in given.values()], inner)
    windows = format_list(format_window(window) for window in node.windows)
    head = (
        f"{indent}{_outputs(node.outputs)} = convolve {node.accumulate.text} {windows} groups {node.groups}"
    )
    if node.transposed:
        head += " transposed"
    lines = [*(f"{inner}{name} {format_domain(body.ranges)}" for name, body in given.items()), *lines]
    factors = f"{inner}multiply {names[node.value.value]}, {names[node.weight.value]}"
    if node.gradient is not None:
        factors += f" for {names[node.gradient.value]}"
    lines.append(factors)
    if node.epilogue is not None:
        lines.append(f"{inner}yield {names[node.epilogue.value]}")
    return "\n".join([f"{head} {{", *lines, f"{indent}}}"])


def format_window(window: Window) -> str:
    """Text of stride, padding and dilation along one dimension."""
    extra = f" extra {window.extra}" if window.extra else ""
    return f"stride {window.stride} padding {window.padding} dilation {window.dilation}{extra}"


def _mutations(mutates: Iterable[Mutation]) -> str:
    return f"mutates {format_list(f'{format_buffer(m.output)} of %{m.source}' for m in mutates)}"


def format_extern(node: Extern) -> str:
    """One line for an external call."""
    args = [format_argument(a) for a in node.args]
    args += [f"{name} = {format_argument(value)}" for name, value in node.kwargs]
    parts = [f"extern {quote(node.target)} {format_list(args)} {node.family}"]
    if node.implements:
        parts.append(f"implements {quote(node.implements)}")
    if node.binds:
        parts.append(f"binds {format_list(f'{format_symbol(s)} of {k} {d}' for s, k, d in node.binds)}")
    parts.append(f"defines {_outputs(node.outputs)}")
    if not node.single:
        parts.append("tuple")
    parts += format_paths(node.paths)
    if node.out_overload:
        parts.append(f"out {quote(node.out_overload)} {format_list(quote(n) for n in node.out_names)}")
    if node.mutates:
        parts.append(_mutations(node.mutates))
    if node.aliases:
        parts.append(f"aliases {format_list(f'{number} of %{source}' for number, source in node.aliases)}")
    flags = (
        ("random", node.random),
        ("effect", node.effect),
        ("fresh", node.fresh),
        ("retains", node.retains),
        ("barrier", node.barrier),
    )
    parts += [word for word, wanted in flags if wanted]
    parts += format_flight(node.in_flight, node.until, node.waits)
    return " ".join(parts)


# ---- Attention ----


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
    last = [format_saved(node, names), f"slope {names[node.slope]}"]
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
    if weights.blocks is not None:
        lists = [f"{side} ({names[one.count]}, {names[one.index]})" for side, one in weights.blocks.lists]
        parts.append(f"blocks {weights.blocks.row_block} by {weights.blocks.key_block} {format_list(lists)}")
    if weights.logsumexp != "natural":
        parts.append(f"logarithms {weights.logsumexp}")
    return [indent + part for part in parts]


def format_saved(saved: Saved, names: Mapping[Scalar, str]) -> str:
    """Return the line that says which of the values that have `names` a gradient starts from."""
    first = [("output", saved.output), ("inner", saved.inner)]
    last = [("logsumexp", saved.logsumexp), ("gradient", saved.gradient)]
    return ", ".join(f"{what} {names[value]}" for what, value in (*first, *last) if value is not None)


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
