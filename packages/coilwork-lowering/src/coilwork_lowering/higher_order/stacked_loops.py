"""`while_loop_stack_output`, a loop that keeps what each round returns: torch's gradients of `while_loop`
need that.

How many rounds there are is known when they are over, and a stack needs its size before. So the loop runs
twice: a `while_loop` that counts, and then as many rounds as it counted, which store their results in stacks.
A body that draws random numbers, or does more than compute, must not run twice; its loop stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx

from coilwork_lowering.facts.fx_nodes import get_operator_name
from coilwork_lowering.higher_order.rounds import RoundNumber, run_rounds, store_row
from coilwork_lowering.higher_order.scan import copy_call, copy_origin, insert_call
from coilwork_lowering.torch_compat.graphs import copy_graph
from coilwork_lowering.torch_compat.operators import Overload, get_schema
from coilwork_lowering.torch_compat.sizes import create_count, get_shape_env

aten: Final = torch.ops.aten


def is_stacked_loop(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Tell if `node` is such a loop, and its rounds may run twice."""
    if node.op != "call_function" or get_operator_name(node) != "while_loop_stack_output":
        return False
    return all(_is_repeatable(part) for part in _regions(gm, node))


def expand_stacked_loops(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` itself if it calls no such loop, else a copy that counts rounds and runs them."""
    if not any(is_stacked_loop(gm, node) for node in gm.graph.nodes):
        return gm
    result = fx.GraphModule(gm, copy_graph(gm.graph))
    result.meta.update(gm.meta)
    for node in list(result.graph.nodes):
        if is_stacked_loop(result, node):
            with result.graph.inserting_before(node):
                _expand(result, node)
    result.recompile()
    return result


def _regions(gm: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    for operand in node.all_input_nodes:
        held = getattr(gm, str(operand.target), None) if operand.op == "get_attr" else None
        if isinstance(held, fx.GraphModule):
            yield held


def _is_repeatable(region: fx.GraphModule) -> bool:
    for node in region.graph.nodes:
        target = node.target
        if isinstance(target, Overload) and (
            torch.Tag.nondeterministic_seeded in target.tags or get_schema(target).is_mutable
        ):
            return False
        if get_operator_name(node) == "with_effects":
            return False
        if not all(_is_repeatable(inner) for inner in _regions(region, node)):
            return False
    return True


def _expand(gm: fx.GraphModule, node: fx.Node) -> None:
    """Replace `node`, `while_loop_stack_output(condition, body, carried, extra)`."""
    condition, body, carried, extra = node.args
    assert isinstance(carried, list | tuple) and isinstance(extra, list | tuple)
    stacks = node.meta["val"]
    kept = stacks[0].shape[0]
    device = stacks[0].device
    number = insert_call(gm.graph, node, aten.full.default, ([], 0), dtype=torch.int64, device=device)
    operands = (number, *carried, *extra)
    counted = fx.GraphModule({}, fx.Graph())
    _fill_counting(counted, node, _region_of(gm, condition), operands, is_body=False, carried=len(carried))
    stepping = fx.GraphModule({}, fx.Graph())
    _fill_counting(stepping, node, _region_of(gm, body), operands, is_body=True, carried=len(carried))
    regions = (
        _attach(gm, f"{node.name}_counted", counted),
        _attach(gm, f"{node.name}_counting", stepping),
    )
    loop = gm.graph.call_function(torch.ops.higher_order.while_loop)
    loop.args = (*regions, (number, *carried), tuple(extra))
    loop.meta = {
        **copy_origin(node),
        "val": (number.meta["val"], *(_value_of(one) for one in carried)),
    }
    count = gm.graph.call_function(operator.getitem, (loop, 0))
    count.meta = {**copy_origin(node), "val": number.meta["val"]}
    rounds = _read(gm.graph, node, count, create_count(get_shape_env(kept)))
    # a loop without rounds keeps what it began with
    size = _read(gm.graph, node, insert_call(gm.graph, node, aten.clamp.default, (count, 1)), kept)
    memory = [
        insert_call(
            gm.graph,
            node,
            aten.empty.memory_format,
            ([size.meta["val"], *stack.shape[1:]],),
            dtype=stack.dtype,
            device=stack.device,
        )
        for stack in stacks
    ]
    for one, first in zip(memory, carried, strict=True):
        store = gm.graph.call_function(store_row, (one, 0, first, False))
        store.meta = {**copy_origin(node), "val": None}
    storing = fx.GraphModule({}, fx.Graph())
    _fill_storing(storing, node, _region_of(gm, body), (carried, memory, extra), rounds.meta["val"])
    attribute = _attach(gm, f"{node.name}_storing", storing)
    run = gm.graph.call_function(run_rounds)
    run.args = (rounds, attribute, tuple(carried), (*memory, *extra))
    last = tuple(_value_of(one) for one in carried)
    run.meta = {**copy_origin(node), "val": last}
    for user in list(node.users):
        # every user takes one of the stacks
        position: Any = user.args[1]
        user.args = (run, len(last) + position)
    gm.graph.erase_node(node)


def _region_of(gm: fx.GraphModule, attribute: Any) -> fx.GraphModule:
    region = gm.get_submodule(str(attribute.target))
    assert isinstance(region, fx.GraphModule)
    return region


def _attach(gm: fx.GraphModule, name: str, region: fx.GraphModule) -> fx.Node:
    region.recompile()
    setattr(gm, name, region)
    return gm.graph.get_attr(name)


def _value_of(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, fx.Node) else operand


def _read(graph: fx.Graph, node: fx.Node, number: fx.Node, value: torch.SymInt) -> fx.Node:
    """Return the integer that the tensor `number` holds, which torch calls `value`."""
    read = graph.call_function(aten._local_scalar_dense.default, (number,))
    read.meta = {**copy_origin(node), "val": value}
    return read


def _take(graph: fx.Graph, operands: Sequence[Any], name: str) -> list[fx.Node]:
    placeholders = []
    for k, operand in enumerate(operands):
        placeholder = graph.placeholder(f"{name}_{k}")
        placeholder.meta["val"] = _value_of(operand)
        placeholders.append(placeholder)
    return placeholders


def _fill_counting(
    to: fx.GraphModule,
    node: fx.Node,
    region: fx.GraphModule,
    operands: Sequence[Any],
    *,
    is_body: bool,
    carried: int,
) -> None:
    """`region` of all operands but the first, which is the number of rounds so far; a body returns the next
    number, too.
    """
    to.region = region
    number, *rest = _take(to.graph, operands, "operand")
    results = copy_call(to, node, region, "region", rest)
    if not is_body:
        to.graph.output(results[0])
        return
    following = insert_call(to.graph, node, aten.add.Tensor, (number, 1))
    to.graph.output((following, *results[:carried]))


def _fill_storing(
    to: fx.GraphModule,
    node: fx.Node,
    body: fx.GraphModule,
    operands: tuple[Sequence[Any], Sequence[fx.Node], Sequence[Any]],
    rounds: torch.SymInt,
) -> None:
    """`body`, which stores what it returns; `operands` are carried, the stacks, and others."""
    to.region = body
    carried, stacks, extra = (
        _take(to.graph, part, name)
        for part, name in zip(operands, ("carried", "stack", "extra"), strict=True)
    )
    number = to.graph.placeholder("number")
    number.meta["val"] = RoundNumber(rounds)
    results = copy_call(to, node, body, "region", [*carried, *extra])
    for stack, result in zip(stacks, results, strict=True):
        store = to.graph.call_function(store_row, (stack, number, result, False))
        store.meta = {**copy_origin(node), "val": None}
    to.graph.output(tuple(results))
