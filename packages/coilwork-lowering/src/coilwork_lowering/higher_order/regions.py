"""Which arguments of a higher-order operator become what in a `Cond` or `While` node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Cond, Graph, Mutation, While
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import NumberValue, Relation, TensorValue, Value, whole
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.extern.quantization import require_floats
from coilwork_lowering.python_arithmetic import condition_value
from coilwork_lowering.scalar_math import index

Nested = Callable[[torch.fx.GraphModule, str, list[TensorValue | None], tuple[Buffer, ...]], Graph]


def pass_operand(builder: Builder, value: Value, node: torch.fx.Node) -> tuple[Argument, TensorValue | None]:
    """An operand of a region, and the whole buffer that it is, if it is a tensor."""
    match value:
        case TensorValue():
            placed = builder.materialize(value, None)
            return Ref(placed.buffer.name), placed
        case NumberValue() | Relation() | torch.fx.GraphModule() | tuple():
            raise LoweringError(
                "no-lowering",
                f"an operand of {node.target} is neither a tensor nor an integer",
                node=node.name,
                origins=builder.origins,
                remedy="run this graph in eager mode",
            )
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            raise LoweringError("argument", f"operand {value} of {node.target}", node=node.name)
    return value, None


def lower_cond(builder: Builder, node: torch.fx.Node, arguments: tuple[Value, ...], nested: Nested) -> Value:
    """`cond(predicate, then, otherwise, operands)`.

    Raises:
        LoweringError[no-lowering]: operands are not tensors and integers.
    """
    predicate, then, otherwise, operands = arguments
    if not isinstance(predicate, TensorValue):
        # a comparison of sizes, or a number that the run tells
        predicate = builder.store_number(condition_value(predicate))
    assert isinstance(then, torch.fx.GraphModule) and isinstance(otherwise, torch.fx.GraphModule)
    pairs = [pass_operand(builder, v, node) for v in _items(operands)]
    layouts = [placed for _, placed in pairs]
    results = _results(node)
    outputs = _outputs(builder, results)
    builder.add(
        Cond(
            predicate=builder.materialize(predicate, None).buffer.name,
            then=nested(then, f"{node.name}_then", layouts, outputs),
            otherwise=nested(otherwise, f"{node.name}_otherwise", layouts, outputs),
            operands=tuple(argument for argument, _ in pairs),
            outputs=outputs,
            origins=builder.origins,
        )
    )
    return _values(builder, results, outputs)


def lower_while(builder: Builder, node: torch.fx.Node, arguments: tuple[Value, ...], nested: Nested) -> Value:
    """`while_loop(condition, body, carried, extra)`; carried tensors are laid out as eager's are, integers
    are tensors.

    Results are what is carried last, and then what has become of operands among `extra` that `body`
    overwrites with a `copy_`.

    Raises:
        LoweringError[no-lowering]: operands are not tensors and integers.
        MistracedError: what is carried is quantised.
    """
    condition, body, carried, extra = arguments
    assert isinstance(condition, torch.fx.GraphModule) and isinstance(body, torch.fx.GraphModule)
    require_floats(node, "while_loop", _items(carried), builder.origins)
    results = _results(node)
    outputs = _outputs(builder, results)
    # what is carried has one layout in every round, the results'
    first: list[Value] = []
    for value, output in zip(_items(carried), outputs, strict=True):
        if isinstance(value, Expr | int):
            value = builder.store_number(index(as_expr(value)))
        first.append(builder.materialize(value, output.strides) if isinstance(value, TensorValue) else value)
    carried_pairs = [pass_operand(builder, v, node) for v in first]
    extra_pairs = [pass_operand(builder, v, node) for v in _items(extra)]
    layouts = [placed for _, placed in (*carried_pairs, *extra_pairs)]
    taken = [layouts[position] for position in _find_overwritten(body)]
    mutates = tuple(_rename_memory(builder, item.buffer) for item in taken if item is not None)
    builder.add(
        While(
            condition=nested(condition, f"{node.name}_condition", layouts, ()),
            body=nested(body, f"{node.name}_body", layouts, outputs),
            carried=tuple(argument for argument, _ in carried_pairs),
            extra=tuple(argument for argument, _ in extra_pairs),
            outputs=outputs,
            mutates=mutates,
            origins=builder.origins,
        )
    )
    for mutation in mutates:
        builder.buffers.overwrite(mutation.source, mutation.output)
    return (*_values(builder, results, outputs), *(whole(mutation.output) for mutation in mutates))


def _find_overwritten(body: torch.fx.GraphModule) -> list[int]:
    """Return positions of the inputs of `body` that it overwrites."""
    copied = {node.args[0] for node in body.graph.nodes if node.target is torch.ops.aten.copy_.default}
    return [k for k, node in enumerate(body.graph.find_nodes(op="placeholder")) if node in copied]


def _rename_memory(builder: Builder, old: Buffer) -> Mutation:
    """`old`, which a node overwrites, and what its memory is called from there on."""
    return Mutation(output=builder.declare_successor(old), source=old.name)


def _items(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


def _results(node: torch.fx.Node) -> list[Any]:
    result = node.meta["val"]
    return list(result) if isinstance(result, list | tuple) else [result]


def _outputs(builder: Builder, results: Sequence[Any]) -> tuple[Buffer, ...]:
    """Return where results are: a number is in a tensor of no dimensions."""
    if not all(isinstance(fake, torch.Tensor | torch.SymInt | int) for fake in results):
        raise LoweringError(
            "no-lowering",
            "a control flow operator that returns something other than tensors and integers",
            origins=builder.origins,
            remedy="return tensors from every branch",
        )
    return tuple(
        builder.declare_like(fake)
        if isinstance(fake, torch.Tensor)
        else builder.declare((), DType.I64, "cpu")
        for fake in results
    )


def _values(builder: Builder, results: Sequence[Any], outputs: Sequence[Buffer]) -> tuple[Value, ...]:
    """Return what the outputs hold. A number that torch does not know is read."""
    return tuple(
        builder.read_integer(whole(buffer), fake)
        if isinstance(fake, torch.SymInt)
        else whole(buffer)
        if isinstance(fake, torch.Tensor)
        else int(fake)
        for fake, buffer in zip(results, outputs, strict=True)
    )
