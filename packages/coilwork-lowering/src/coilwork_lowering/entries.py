"""What a graph begins with: its inputs, and the constants that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from coilwork_ir.buffers import Constant, GraphInput
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.scalar import const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.torch_types import device_text, dtype_of
from coilwork_lowering.building.values import TensorValue, Value, same_strides, whole
from coilwork_lowering.errors import LoweringError, refusal
from coilwork_lowering.torch_compat.fakes import is_fake, number_in
from coilwork_lowering.torch_compat.operators import Overload, schema_of
from coilwork_lowering.torch_compat.sizes import plain_symbol, shape_env_of

if TYPE_CHECKING:
    import sympy


class Entries:
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
        found: dict[Expr, None] = {}
        for given in self.inputs:
            expressions = (given,) if isinstance(given, Expr) else (*given.shape, *given.strides)
            for expression in expressions:
                for s in sorted(expression.free_symbols, key=lambda e: e.name):
                    found.setdefault(s)
        return tuple(found)

    def input(self, node: torch.fx.Node) -> Value:
        """The value of a placeholder: a tensor or a size.

        Raises:
            LoweringError: it is anything else.
        """
        position = len(self.inputs)
        fake = node.meta.get("val")
        bound = self.operands[position] if self.operands else None
        if isinstance(fake, torch.Tensor):
            given, captured = self._strides(position), self.builder.sizes.exprs(fake.stride())
            buffer = self.builder.declare(
                self.builder.sizes.exprs(fake.shape),
                # capture shows quantised operands as floats
                bound.dtype if bound is not None and bound.dtype.is_quantized else dtype_of(fake.dtype),
                device_text(fake.device),
                strides=captured if given is None else given,
                name=node.name,
            )
            if not self.operands and not same_strides(buffer.shape, buffer.strides, captured):
                self.builder.relaid_inputs.add(buffer.name)
            self.inputs.append(buffer)
            self.builder.sizes.given(buffer.shape)
            return whole(buffer)
        if isinstance(fake, torch.SymInt) and bound is not None:
            # an integer that differs from round to round, in a tensor of no dimensions
            carried = self.builder.declare((), bound.dtype, bound.device, name=node.name)
            self.inputs.append(carried)
            return self.builder.read_integer(whole(carried), fake)
        if isinstance(fake, torch.SymInt):
            name = self.builder.sizes.name_of(fake)
            passed = None if name is None else self.builder.sizes.symbol(name, shape_env_of(fake))
            self.inputs.append(_unused_symbol(node.name) if passed is None else passed)
            return self.builder.sizes.expr(fake)
        if isinstance(fake, int):
            self.inputs.append(_unused_symbol(node.name))
            return as_expr(int(fake))
        raise self._refusal(
            node, "graph-form", f"input {node.name} is neither a tensor nor an integer: {fake!r}"
        )

    def _strides(self, position: int) -> tuple[Expr, ...] | None:
        """Strides of an input where they are known better than from its metadata."""
        if self.operands:
            bound = self.operands[position]
            return None if bound is None else bound.buffer.strides
        given = None if self.strides is None else self.strides[position]
        return None if given is None else self.builder.sizes.exprs(given)

    def attribute(self, node: torch.fx.Node) -> Value:
        """The value of a tensor or nested graph that `gm` holds.

        Raises:
            LoweringError: it is anything else.
        """
        found: Any = self.gm
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, torch.fx.GraphModule):
            return found
        if not isinstance(found, torch.Tensor):
            raise self._refusal(node, "graph-form", f"attribute {node.target} is a {type(found).__name__}")
        fake = node.meta.get("val", found)
        device = device_text(fake.device)
        if (
            found.dim() == 0
            and not dtype_of(found.dtype).is_opaque
            and not is_fake(found)
            and only_read(node)
        ):
            # A number written as a tensor. As a constant of the code it costs no load, nor a copy between
            # devices.
            value = const(number_in(found), dtype_of(found.dtype))
            return self.builder.pointwise((), value.dtype, device, lambda point: value, name=node.name)
        key = str(node.target)
        buffer = self.builder.declare(
            self.builder.sizes.exprs(fake.shape),
            dtype_of(fake.dtype),
            device_text(found.device),
            strides=self.builder.sizes.exprs(fake.stride()),
            name=node.name,
        )
        self.constants.append(Constant(buffer=buffer, key=key))
        self.tensors[key] = found
        return self.builder.moved(whole(buffer), device)

    def _refusal(self, node: torch.fx.Node, code: str, what: str) -> LoweringError:
        return refusal(node, code, what, origins=self.builder.origins)


def passed_symbols(gm: torch.fx.GraphModule) -> list[sympy.Symbol]:
    """The symbols that `gm` takes as integers."""
    given = (node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder")
    names = (plain_symbol(value) for value in given if isinstance(value, torch.SymInt))
    return [name for name in names if name is not None]


def _unused_symbol(name: str) -> Expr:
    """A name for an integer input that the graph knows without being told."""
    return symbol(f"unused_{name}")


def only_read(node: torch.fx.Node) -> bool:
    """Tell whether no user of `node` writes into it or returns a view of it."""
    return all(
        isinstance(user.target, Overload) and not any(a.alias_info for a in schema_of(user.target).arguments)
        for user in node.users
    )
