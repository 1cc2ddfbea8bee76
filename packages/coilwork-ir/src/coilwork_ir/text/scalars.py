"""Text of scalar graphs: one statement per node that several others use or that does something; SSA form.

    t0 = load %x[i0, i1] : f32
    t1 = const 2.0 : f32
    t2 = mul(t0, t1)
    t3 = cast(t2) : bf16

`%w[@0, i1] using (t5)` indexes by a computed value: `@k` stands for the k-th of the listed values.

`contract (t0, t1) over (r0) : f32` multiplies two factors and adds the products. A function that combines has
statements of its own, in one line:

    t4 = scan by { t0 = parameter 0 : f32 t1 = parameter 1 : f32 t2 = add(t0, t1) yield (t2) } 0 (t3) along r0
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS
from coilwork_ir.scalar import (
    Combine,
    Combining,
    Const,
    Contraction,
    IndexValue,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    cast,
    combine,
    const,
    contract,
    index_value,
    iterate_postorder,
    load,
    op,
    parameter,
    placeholder,
    reduce,
    scan,
    sort,
)
from coilwork_ir.text.atoms import (
    Symbols,
    format_list,
    format_number,
    parse_indices,
    parse_list,
    parse_number,
    parse_ref,
    parse_type,
)
from coilwork_ir.text.reader import Reader

Names = dict[Scalar, str]
Values = dict[str, Scalar]


def format_scalars(roots: Sequence[Scalar], indent: str) -> tuple[list[str], Names]:
    """Statement lines that compute `roots`, and the name of each node."""
    names: Names = {}
    lines: list[str] = []
    for node in iterate_postorder(roots):
        names[node] = f"t{len(names)}"
        lines.append(f"{indent}{names[node]} = {_format_node(node, names)}")
    return lines, names


def format_combining(kind: Combining) -> str:
    """Return a way of combining: its name, or the function in one line."""
    if not isinstance(kind, Combine):
        return kind
    lines, names = format_scalars(kind.results, "")
    return f"by {{ {' '.join(lines)} yield {format_list(names[value] for value in kind.results)} }}"


def parse_combining(reader: Reader) -> Combining:
    """Read the text that `format_combining` writes."""
    if not reader.accept("by"):
        word = reader.choice(SCAN_KINDS, "a scan")
        return next(known for known in SCAN_KINDS if known == word)
    at = reader.at
    reader.expect("{")
    values = parse_statements(reader, {})
    reader.expect("yield")
    results = parse_list(reader, lambda: parse_value(reader, values))
    reader.expect("}")
    try:
        return combine(results)
    except VerifyError as error:
        raise reader.error(error.what, at) from error


def _format_node(node: Scalar, names: Names) -> str:
    def list_operands(values: Sequence[Scalar]) -> str:
        return format_list(names[v] for v in values)

    match node:
        case Const():
            return f"const {format_number(node.value)} : {node.dtype.text}"
        case IndexValue():
            using = f" using {list_operands(node.operands)}" if node.operands else ""
            return f"index [{format_expr(node.expr)}]{using}"
        case Load():
            text = f"load %{node.buffer}[{', '.join(format_expr(e) for e in node.index)}]"
            if node.indirect:
                text += f" using {list_operands(node.indirect)}"
            text += f" : {node.dtype.text}"
            if node.mask is not None:
                text += f" mask {names[node.mask]} other {format_number(node.other)}"
            return text
        case Parameter():
            return f"parameter {node.position} : {node.dtype.text}"
        case Op():
            suffix = f" : {node.dtype.text}" if node.op in ("cast", "bitcast") else ""
            return f"{node.op}{list_operands(node.operands)}{suffix}"
        case Reduce():
            axes = format_list(axis.name for axis in node.axes)
            return f"reduce {node.kind} {node.output} {list_operands(node.operands)} over {axes}"
        case Contraction():
            axes = format_list(axis.name for axis in node.axes)
            return f"contract {list_operands(node.operands)} over {axes} : {node.dtype.text}"
        case Scan():
            back = " reverse" if node.reverse else ""
            kind = format_combining(node.kind)
            return f"scan {kind} {node.output} {list_operands(node.operands)} along {node.axis.name}{back}"
        case Sort():
            flags = (" descending" if node.descending else "") + (f" topk {node.topk}" if node.topk else "")
            return f"sort {node.output} {list_operands(node.operands)} along {node.axis.name}{flags}"
    raise TypeError(f"not a scalar node: {node!r}")


def parse_statements(reader: Reader, symbols: Symbols) -> Values:
    """Read statements while the next token is `t<number>`."""
    values: Values = {}
    while reader.peek_value():
        at = reader.at
        name = reader.name()
        reader.expect("=")
        try:
            values[name] = _parse_node(reader, symbols, values)
        except VerifyError as error:
            raise reader.error(error.what, at) from error
    return values


def parse_value(reader: Reader, values: Values) -> Scalar:
    """Read the name of a value defined above."""
    at = reader.at
    name = reader.name()
    if name not in values:
        raise reader.error(f"{name} is not defined above", at)
    return values[name]


def _parse_using(reader: Reader, values: Values) -> tuple[Scalar, ...]:
    if reader.accept("using"):
        return parse_list(reader, lambda: parse_value(reader, values))
    return ()


def add_placeholders(symbols: Symbols) -> Symbols:
    """`symbols` and the placeholders of computed indices."""
    return {**symbols, **{placeholder(k).name: placeholder(k) for k in range(8)}}


def _parse_node(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    at = reader.at
    word = reader.name()
    match word:
        case "const":
            number = parse_number(reader)
            reader.expect(":")
            return const(number, parse_type(reader))
        case "index":
            (expr,) = parse_indices(reader, add_placeholders(symbols), "[", "]")
            return index_value(expr, _parse_using(reader, values))
        case "load":
            return _parse_load(reader, symbols, values)
        case "parameter":
            position = reader.integer()
            reader.expect(":")
            return parameter(position, parse_type(reader))
        case "reduce":
            return _parse_reduce(reader, symbols, values)
        case "contract":
            return _parse_contraction(reader, symbols, values)
        case "scan":
            return _parse_scan(reader, symbols, values)
        case "sort":
            return _parse_sort(reader, symbols, values)
    if word not in SCALAR_OPS:
        raise reader.error(f"there is no scalar op {word!r}", at)
    operands = parse_list(reader, lambda: parse_value(reader, values))
    if word == "cast":
        reader.expect(":")
        return cast(operands[0], parse_type(reader))
    if word == "bitcast":
        reader.expect(":")
        return op("bitcast", *operands, dtype=parse_type(reader))
    return op(word, *operands)


def _parse_load(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    buffer = parse_ref(reader)
    index = parse_indices(reader, add_placeholders(symbols), "[", "]")
    indirect = _parse_using(reader, values)
    reader.expect(":")
    dtype = parse_type(reader)
    if not reader.accept("mask"):
        return load(buffer, index, dtype, indirect=indirect)
    mask = parse_value(reader, values)
    reader.expect("other")
    return load(buffer, index, dtype, indirect=indirect, mask=mask, other=parse_number(reader))


def _parse_axis(reader: Reader, symbols: Symbols) -> Expr:
    at = reader.at
    name = reader.name()
    if name not in symbols:
        raise reader.error(f"{name} is not a range", at)
    return symbols[name]


def _parse_reduce(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    kind = REDUCE_OPS[reader.choice(tuple(REDUCE_OPS), "a reduction")].name
    output = reader.integer()
    operands = parse_list(reader, lambda: parse_value(reader, values))
    reader.expect("over")
    axes = parse_list(reader, lambda: _parse_axis(reader, symbols))
    return reduce(kind, operands, axes, output=output)


def _parse_contraction(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    at = reader.at
    factors = parse_list(reader, lambda: parse_value(reader, values))
    if len(factors) != 2:
        raise reader.error(f"a contraction of {len(factors)} factors", at)
    reader.expect("over")
    axes = parse_list(reader, lambda: _parse_axis(reader, symbols))
    reader.expect(":")
    return contract(*factors, axes, parse_type(reader))


def _parse_scan(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    kind = parse_combining(reader)
    output = reader.integer()
    operand, *others = parse_list(reader, lambda: parse_value(reader, values))
    reader.expect("along")
    axis = _parse_axis(reader, symbols)
    return scan(kind, operand, axis, others=others, output=output, reverse=reader.accept("reverse"))


def _parse_sort(reader: Reader, symbols: Symbols, values: Values) -> Scalar:
    output = reader.integer()
    (operand,) = parse_list(reader, lambda: parse_value(reader, values))
    reader.expect("along")
    axis = _parse_axis(reader, symbols)
    descending = reader.accept("descending")
    topk = reader.integer() if reader.accept("topk") else 0
    return sort(operand, axis, output=output, descending=descending, topk=topk)
