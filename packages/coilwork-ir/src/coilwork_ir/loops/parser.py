"""The parser of loop IR, and of headers and checks in all three IRs; `text.py` shows the form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.buffers import Buffer, Constant, GraphInput, SymbolOutput
from coilwork_ir.index import Expr
from coilwork_ir.loops.attention_parser import read_attention, read_gradient
from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Body,
    Check,
    CheckError,
    Cond,
    Contraction,
    Convolution,
    Extern,
    ExternFamily,
    Graph,
    Groups,
    Loop,
    Mutation,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    Window,
)
from coilwork_ir.ops import REDUCE_OPS, STORE_MODES
from coilwork_ir.scalar import Scalar
from coilwork_ir.text.atoms import (
    Symbols,
    parse_argument,
    parse_buffer,
    parse_indices,
    parse_list,
    parse_origins,
    parse_output,
    parse_range,
    parse_ref,
    parse_symbol,
    parse_type,
    read_binds,
    read_call_arguments,
    read_flight,
    read_paths,
    read_result,
)
from coilwork_ir.text.reader import Reader
from coilwork_ir.text.scalars import (
    Values,
    add_placeholders,
    parse_combining,
    parse_statements,
    parse_value,
)

# ---- Headers and checks ----


_ERRORS: Final[tuple[CheckError, ...]] = ("IndexError", "ZeroDivisionError")


def read_header(
    reader: Reader, symbols: Symbols
) -> tuple[tuple[Expr, ...], tuple[GraphInput, ...], tuple[Constant, ...]]:
    """Read the text that `format_header` writes; the symbols are added to `symbols`."""
    declared: list[Expr] = []
    inputs: list[GraphInput] = []
    constants: list[Constant] = []
    while True:
        if reader.accept("symbol"):
            declared.append(parse_symbol(reader, symbols))
        elif reader.accept("input"):
            if reader.accept("size"):
                reader.expect("`")
                inputs.append(reader.index(symbols, "`"))
                reader.expect("`")
            else:
                inputs.append(parse_buffer(reader, symbols))
        elif reader.accept("constant"):
            key = reader.string()
            constants.append(Constant(buffer=parse_buffer(reader, symbols), key=key))
        else:
            return tuple(declared), tuple(inputs), tuple(constants)


def read_checks(reader: Reader, values: Values) -> tuple[Check, ...]:
    """Read the text that `format_checks` writes."""
    checks: list[Check] = []
    while reader.accept("check"):
        condition = parse_value(reader, values)
        error = next((kind for kind in _ERRORS if reader.accept(kind)), None)
        if error is None:
            reader.expect("RuntimeError")
        checks.append(Check(condition=condition, message=reader.string(), error=error or "RuntimeError"))
    return tuple(checks)


# ---- Graphs ----


RELATIONS = ("eq", "ne", "lt", "le")
FAMILIES: tuple[ExternFamily, ...] = ("aten", "collective", "custom")


def parse_graph(text: str) -> Graph:
    """Return the graph that `text` spells.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = Reader(text)
    graph = read_graph(reader, {})
    reader.finish()
    return graph


def read_graph(reader: Reader, outer: Symbols) -> Graph:
    """Read a graph; `outer` are symbols of the graph around it."""
    reader.expect("graph")
    reader.expect("@")
    name = reader.name()
    reader.expect("{")
    symbols = dict(outer)
    declared, inputs, constants = read_header(reader, symbols)
    nodes: list[Node] = []
    while not reader.accept("return"):
        nodes.append(read_node(reader, symbols))
    outputs = parse_list(reader, lambda: parse_output(reader, symbols))
    free = parse_list(reader, lambda: parse_ref(reader)) if reader.accept("free") else ()
    reader.expect("}")
    return Graph(
        name=name,
        symbols=declared,
        inputs=inputs,
        constants=constants,
        nodes=tuple(nodes),
        outputs=outputs,
        free_results=free,
    )


def read_node(reader: Reader, symbols: Symbols) -> Node:
    """Read one node; symbols that it binds are added to `symbols`.

    Raises:
        ParseError: the text is no node; the message shows its line.
    """
    if reader.accept("assert"):
        return _read_assert(reader, symbols)
    if reader.accept("extern"):
        return _read_extern(reader, symbols)
    if reader.peek("%"):
        return _read_single(reader, symbols)
    outputs = parse_list(reader, lambda: read_result(reader, symbols))
    reader.expect("=")
    at = reader.at
    word = reader.name()
    buffers = tuple(o for o in outputs if not isinstance(o, SymbolOutput))
    readers: dict[str, Callable[[Reader, Symbols, tuple[Buffer | None, ...]], Node]] = {
        "reduce": _read_reduce,
        "scan": _read_scan,
        "sort": _read_sort,
        "attention": _read_attention,
        "attention_gradient": _read_attention_gradient,
        "cond": _read_cond,
        "while": _read_while,
        "repeat": _read_repeat,
        "convolve": _read_convolution,
    }
    if word not in readers:
        raise reader.error(f"there is no node kind {word!r}", at)
    return readers[word](reader, symbols, buffers)


def read_domain(reader: Reader, symbols: Symbols) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Symbols]:
    """Read the text that `format_domain` writes, and `symbols` with the ranges and axes."""
    scope = dict(symbols)
    reader.expect("[")
    ranges: list[Expr] = []
    axes: list[Expr] = []
    target = ranges
    while not reader.accept("]"):
        if reader.accept("|"):
            target = axes
            continue
        if target:
            reader.expect(",")
        target.append(parse_range(reader, scope))
    return tuple(ranges), tuple(axes), scope


def _read_bodies(reader: Reader, scope: Symbols) -> tuple[list[Scalar], tuple[Check, ...]]:
    reader.expect("{")
    values = parse_statements(reader, scope)
    checks = read_checks(reader, values)
    reader.expect("yield")
    bodies = [parse_value(reader, values)]
    while reader.accept(","):
        bodies.append(parse_value(reader, values))
    reader.expect("}")
    return bodies, checks


def _read_body(reader: Reader, scope: Symbols) -> tuple[Scalar, tuple[Check, ...]]:
    bodies, checks = _read_bodies(reader, scope)
    (body,) = bodies
    return body, checks


def _read_single(reader: Reader, symbols: Symbols) -> Node:
    output = parse_buffer(reader, symbols)
    reader.expect("=")
    at = reader.at
    word = reader.name()
    if word == "pointwise":
        ranges, _, scope = read_domain(reader, symbols)
        into = parse_ref(reader) if reader.accept("into") else None
        body, checks = _read_body(reader, scope)
        origins = parse_origins(reader)
        return Pointwise(output=output, ranges=ranges, body=body, into=into, checks=checks, origins=origins)
    if word == "contract":
        return _read_contraction(reader, symbols, output)
    if word == "view":
        source = parse_ref(reader)
        reader.expect("offset")
        reader.expect("`")
        offset = reader.index(symbols, "`")
        reader.expect("`")
        return View(output=output, source=source, offset=offset, origins=parse_origins(reader))
    if word == "scatter":
        return _read_scatter(reader, symbols, output)
    raise reader.error(f"there is no node kind {word!r}", at)


def _read_scatter(reader: Reader, symbols: Symbols, output: Buffer) -> Scatter:
    word = reader.choice(STORE_MODES, "a store mode")
    mode = next(known for known in STORE_MODES if known == word)
    ranges, _, scope = read_domain(reader, symbols)
    into = parse_ref(reader) if reader.accept("into") else None
    covers = reader.accept("covers")
    sparse = reader.accept("sparse")
    reader.expect("{")
    values = parse_statements(reader, scope)
    checks = read_checks(reader, values)
    reader.expect("at")
    index = parse_indices(reader, add_placeholders(scope), "[", "]")
    indirect: tuple[Scalar, ...] = ()
    if reader.accept("using"):
        indirect = parse_list(reader, lambda: parse_value(reader, values))
    mask = parse_value(reader, values) if reader.accept("mask") else None
    reader.expect("yield")
    value = parse_value(reader, values)
    reader.expect("}")
    return Scatter(
        output=output,
        into=into,
        ranges=ranges,
        index=index,
        indirect=indirect,
        value=value,
        mode=mode,
        mask=mask,
        covers=covers,
        sparse=sparse,
        checks=checks,
        origins=parse_origins(reader),
    )


def _read_contraction(reader: Reader, symbols: Symbols, output: Buffer) -> Contraction:
    accumulate = parse_type(reader)
    approximate = reader.accept("approximate")
    ranges, axes, scope = read_domain(reader, symbols)
    groups = _read_groups(reader, scope) if reader.accept("groups") else None
    reader.expect("{")
    values = parse_statements(reader, scope)
    reader.expect("multiply")
    left = parse_value(reader, values)
    reader.expect(",")
    right = parse_value(reader, values)
    reader.expect("yield")
    epilogue = parse_value(reader, values)
    reader.expect("}")
    return Contraction(
        output=output,
        ranges=ranges,
        axes=axes,
        left=left,
        right=right,
        accumulate=accumulate,
        epilogue=epilogue,
        groups=groups,
        approximate=approximate,
        origins=parse_origins(reader),
    )


def _read_groups(reader: Reader, scope: Symbols) -> Groups:
    """Return the groups of a contraction; what stands for a group's number is added to `scope`."""
    reader.expect("[")
    index = parse_range(reader, scope)
    reader.expect("]")
    along = _read_axis(reader, scope)
    reader.expect("end")
    return Groups(index=index, along=along, ends=parse_ref(reader))


def _read_attention(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Attention:
    accumulate = parse_type(reader)
    return read_attention(reader, symbols, outputs, accumulate, read_domain(reader, symbols))


def _read_attention_gradient(
    reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]
) -> AttentionGradient:
    accumulate = parse_type(reader)
    return read_gradient(reader, symbols, outputs, accumulate, read_domain(reader, symbols))


def _read_convolution(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Convolution:
    accumulate = parse_type(reader)
    windows = parse_list(reader, lambda: read_window(reader))
    reader.expect("groups")
    groups = reader.integer()
    transposed = reader.accept("transposed")
    reader.expect("{")
    scope, domains = symbols, dict[str, tuple[Expr, ...]]()
    for name in ("value", "weight", "gradient", "result"):
        if name in ("value", "weight") or reader.peek(name):
            reader.expect(name)
            domains[name], _, scope = read_domain(reader, scope)
    values = parse_statements(reader, scope)
    reader.expect("multiply")
    values_by_name = {"value": parse_value(reader, values)}
    reader.expect(",")
    values_by_name["weight"] = parse_value(reader, values)
    for name, word in (("gradient", "for"), ("result", "yield")):
        if name in domains:
            reader.expect(word)
            values_by_name[name] = parse_value(reader, values)
    reader.expect("}")
    bodies = {name: Body(ranges=domains[name], value=value) for name, value in values_by_name.items()}
    return Convolution(
        outputs=outputs,
        value=bodies["value"],
        weight=bodies["weight"],
        gradient=bodies.get("gradient"),
        epilogue=bodies.get("result"),
        windows=windows,
        groups=groups,
        transposed=transposed,
        accumulate=accumulate,
        origins=parse_origins(reader),
    )


def read_window(reader: Reader) -> Window:
    """Read the text that `format_window` writes."""
    numbers: dict[str, int] = {}
    for name in ("stride", "padding", "dilation", "extra"):
        if name != "extra" or reader.peek(name):
            reader.expect(name)
            numbers[name] = reader.integer()
    return Window(**numbers)


def _read_reduce(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    kind = REDUCE_OPS[reader.choice(tuple(REDUCE_OPS), "a reduction")].name
    ranges, axes, scope = read_domain(reader, symbols)
    body, checks = _read_body(reader, scope)
    origins = parse_origins(reader)
    return Reduce(
        outputs=outputs, kind=kind, ranges=ranges, axes=axes, body=body, checks=checks, origins=origins
    )


def _read_axis(reader: Reader, scope: Symbols) -> Expr:
    reader.expect("along")
    at = reader.at
    name = reader.name()
    if name not in scope:
        raise reader.error(f"{name} is not a range", at)
    return scope[name]


def _read_scan(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    kind = parse_combining(reader)
    ranges, _, scope = read_domain(reader, symbols)
    axis = _read_axis(reader, scope)
    reverse = reader.accept("reverse")
    split = reader.integer() if reader.accept("split") else 1
    (body, *others), checks = _read_bodies(reader, scope)
    return Scan(
        outputs=outputs,
        kind=kind,
        ranges=ranges,
        axis=axis,
        body=body,
        others=tuple(others),
        reverse=reverse,
        split=split,
        checks=checks,
        origins=parse_origins(reader),
    )


def _read_sort(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    ranges, _, scope = read_domain(reader, symbols)
    axis = _read_axis(reader, scope)
    count = None
    if reader.accept("first"):
        reader.expect("`")
        count = reader.index(symbols, "`")
        reader.expect("`")
    descending = reader.accept("descending")
    stable = reader.accept("stable")
    as_topk = not stable and reader.accept("as_topk")
    body, checks = _read_body(reader, scope)
    values, indices = outputs
    return Sort(
        outputs=(values, indices),
        ranges=ranges,
        axis=axis,
        body=body,
        count=count,
        descending=descending,
        stable=stable,
        as_topk=as_topk,
        checks=checks,
        origins=parse_origins(reader),
    )


def _read_extern(reader: Reader, symbols: Symbols) -> Extern:
    target = reader.string()
    args, kwargs = read_call_arguments(reader, symbols)
    word = reader.choice(FAMILIES, "a family")
    family = next(known for known in FAMILIES if known == word)
    implements = reader.string() if reader.accept("implements") else ""
    binds = read_binds(reader, symbols)
    reader.expect("defines")
    outputs = parse_list(reader, lambda: read_result(reader, symbols))
    single = not reader.accept("tuple")
    paths = read_paths(reader)
    out_overload = ""
    out_names: tuple[str, ...] = ()
    if reader.accept("out"):
        out_overload = reader.string()
        out_names = parse_list(reader, reader.string)
    mutates = _read_mutations(reader, symbols)
    aliases: tuple[tuple[int, str], ...] = ()
    if reader.accept("aliases"):
        aliases = parse_list(reader, lambda: _read_alias(reader))
    random = reader.accept("random")
    effect = reader.accept("effect")
    fresh = reader.accept("fresh")
    retains = reader.accept("retains")
    barrier = reader.accept("barrier")
    in_flight, until, waits = read_flight(reader)
    return Extern(
        target=target,
        args=args,
        kwargs=kwargs,
        outputs=outputs,
        single=single,
        paths=paths,
        out_overload=out_overload,
        out_names=out_names,
        mutates=mutates,
        aliases=aliases,
        binds=binds,
        family=family,
        implements=implements,
        random=random,
        effect=effect,
        fresh=fresh,
        in_flight=in_flight,
        until=until,
        waits=waits,
        retains=retains,
        barrier=barrier,
        origins=parse_origins(reader),
    )


def _read_mutations(reader: Reader, symbols: Symbols) -> tuple[Mutation, ...]:
    return parse_list(reader, lambda: _read_mutation(reader, symbols)) if reader.accept("mutates") else ()


def _read_mutation(reader: Reader, symbols: Symbols) -> Mutation:
    output = parse_buffer(reader, symbols)
    reader.expect("of")
    return Mutation(output=output, source=parse_ref(reader))


def _read_alias(reader: Reader) -> tuple[int, str]:
    number = reader.integer()
    reader.expect("of")
    return number, parse_ref(reader)


def _read_cond(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    predicate = parse_ref(reader)
    operands = parse_list(reader, lambda: parse_argument(reader, symbols))
    reader.expect("{")
    then = read_graph(reader, symbols)
    otherwise = read_graph(reader, symbols)
    reader.expect("}")
    return Cond(
        predicate=predicate,
        then=then,
        otherwise=otherwise,
        operands=operands,
        outputs=tuple(o for o in outputs if o is not None),
        origins=parse_origins(reader),
    )


def _read_while(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    return _read_loop(reader, symbols, outputs, None)


def _read_repeat(reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...]) -> Node:
    reader.expect("`")
    rounds = reader.index(symbols, "`")
    reader.expect("`")
    return _read_loop(reader, symbols, outputs, rounds)


def _read_loop(
    reader: Reader, symbols: Symbols, outputs: tuple[Buffer | None, ...], rounds: Expr | None
) -> Node:
    carried = parse_list(reader, lambda: parse_argument(reader, symbols))
    extra = parse_list(reader, lambda: parse_argument(reader, symbols))
    mutates = _read_mutations(reader, symbols)
    reader.expect("{")
    condition = read_graph(reader, symbols) if rounds is None else None
    body = read_graph(reader, symbols)
    reader.expect("}")
    return Loop(
        body=body,
        condition=condition,
        rounds=rounds,
        carried=carried,
        extra=extra,
        outputs=tuple(o for o in outputs if o is not None),
        mutates=mutates,
        origins=parse_origins(reader),
    )


def _read_assert(reader: Reader, symbols: Symbols) -> AssertSize:
    reader.expect("`")
    lhs = reader.index(symbols, "`")
    reader.expect("`")
    word = reader.choice(RELATIONS, "a relation")
    reader.expect("`")
    rhs = reader.index(symbols, "`")
    reader.expect("`")
    message = reader.string()
    origins = parse_origins(reader)
    match word:
        case "eq" | "ne" | "lt" | "le":
            return AssertSize(lhs=lhs, relation=word, rhs=rhs, message=message, origins=origins)
    raise AssertionError(word)
