"""`associative_scan`: a scan node where its function combines element by element, else calls of ATen.

The combining function's own graph is lowered like any graph, to nodes over tensors that lack the scanned
dimension. Where these compute each element from elements at the same place, they become one function of
scalars, whose parameters are what the function was given.

Torch moves the scanned dimension to the front, and flips what is scanned from its end. The node scans tensors
where they are: along the dimension as it lies in memory, and from its end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.buffers import Buffer, GraphInput, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr, as_int, provably_le
from coilwork_ir.loops import Extern, Node, Pointwise, Scan
from coilwork_ir.scalar import (
    Combine,
    Const,
    IndexValue,
    Load,
    Op,
    Parameter,
    Scalar,
    cast,
    combine,
    const,
    iterate_postorder,
    list_loads,
    load,
    op,
    parameter,
    rewrite,
    substitute_ranges,
)
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import (
    TensorValue,
    Value,
    get_dtype,
    make_coordinate_symbols,
    make_dims,
)
from coilwork_lowering.errors import make_refusal
from coilwork_lowering.facts.fx_nodes import get_operator_name
from coilwork_lowering.higher_order.scan import copy_origin, insert_call
from coilwork_lowering.rules import NotLowered
from coilwork_lowering.scalar_math import to_dtype
from coilwork_lowering.torch_compat.graphs import copy_graph

# ---- Functions of scalars ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The graph of a combining function, lowered.

    Attributes:
        inputs: two tuples of as many tensors, and behind them what it is given at all points.
        nodes: what computes the results.
        results: a tuple of tensors.
    """

    inputs: Sequence[GraphInput]
    nodes: Sequence[Node]
    results: Sequence[TensorValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A combining function of scalars.

    Attributes:
        function: what it does; behind the results' own values its tuples have further ones, which are the
            same at all points along the axis.
        invariant: these further values. They load from buffers that the traced inputs name.
    """

    function: Combine
    invariant: tuple[Scalar, ...]


def extract_combination(traced: Traced, point: Sequence[Expr]) -> Combination | None:
    """Return what `traced` does at `point`, the coordinates of an element; None if it looks at other elements
    too, or calls what has no scalars.

    16-bit floats are computed with as `f32`: between the points of a scan, as within its function, nothing is
    rounded.
    """
    count = len(traced.results)
    given = traced.inputs[: 2 * count]
    if len(given) < 2 * count or any(result.shape != traced.results[0].shape for result in traced.results):
        return None
    known = {item.name: item for item in traced.inputs if isinstance(item, Buffer)}
    bodies = _bodies(traced.nodes, known)
    results = []
    for result in traced.results:
        access = load(result.buffer.name, result.get_coordinates(point), result.dtype)
        body = _expand_body(access, known, bodies)
        if body is None:
            return None
        results.append(body)
    places = {item.name: k for k, item in enumerate(given) if isinstance(item, Buffer)}
    narrow = any(isinstance(item, Buffer) and item.dtype.is_low_precision for item in given)
    try:
        return _make_function(tuple(results), places, tuple(point), widen=narrow)
    except _ElsewhereError:
        return None


class _ElsewhereError(Exception):
    """The function reads another element, or bits that have no meaning in `f32`."""


def _bodies(nodes: Sequence[Node], known: Mapping[str, Buffer]) -> dict[str, Pointwise]:
    """Return the nodes that compute each element from elements, by output, with nothing but inputs among
    their loads.
    """
    bodies: dict[str, Pointwise] = {}
    for node in nodes:
        moved = _read_moved(node, known)
        if moved is not None:
            bodies[moved.output.name] = moved
        if not isinstance(node, Pointwise) or node.into is not None or node.checks:
            continue
        body = _expand_body(node.body, known, bodies)
        if body is not None:
            bodies[node.output.name] = Pointwise(output=node.output, ranges=node.ranges, body=body)
    return bodies


def _read_moved(node: Node, known: Mapping[str, Buffer]) -> Pointwise | None:
    """Return an input on another device than the function's, a number mostly, as it is: who reads it has
    it moved.
    """
    match node:
        case Extern(target="aten._to_copy.default", args=(Ref(name),), outputs=(Buffer() as output,)):
            source = known.get(name)
            if source is not None and source.dtype is output.dtype:
                ranges = make_node_ranges("i", output.shape)
                return Pointwise(output=output, ranges=ranges, body=load(name, ranges, output.dtype))
    return None


def _expand_body(body: Scalar, known: Mapping[str, Buffer], bodies: Mapping[str, Pointwise]) -> Scalar | None:
    """`body` with what `bodies` say in the place of loads; None if some load is neither of these nor of
    inputs.
    """
    replaced: dict[Scalar, Scalar] = {}
    for access in list_loads((body,)):
        if access.operands:
            return None
        if access.buffer in known:
            continue
        producer = bodies.get(access.buffer)
        if producer is None:
            return None
        mapping = dict(zip(producer.ranges, access.index, strict=True))
        (replaced[access],) = substitute_ranges((producer.body,), mapping)
    (result,) = rewrite((body,), lambda one: replaced.get(one, one))
    return result


def _make_function(
    results: tuple[Scalar, ...], places: Mapping[str, int], point: tuple[Expr, ...], *, widen: bool
) -> Combination | None:
    """Return the function whose results are `results`; `places` are the positions of what it combines."""
    own = len(results)
    moving = {node for node in list_loads(results) if node.buffer in places}
    if any(node.index != point for node in moving):
        raise _ElsewhereError
    varies: set[Scalar] = set(moving)
    outside: set[Scalar] = set()
    for node in iterate_postorder(results):
        if not varies.isdisjoint(node.operands):
            varies.add(node)
        if isinstance(node, Load | IndexValue) or not outside.isdisjoint(node.operands):
            outside.add(node)
    if any(node in varies and not isinstance(node, Load | Op) for node in iterate_postorder(results)):
        raise _ElsewhereError
    # the largest values that are the same at all points
    fixed = [
        value
        for value in dict.fromkeys(
            (*(o for n in iterate_postorder(results) if n in varies for o in n.operands), *results)
        )
        if value in outside and value not in varies
    ]
    count = own + len(fixed)
    invariant = tuple(_widen(value) if widen else value for value in fixed)
    constant = {
        value: parameter(count + own + k, wide.dtype) for k, (value, wide) in enumerate(zip(fixed, invariant))
    }
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(results):
        if node in constant:
            done[node] = constant[node]
        elif isinstance(node, Load) and node in moving:
            position = places[node.buffer]
            position = position if position < own else position - own + count
            done[node] = parameter(position, _wide(node.dtype) if widen else node.dtype)
        elif isinstance(node, Const) or node in varies:
            operands = [done[operand] for operand in node.operands]
            done[node] = _op(node, operands, widen=widen)
    try:
        function = combine([*(simplify(done[result]) for result in results), *constant.values()])
    except VerifyError:
        # a result of another type than what it is combined from
        return None
    return Combination(function=function, invariant=invariant)


def _wide(dtype: DType) -> DType:
    return dtype.compute


def _widen(value: Scalar) -> Scalar:
    return cast(value, _wide(value.dtype))


def _op(node: Scalar, operands: Sequence[Scalar], *, widen: bool) -> Scalar:
    """`node` of other `operands`."""
    match node:
        case Const():
            return const(node.value, _wide(node.dtype)) if widen else node
        case Op(op="cast"):
            return cast(operands[0], _wide(node.dtype) if widen else node.dtype)
        case Op(op="bitcast"):
            if widen and (node.dtype.is_low_precision or node.operands[0].dtype.is_low_precision):
                raise _ElsewhereError
            return op("bitcast", *operands, dtype=node.dtype)
        case Op():
            return op(node.op, *operands)
    assert isinstance(node, Parameter)
    return node


def find_needed(function: Combine, outputs: Collection[int]) -> tuple[int, ...]:
    """Return the values of a tuple that the results `outputs` of a scan by `function` depend on, in order."""
    result = set(outputs)
    pending = list(result)
    while pending:
        for node in iterate_postorder((function.results[pending.pop()],)):
            if isinstance(node, Parameter) and node.position % function.count not in result:
                result.add(node.position % function.count)
                pending.append(node.position % function.count)
    return tuple(sorted(result))


def keep_values(function: Combine, kept: Sequence[int]) -> Combine:
    """`function` of the values `kept` alone, which depend on no others."""
    place = {old: new for new, old in enumerate(kept)}

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Parameter):
            return node
        late = node.position // function.count
        return parameter(place[node.position % function.count] + late * len(kept), node.dtype)

    return combine(rewrite([function.results[k] for k in kept], visit))


# ---- Scans ----


aten: Final = torch.ops.aten
# the graph of a combining function, lowered
Trace: TypeAlias = Callable[[torch.fx.GraphModule], Traced]


def is_associative_scan(node: torch.fx.Node) -> bool:
    """Tell if `node` combines rows with a function."""
    return node.op == "call_function" and get_operator_name(node) == "associative_scan"


def lower_associative_scan(
    builder: Builder, node: torch.fx.Node, arguments: tuple[Value, ...], traced: Trace
) -> Value:
    """`associative_scan(combine, rows, others)`, whose function combines element by element.

    Raises:
        LoweringError[no-lowering]: it does not, or the rows are not alike.
    """
    try:
        return _lower_scan(builder, node, arguments, traced)
    except NotLowered as cause:
        what = f"{get_operator_name(node)} has no lowering"
        raise make_refusal(node, "no-lowering", what, origins=builder.origins, reason=str(cause)) from cause


def _lower_scan(builder: Builder, node: torch.fx.Node, arguments: tuple[Value, ...], traced: Trace) -> Value:
    gm, rows, others = arguments
    assert isinstance(gm, torch.fx.GraphModule) and isinstance(rows, tuple) and isinstance(others, tuple)
    fakes: list[torch.Tensor] = list(node.meta["val"])
    values = [value for value in rows if isinstance(value, TensorValue)]
    if len(values) < len(fakes) or any(value.shape != values[0].shape for value in values):
        raise NotLowered("rows that are not alike")
    shape = values[0].shape
    if as_int(shape[0]) == 1 or any(as_int(size) == 0 for size in shape):
        # nothing is combined
        return tuple(
            builder.copy(value, strides=builder.result_strides(fake))
            for value, fake in zip(values, fakes, strict=True)
        )
    function = traced(gm)
    point = make_coordinate_symbols("i", shape)
    results = extract_combination(function, point[1:])
    if results is None:
        raise NotLowered("a function that does not combine element by element")
    reverse = _is_reversed(node)
    along = (shape[0] - 1 - point[0], *point[1:]) if reverse else point
    given = dict(zip(_names(function.inputs[2 * len(values) :]), others, strict=True))
    bodies = [
        *(
            to_dtype(builder.read(value, along), result.dtype)
            for value, result in zip(values, results.function.results)
        ),
        *(_load_outer(value, builder, given, values[0].device) for value in results.invariant),
    ]
    used = _find_used(node)
    kept = find_needed(results.function, used)
    body, *more = [simplify(bodies[k]) for k in kept]
    order = _memory_order(builder.result_strides(fakes[0]))
    ranges = make_node_ranges("i", shape)
    outputs = {
        k: builder.declare(
            tuple(shape[d] for d in order),
            results.function.results[k].dtype,
            values[k].device,
            strides=[builder.result_strides(fakes[k])[d] for d in order],
        )
        for k in kept
        if k in used
    }
    builder.add(
        Scan(
            outputs=tuple(outputs.get(k) for k in kept),
            kind=keep_values(results.function, kept),
            ranges=tuple(ranges[d] for d in order),
            axis=ranges[0],
            body=body,
            others=tuple(more),
            reverse=reverse,
            origins=builder.origins,
        )
    )
    return tuple(
        _result(builder, outputs[k], order, fake, reverse=reverse) if k in outputs else None
        for k, fake in enumerate(fakes)
    )


def _result(
    builder: Builder, output: Buffer, order: Sequence[int], fake: torch.Tensor, *, reverse: bool
) -> TensorValue:
    """Return what the operator returns, of the scan's `output`, whose dimensions are those of the operator in
    `order`.
    """
    shape = tuple(output.shape[order.index(k)] for k in range(len(order)))
    at = list(make_dims(shape))
    if reverse:
        at[0] = shape[0] - 1 - at[0]
    value = TensorValue(buffer=output, shape=shape, index=tuple(at[k] for k in order))
    wanted = get_dtype(fake.dtype)
    if value.dtype is wanted:
        return value
    return builder.pointwise(
        shape,
        wanted,
        value.device,
        lambda point: to_dtype(builder.read(value, point), wanted),
        strides=builder.result_strides(fake),
    )


def _names(inputs: Sequence[object]) -> list[str]:
    return [item.name if isinstance(item, Buffer) else "" for item in inputs]


def _load_outer(value: Scalar, builder: Builder, given: dict[str, Value], device: str) -> Scalar:
    """`value` with loads of what the function is `given`, on `device`."""

    def visit(one: Scalar) -> Scalar:
        if not isinstance(one, Load):
            return one
        outer = given.get(one.buffer)
        if not isinstance(outer, TensorValue):
            raise NotLowered("a function that reads a number from the run")
        return builder.read(builder.move_to(outer, device), one.index)

    (result,) = rewrite((value,), visit)
    return result


def _find_used(node: torch.fx.Node) -> set[int]:
    """Return which of the results anybody asks for."""
    items = {user.args[1] for user in node.users if user.target is operator.getitem}
    return {item for item in items if isinstance(item, int)} or {0}


def _is_reversed(node: torch.fx.Node) -> bool:
    """Tell if every scanned tensor was flipped for this scan."""
    rows: Any = node.args[1]
    return all(
        isinstance(row, torch.fx.Node) and row.target is aten.flip.default and row.args[1] in ([0], (0,))
        for row in rows
    )


def _memory_order(strides: Sequence[Expr]) -> list[int]:
    """Return the dimensions, those with larger strides first, as far as that is known; a stable order."""
    order: list[int] = []
    for k, stride in enumerate(strides):
        place = len(order)
        while place and _is_less(strides[order[place - 1]], stride):
            place -= 1
        order.insert(place, k)
    return order


def _is_less(a: Expr, b: Expr) -> bool:
    return provably_le(a, b) and not provably_le(b, a)


def expand_other_scans(
    gm: torch.fx.GraphModule, is_scalar: Callable[[torch.fx.GraphModule], bool]
) -> torch.fx.GraphModule:
    """`gm` itself if all its associative scans have functions of which `is_scalar` holds; else a copy that
    calls `scan` for others.
    """
    others = [
        node.name
        for node in gm.graph.nodes
        if is_associative_scan(node) and not is_scalar(_find_function(gm, node))
    ]
    if not others:
        return gm
    result = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    for node in list(result.graph.nodes):
        if node.name in others:
            _expand_scan(result, node)
    result.recompile()
    return result


def _find_function(gm: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule:
    result = gm.get_submodule(str(getattr(node.args[0], "target", "")))
    assert isinstance(result, torch.fx.GraphModule)
    return result


def _expand_scan(gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Replace `node` by a `scan` that carries the first rows, and in whose results the first rows
    come first.
    """
    _, rows, others = node.args
    assert isinstance(rows, list | tuple)
    name = f"{node.name}_step"
    setattr(gm, name, _step(_find_function(gm, node), len(rows)))
    fakes = [row.meta["val"] for row in rows if isinstance(row, torch.fx.Node)]
    with gm.graph.inserting_before(node):
        first = [insert_call(gm.graph, node, aten.slice.Tensor, (row, 0, 0, 1)) for row in rows]
        carried = [insert_call(gm.graph, node, aten.select.int, (row, 0, 0)) for row in rows]
        rest = [insert_call(gm.graph, node, aten.slice.Tensor, (row, 0, 1)) for row in rows]
        step = gm.graph.get_attr(name)
        scan = gm.graph.call_function(torch.ops.higher_order.scan, (step, carried, rest, others))
        scan.meta = {
            **copy_origin(node),
            "val": (*(one.meta["val"] for one in carried), *(one.meta["val"] for one in rest)),
        }
        results = []
        for k in range(len(fakes)):
            item = gm.graph.call_function(operator.getitem, (scan, len(fakes) + k))
            item.meta = {**copy_origin(node), "val": rest[k].meta["val"]}
            results.append(insert_call(gm.graph, node, aten.cat.default, ([first[k], item],)))
    for user in list(node.users):
        # every user takes an item of the results
        number: Any = user.args[1]
        user.replace_all_uses_with(results[number])
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _step(function: torch.fx.GraphModule, count: int) -> torch.fx.GraphModule:
    """`function`, which gives what is carried to the next row, and once more as the row's results."""
    result = torch.fx.GraphModule(function, copy_graph(function.graph))
    output = result.graph.output_node()
    results: Any = output.args[0]
    assert len(results) == count
    output.args = ((*results, *results),)
    return result
