"""What a graph ends with: its outputs."""

from __future__ import annotations

import operator
from typing import Any

import torch

from coilwork_ir.buffers import Buffer, GraphOutput, Ref
from coilwork_ir.index import Expr, as_expr
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import (
    NumberValue,
    Relation,
    TensorValue,
    Value,
    layout_of,
    same_strides,
)
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.extern.asynchronous import settle
from coilwork_lowering.extern.quantization import require_floats
from coilwork_lowering.facts.origins import origin_of
from coilwork_lowering.joint.saved_strides import has_free_strides
from coilwork_lowering.numbers import condition_value, truth
from coilwork_lowering.reinplacing import Reinplacing
from coilwork_lowering.scalar_math import index


class Results:
    """The outputs of a graph so far, in order.

    Attributes:
        outputs: one per item that was added.
        unseen: tensors among them whose strides no caller sees.
        is_region: whether this is a nested graph, which has no results but tensors: numbers are tensors of no
            dimensions.
        buffers: of a nested graph, what its outputs become, whose layout they get.
    """

    def __init__(self, builder: Builder, overwriting: Reinplacing) -> None:
        self.builder = builder
        self.overwriting = overwriting
        self.outputs: list[GraphOutput] = []
        self.unseen: list[str] = []
        self.is_region = False
        self.buffers: tuple[Buffer, ...] = ()
        # buffers that are returned as parts of tensors, and the first part that each is
        self._returned: dict[str, torch.fx.Node] = {}

    def add(self, item: Any, value: Value) -> None:
        """The graph returns `item`, whose value is `value`.

        Booleans are 0 or 1; numbers that only the run tells are tensors of no dimensions.

        Raises:
            LoweringError: it is neither a tensor nor a number.
        """
        output = self._output(item, value)
        self.outputs.append(output)
        if isinstance(output, Ref) and has_free_strides(item):
            self.unseen.append(output.name)

    def _output(self, item: Any, value: Value) -> GraphOutput:
        match value:
            case NumberValue(scalar):
                return Ref(self.builder.stored(scalar).buffer.name)
            case Relation() | bool() if self.is_region:
                return Ref(self.builder.stored(condition_value(value)).buffer.name)
            case Expr() | int() if self.is_region:
                return Ref(self.builder.stored(index(as_expr(value))).buffer.name)
            case Relation():
                return truth(value)
            case TensorValue():
                return Ref(self._tensor(item, value).name)
            case None | Expr():
                return value
            case bool() | int():
                return as_expr(int(value))
            case float():
                return None
        raise LoweringError(
            "graph-form",
            f"graph output {item} is neither a tensor nor a number",
            node=str(item),
            origins=self.builder.origins,
            remedy="return tensors and numbers only",
        )

    def _tensor(self, node: torch.fx.Node, value: TensorValue) -> Buffer:
        """`value` in memory that the graph may return, with the strides of capture."""
        self.builder.origins = (origin_of(node),)
        if self.is_region:
            require_floats(node, "an operator of control flow", [value], self.builder.origins)
        strides = self.builder.sizes.exprs(node.meta["val"].stride())
        if self.buffers:
            strides = self.buffers[len(self.outputs)].strides
        if not self.overwriting.may_return(node, value):
            return self.builder.copy(value, strides=strides).buffer
        root, layout = self.builder.buffers.root(value.buffer.name), layout_of(value)
        if self.builder.in_flight.awaits(root):
            if layout is None or not same_strides(value.shape, layout.strides, strides):
                # what is still being written can't be copied
                settle(self.builder, (root,), written=False)
        return self._own_view(node, self.builder.placed(value, strides).buffer)

    def _own_view(self, node: torch.fx.Node, buffer: Buffer) -> Buffer:
        """`buffer`, or the same memory under another name where it is returned as another part of a tensor.

        Parts may coincide, in a tensor that is expanded. Autograd knows results by identity, and one that
        came twice would get the gradient of its last place alone.
        """
        if node.target is not operator.getitem or self._returned.setdefault(buffer.name, node) is node:
            return buffer
        return self.builder.view_again(buffer)


def returned_by(output: torch.fx.Node) -> list[Any]:
    """Return what the output node returns."""
    result = output.args[0]
    return list(result) if isinstance(result, list | tuple) else [result]
