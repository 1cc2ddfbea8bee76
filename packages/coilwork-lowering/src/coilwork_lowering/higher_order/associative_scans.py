"""`associative_scan`: a scan node of the loop IR where its function combines element by element; else the
calls that it stands for.

Torch moves the scanned dimension to the front, and turns round what is scanned from the end. The node scans
where things are: along the dimension as it lies in memory, and from its end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int, provably_le
from coilwork_ir.loops import Scan
from coilwork_ir.scalar import Load, Scalar, rewrite
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, Value, coordinate_symbols, dims, dtype_of
from coilwork_lowering.errors import refusal
from coilwork_lowering.facts.fx_nodes import operator_name
from coilwork_lowering.higher_order.combinations import Traced, combination_of, find_needed, keep_values
from coilwork_lowering.higher_order.scan_calls import insert_call, where
from coilwork_lowering.rules import NotLowered
from coilwork_lowering.scalar_math import to_dtype
from coilwork_lowering.torch_compat.graphs import copy_graph

aten: Final = torch.ops.aten
# the graph of a combining function, lowered
Trace: TypeAlias = Callable[[torch.fx.GraphModule], Traced]


def is_associative_scan(node: torch.fx.Node) -> bool:
    """Tell if `node` combines rows with a function."""
    return node.op == "call_function" and operator_name(node) == "associative_scan"


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
        what = f"{operator_name(node)} has no lowering"
        raise refusal(node, "no-lowering", what, origins=builder.origins, reason=str(cause)) from cause


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
    point = coordinate_symbols("i", shape)
    found = combination_of(function, point[1:])
    if found is None:
        raise NotLowered("a function that does not combine element by element")
    reverse = _turned_round(node)
    along = (shape[0] - 1 - point[0], *point[1:]) if reverse else point
    given = dict(zip(_names(function.inputs[2 * len(values) :]), others, strict=True))
    bodies = [
        *(
            to_dtype(builder.read(value, along), result.dtype)
            for value, result in zip(values, found.function.results)
        ),
        *(_load_outer(value, builder, given, values[0].device) for value in found.invariant),
    ]
    used = _find_used(node)
    kept = find_needed(found.function, used)
    body, *more = [simplify(bodies[k]) for k in kept]
    order = _memory_order(builder.result_strides(fakes[0]))
    ranges = node_ranges("i", shape)
    outputs = {
        k: builder.declare(
            tuple(shape[d] for d in order),
            found.function.results[k].dtype,
            values[k].device,
            strides=[builder.result_strides(fakes[k])[d] for d in order],
        )
        for k in kept
        if k in used
    }
    builder.add(
        Scan(
            outputs=tuple(outputs.get(k) for k in kept),
            kind=keep_values(found.function, kept),
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
    at = list(dims(shape))
    if reverse:
        at[0] = shape[0] - 1 - at[0]
    value = TensorValue(buffer=output, shape=shape, index=tuple(at[k] for k in order))
    wanted = dtype_of(fake.dtype)
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
    return [one.name if isinstance(one, Buffer) else "" for one in inputs]


def _load_outer(value: Scalar, builder: Builder, given: dict[str, Value], device: str) -> Scalar:
    """`value` with loads of what the function is `given`, on `device`."""

    def visit(one: Scalar) -> Scalar:
        if not isinstance(one, Load):
            return one
        outer = given.get(one.buffer)
        if not isinstance(outer, TensorValue):
            raise NotLowered("a function that reads a number from the run")
        return builder.read(builder.move_to(outer, device), one.index)

    (made,) = rewrite((value,), visit)
    return made


def _find_used(node: torch.fx.Node) -> set[int]:
    """Return which of the results anybody asks for."""
    items = {user.args[1] for user in node.users if user.target is operator.getitem}
    return {item for item in items if isinstance(item, int)} or {0}


def _turned_round(node: torch.fx.Node) -> bool:
    """Tell if all that is scanned has been turned round for this."""
    rows: Any = node.args[1]
    return all(
        isinstance(row, torch.fx.Node) and row.target is aten.flip.default and row.args[1] in ([0], (0,))
        for row in rows
    )


def _memory_order(strides: Sequence[Expr]) -> list[int]:
    """The dimensions, those with larger strides first, as far as that is known; a stable order."""
    order: list[int] = []
    for k, stride in enumerate(strides):
        place = len(order)
        while place and _is_less(strides[order[place - 1]], stride):
            place -= 1
        order.insert(place, k)
    return order


def _is_less(a: Expr, b: Expr) -> bool:
    return provably_le(a, b) and not provably_le(b, a)


def write_out_other_scans(
    gm: torch.fx.GraphModule, is_scalar: Callable[[torch.fx.GraphModule], bool]
) -> torch.fx.GraphModule:
    """`gm` itself if all its associative scans have functions of which `is_scalar` holds; else a copy that
    calls `scan` for others.
    """
    others = [
        node.name
        for node in gm.graph.nodes
        if is_associative_scan(node) and not is_scalar(_function_of(gm, node))
    ]
    if not others:
        return gm
    made = torch.fx.GraphModule(gm, copy_graph(gm.graph))
    made.meta.update(gm.meta)
    for node in list(made.graph.nodes):
        if node.name in others:
            _write_out(made, node)
    made.recompile()
    return made


def _function_of(gm: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule:
    found = gm.get_submodule(str(getattr(node.args[0], "target", "")))
    assert isinstance(found, torch.fx.GraphModule)
    return found


def _write_out(gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Replace `node` by a `scan` that carries the first rows, and in whose results the first rows
    come first.
    """
    _, rows, others = node.args
    assert isinstance(rows, list | tuple)
    name = f"{node.name}_step"
    setattr(gm, name, _step(_function_of(gm, node), len(rows)))
    fakes = [row.meta["val"] for row in rows if isinstance(row, torch.fx.Node)]
    with gm.graph.inserting_before(node):
        first = [insert_call(gm.graph, node, aten.slice.Tensor, (row, 0, 0, 1)) for row in rows]
        carried = [insert_call(gm.graph, node, aten.select.int, (row, 0, 0)) for row in rows]
        rest = [insert_call(gm.graph, node, aten.slice.Tensor, (row, 0, 1)) for row in rows]
        step = gm.graph.get_attr(name)
        scan = gm.graph.call_function(torch.ops.higher_order.scan, (step, carried, rest, others))
        scan.meta = {
            **where(node),
            "val": (*(one.meta["val"] for one in carried), *(one.meta["val"] for one in rest)),
        }
        results = []
        for k in range(len(fakes)):
            item = gm.graph.call_function(operator.getitem, (scan, len(fakes) + k))
            item.meta = {**where(node), "val": rest[k].meta["val"]}
            results.append(insert_call(gm.graph, node, aten.cat.default, ([first[k], item],)))
    for user in list(node.users):
        # the results are taken apart at once
        number: Any = user.args[1]
        user.replace_all_uses_with(results[number])
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _step(function: torch.fx.GraphModule, count: int) -> torch.fx.GraphModule:
    """`function`, which gives what is carried to the next row, and once more as the row's results."""
    made = torch.fx.GraphModule(function, copy_graph(function.graph))
    output = made.graph.output_node()
    results: Any = output.args[0]
    assert len(results) == count
    output.args = ((*results, *results),)
    return made
