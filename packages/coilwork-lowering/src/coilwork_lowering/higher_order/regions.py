"""Sort the arguments of a higher-order operator into the operands of a `Cond` or `Loop` node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Cond, Graph, Loop, Mutation
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import NumberValue, Relation, TensorValue, Value, make_whole_value
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.extern.quantization import require_floats
from coilwork_lowering.higher_order.rounds import store_row
from coilwork_lowering.python_arithmetic import lower_condition
from coilwork_lowering.scalar_math import index

Nested = Callable[[torch.fx.GraphModule, str, list[TensorValue | None], tuple[Buffer, ...]], Graph]


def pass_operand(builder: Builder, value: Value, node: torch.fx.Node) -> tuple[Argument, TensorValue | None]:
    """Return an operand of a region, and the whole buffer that it is, if it is a tensor."""
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
        predicate = builder.store_number(lower_condition(predicate))
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
    """`while_loop(condition, body, carried, extra)`.

    Raises:
        LoweringError[no-lowering]: operands are not tensors and integers.
        MistracedError: what is carried is quantised.
    """
    condition, body, carried, extra = arguments
    assert isinstance(condition, torch.fx.GraphModule) and isinstance(body, torch.fx.GraphModule)
    operands = _LoopOperands(builder, node, _items(carried), _items(extra))
    return operands.add_loop(
        body, nested, condition=nested(condition, f"{node.name}_condition", operands.layouts, ())
    )


def lower_rounds(
    builder: Builder, node: torch.fx.Node, arguments: tuple[Value, ...], nested: Nested
) -> Value:
    """`run_rounds(rounds, body, carried, extra)`; results are what is carried last, and then what has become
    of operands among `extra` that `body` stores rows in.

    Raises:
        LoweringError, MistracedError: as `lower_while`.
    """
    rounds, body, carried, extra = arguments
    assert isinstance(rounds, Expr | int) and isinstance(body, torch.fx.GraphModule)
    operands = _LoopOperands(builder, node, _items(carried), _items(extra))
    return operands.add_loop(body, nested, rounds=as_expr(rounds))


class _LoopOperands:
    """The operands of a loop, laid out: carried tensors as the results are, integers in tensors."""

    def __init__(
        self, builder: Builder, node: torch.fx.Node, carried: tuple[Value, ...], extra: tuple[Value, ...]
    ) -> None:
        self._builder = builder
        self._node = node
        require_floats(node, "a loop", carried, builder.origins)
        self._results = _results(node)
        self._outputs = _outputs(builder, self._results)
        # what is carried has one layout in every round, the results'
        first: list[Value] = []
        for value, output in zip(carried, self._outputs, strict=True):
            if isinstance(value, Expr | int):
                value = builder.store_number(index(as_expr(value)))
            if isinstance(value, TensorValue):
                value = builder.materialize(value, output.strides)
            first.append(value)
        self._carried = [pass_operand(builder, value, node) for value in first]
        self._extra = [pass_operand(builder, value, node) for value in extra]

    @property
    def layouts(self) -> list[TensorValue | None]:
        """The buffers that operands are; None for numbers."""
        return [placed for _, placed in (*self._carried, *self._extra)]

    def add_loop(
        self,
        body: torch.fx.GraphModule,
        nested: Nested,
        *,
        condition: Graph | None = None,
        rounds: Expr | None = None,
    ) -> Value:
        """Append the loop; its results."""
        builder, layouts = self._builder, self.layouts
        taken = [layouts[position] for position in _find_overwritten(body)]
        mutates = tuple(_rename_memory(builder, item.buffer) for item in taken if item is not None)
        numbered = layouts if rounds is None else [*layouts, None]
        builder.add(
            Loop(
                body=nested(body, f"{self._node.name}_body", numbered, self._outputs),
                condition=condition,
                rounds=rounds,
                carried=tuple(argument for argument, _ in self._carried),
                extra=tuple(argument for argument, _ in self._extra),
                outputs=self._outputs,
                mutates=mutates,
                origins=builder.origins,
            )
        )
        for mutation in mutates:
            builder.buffers.overwrite(mutation.source, mutation.output)
        last = _values(builder, self._results, self._outputs)
        return (*last, *(make_whole_value(mutation.output) for mutation in mutates))


def _find_overwritten(body: torch.fx.GraphModule) -> list[int]:
    """Return positions of the inputs of `body` that it overwrites."""
    stored = {node.args[0] for node in body.graph.nodes if node.target is store_row}
    return [k for k, node in enumerate(body.graph.find_nodes(op="placeholder")) if node in stored]


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
        builder.read_integer(make_whole_value(buffer), fake)
        if isinstance(fake, torch.SymInt)
        else make_whole_value(buffer)
        if isinstance(fake, torch.Tensor)
        else int(fake)
        for fake, buffer in zip(results, outputs, strict=True)
    )
