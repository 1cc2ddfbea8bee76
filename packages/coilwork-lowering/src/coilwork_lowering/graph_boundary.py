"""The boundary of a lowered graph: its inputs, the constants that it names, and its outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from coilwork_ir.buffers import Buffer, Constant, GraphInput, GraphOutput, Ref
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.scalar import const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import (
    NumberValue,
    Relation,
    TensorValue,
    Value,
    are_same_strides,
    find_layout,
    format_device,
    get_dtype,
    make_whole_value,
)
from coilwork_lowering.errors import LoweringError, make_refusal
from coilwork_lowering.extern.asynchronous import settle
from coilwork_lowering.extern.quantization import require_floats
from coilwork_lowering.facts.fx_nodes import get_origin
from coilwork_lowering.higher_order.rounds import RoundNumber
from coilwork_lowering.joint.free_strides import has_free_strides
from coilwork_lowering.python_arithmetic import lower_condition, truth
from coilwork_lowering.reinplacing import Reinplacing
from coilwork_lowering.scalar_math import index
from coilwork_lowering.torch_compat.graphs import is_fake, read_number
from coilwork_lowering.torch_compat.operators import Overload, get_schema
from coilwork_lowering.torch_compat.sizes import find_plain_symbol, get_shape_env

if TYPE_CHECKING:
    import sympy


# inputs and constants


class GraphInputs:
    """Inputs and constants of `gm` so far, declared in `builder`, in order.

    Attributes:
        strides: of each input where its metadata may be wrong; None: keep.
        inputs: one per placeholder.
        names: of the placeholders.
        constants: the graph's, by key.
        tensors: the tensors that these keys name.
        operands: of a nested graph, what its inputs are bound to, whose layout they have.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        builder: Builder,
        *,
        strides: Sequence[Sequence[int | torch.SymInt] | None] | None,
    ) -> None:
        self.gm = gm
        self.builder = builder
        self.strides = strides
        self.inputs: list[GraphInput] = []
        self.constants: list[Constant] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.operands: list[TensorValue | None] = []

    def symbols(self) -> tuple[Expr, ...]:
        """Symbols that inputs mention: as themselves, in shapes or in strides."""
        seen: dict[Expr, None] = {}
        for entry in self.inputs:
            expressions = (entry,) if isinstance(entry, Expr) else (*entry.shape, *entry.strides)
            for expression in expressions:
                for s in sorted(expression.free_symbols, key=lambda e: e.name):
                    seen.setdefault(s)
        return tuple(seen)

    def input(self, node: torch.fx.Node) -> Value:
        """Return the value of the placeholder `node`: a tensor or a size.

        Raises:
            LoweringError: it is anything else.
        """
        position = len(self.inputs)
        fake = node.meta.get("val")
        bound = self.operands[position] if self.operands else None
        if isinstance(fake, torch.Tensor):
            strides, captured = self._strides(position), self.builder.sizes.exprs(fake.stride())
            buffer = self.builder.declare(
                self.builder.sizes.exprs(fake.shape),
                # capture shows quantised operands as floats
                bound.dtype if bound is not None and bound.dtype.is_quantized else get_dtype(fake.dtype),
                format_device(fake.device),
                strides=captured if strides is None else strides,
                name=node.name,
            )
            if not self.operands and not are_same_strides(buffer.shape, buffer.strides, captured):
                self.builder.relaid_inputs.add(buffer.name)
            self.inputs.append(buffer)
            self.builder.sizes.note_input_sizes(buffer.shape)
            return make_whole_value(buffer)
        if isinstance(fake, torch.SymInt) and bound is not None:
            # an integer that differs from round to round, in a tensor of no dimensions
            carried = self.builder.declare((), bound.dtype, bound.device, name=node.name)
            self.inputs.append(carried)
            return self.builder.read_integer(make_whole_value(carried), fake)
        if isinstance(fake, torch.SymInt):
            name = self.builder.sizes.name_of(fake)
            passed = None if name is None else self.builder.sizes.symbol(name, get_shape_env(fake))
            self.inputs.append(_make_unused_symbol(node.name) if passed is None else passed)
            return self.builder.sizes.expr(fake)
        if isinstance(fake, RoundNumber):
            self.inputs.append(number := self.builder.sizes.number_rounds(fake.rounds))
            return number
        if isinstance(fake, torch.SymBool):
            # what the forward compared and the backward asks again, passed as 0 or 1
            self.inputs.append(passed := symbol(node.name))
            return Relation(lhs=passed, relation="ne", rhs=as_expr(0))
        if isinstance(fake, int):
            self.inputs.append(_make_unused_symbol(node.name))
            return as_expr(int(fake))
        raise self._refusal(
            node, "graph-form", f"input {node.name} is neither a tensor nor an integer: {fake!r}"
        )

    def _strides(self, position: int) -> tuple[Expr, ...] | None:
        """Strides of an input where they are known better than from its metadata."""
        if self.operands:
            bound = self.operands[position]
            return None if bound is None else bound.buffer.strides
        strides = None if self.strides is None else self.strides[position]
        return None if strides is None else self.builder.sizes.exprs(strides)

    def attribute(self, node: torch.fx.Node) -> Value:
        """Return the value of a tensor or nested graph that `gm` holds.

        Raises:
            LoweringError: it is anything else.
        """
        attribute: Any = self.gm
        for part in str(node.target).split("."):
            attribute = getattr(attribute, part)
        if isinstance(attribute, torch.fx.GraphModule):
            return attribute
        if not isinstance(attribute, torch.Tensor):
            raise self._refusal(
                node, "graph-form", f"attribute {node.target} is a {type(attribute).__name__}"
            )
        fake = node.meta.get("val", attribute)
        device = format_device(fake.device)
        if (
            attribute.dim() == 0
            and not get_dtype(attribute.dtype).is_opaque
            and not is_fake(attribute)
            and is_only_read(node)
        ):
            # A number written as a tensor. As a constant of the code it costs no load, nor a copy between
            # devices.
            value = const(read_number(attribute), get_dtype(attribute.dtype))
            return self.builder.pointwise((), value.dtype, device, lambda point: value, name=node.name)
        key = str(node.target)
        buffer = self.builder.declare(
            self.builder.sizes.exprs(fake.shape),
            get_dtype(fake.dtype),
            format_device(attribute.device),
            strides=self.builder.sizes.exprs(fake.stride()),
            name=node.name,
        )
        self.constants.append(Constant(buffer=buffer, key=key))
        self.tensors[key] = attribute
        return self.builder.move_to(make_whole_value(buffer), device)

    def _refusal(self, node: torch.fx.Node, code: str, what: str) -> LoweringError:
        return make_refusal(node, code, what, origins=self.builder.origins)


def list_symbol_inputs(gm: torch.fx.GraphModule) -> list[sympy.Symbol]:
    """Return the symbols that `gm` takes as integers."""
    values = (node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder")
    names = (find_plain_symbol(value) for value in values if isinstance(value, torch.SymInt))
    return [name for name in names if name is not None]


def _make_unused_symbol(name: str) -> Expr:
    """Return a name for an integer input that the graph knows without being told."""
    return symbol(f"unused_{name}")


def is_only_read(node: torch.fx.Node) -> bool:
    """Tell whether no user of `node` writes into it or returns a view of it."""
    return all(
        isinstance(user.target, Overload) and not any(a.alias_info for a in get_schema(user.target).arguments)
        for user in node.users
    )


# outputs


class GraphOutputs:
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
                return Ref(self.builder.store_number(scalar).buffer.name)
            case Relation() | bool() if self.is_region:
                return Ref(self.builder.store_number(lower_condition(value)).buffer.name)
            case Expr() | int() if self.is_region:
                return Ref(self.builder.store_number(index(as_expr(value))).buffer.name)
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
        self.builder.origins = (get_origin(node),)
        if self.is_region:
            require_floats(node, "an operator of control flow", [value], self.builder.origins)
        strides = self.builder.sizes.exprs(node.meta["val"].stride())
        if self.buffers:
            strides = self.buffers[len(self.outputs)].strides
        if not self.overwriting.may_return(node, value):
            return self.builder.copy(value, strides=strides).buffer
        root, layout = self.builder.buffers.root(value.buffer.name), find_layout(value)
        if self.builder.in_flight.awaits(root):
            if layout is None or not are_same_strides(value.shape, layout.strides, strides):
                # what is still being written can't be copied
                settle(self.builder, (root,), written=False)
        return self._rename_returned_part(node, self.builder.materialize(value, strides).buffer)

    def _rename_returned_part(self, node: torch.fx.Node, buffer: Buffer) -> Buffer:
        """`buffer`, or the same memory under another name where it is returned as another part of a tensor.

        Parts may coincide, in a tensor that is expanded. Autograd knows results by identity, and one that
        came twice would get the gradient of its last place alone.
        """
        if node.target is not operator.getitem or self._returned.setdefault(buffer.name, node) is node:
            return buffer
        return self.builder.view_again(buffer)


def list_returned(output: torch.fx.Node) -> list[Any]:
    """Return the items that the output node returns."""
    result = output.args[0]
    return list(result) if isinstance(result, list | tuple) else [result]
