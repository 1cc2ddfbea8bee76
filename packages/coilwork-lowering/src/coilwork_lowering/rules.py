"""One row of the lowering table, and the call it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue, Value, format_device, get_dtype
from coilwork_lowering.torch_compat.graphs import find_decomposed_operator


class NotLowered(Exception):
    """A rule does not cover these arguments; the call goes to the extern fallback."""


class Decisions(Protocol):
    """Decides which updates overwrite the tensor that they are an update of: `reinplacing.py`."""

    def can_scatter_into(self, node: torch.fx.Node, target: TensorValue) -> bool:
        """Tell if `node`, which stores at positions from data, may store into `target` itself."""
        ...

    def can_replace_part(self, node: torch.fx.Node, target: TensorValue, part: TensorValue) -> bool:
        """Tell if `node`, which replaces `part` of `target`, should store into `target` itself."""
        ...

    def can_skip_copy(self, node: torch.fx.Node, target: TensorValue) -> bool:
        """Tell if `node`, a copy of `target` that an operator writes into, may be `target` itself."""
        ...

    def is_taken(self, value: TensorValue) -> bool:
        """Tell if the memory of `value` was overwritten by one of these decisions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an operator.

    Attributes:
        node: the FX node.
        target: qualified overload, e.g. `"aten.add.Tensor"`.
        arguments: every argument of the schema by name, defaults filled in, as lowered values.
        fakes: the same arguments as fake tensors and plain Python values.
        result: the fake result, `node.meta["val"]`.
        updates: decides what is overwritten.
        quantized: the element type of results that capture shows as `float32` because it knows no quantised
            ones.
    """

    node: torch.fx.Node
    target: str
    arguments: Mapping[str, Value]
    fakes: Mapping[str, Any]
    result: Any
    updates: Decisions
    quantized: DType | None = None

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def captured_operator(self) -> str:
        """The operator that the program called, before decomposition, without an overload."""
        behind = find_decomposed_operator(self.node)
        return self.target if behind is None or self.target.startswith(f"{behind}.") else behind

    @property
    def touches_opaque(self) -> bool:
        """Tell whether a tensor or number takes part of a type that generated code does not compute with."""
        stack: list[Any] = [*self.fakes.values(), *self.arguments.values(), self.result]
        while stack:
            item = stack.pop()
            if isinstance(item, list | tuple):
                stack.extend(item)
            elif isinstance(item, complex) or (isinstance(item, TensorValue) and item.dtype.is_opaque):
                return True
            elif isinstance(item, torch.Tensor | torch.dtype):
                if get_dtype(item.dtype if isinstance(item, torch.Tensor) else item).is_opaque:
                    return True
        return False

    def tensor(self, name: str) -> TensorValue:
        """Return the tensor argument `name`.

        Raises:
            NotLowered: it is something else.
        """
        value = self.arguments[name]
        if not isinstance(value, TensorValue):
            raise NotLowered(f"argument {name} is no tensor")
        return value

    def integer(self, name: str) -> int:
        """Return the integer argument `name`.

        Raises:
            NotLowered: it is symbolic or no integer.
        """
        return require_int(self.arguments[name])

    def integers(self, name: str) -> tuple[int, ...]:
        """Return the list of integers `name`; None counts as empty, a number as a list of one."""
        value = self.arguments[name]
        if value is None:
            return ()
        items = value if isinstance(value, tuple) else (value,)
        return tuple(require_int(item) for item in items)

    @property
    def fake(self) -> torch.Tensor:
        """The only result, a fake tensor."""
        if not isinstance(self.result, torch.Tensor):
            raise NotLowered("the result is not one tensor")
        return self.result

    @property
    def dtype(self) -> DType:
        """Element type of the only result."""
        return get_dtype(self.fake.dtype)

    @property
    def device(self) -> str:
        """Device of the only result."""
        return format_device(self.fake.device)

    def shape(self, builder: Builder) -> Shape:
        """Shape of the only result."""
        return builder.sizes.exprs(self.fake.shape)

    def strides(self, builder: Builder) -> tuple[Expr, ...]:
        """Strides for a newly computed only result."""
        return builder.result_strides(self.fake)


Lower: TypeAlias = Callable[[Builder, Call], Value]


@dataclass(frozen=True, slots=True)
class Rule:
    """`lower` serves every overload in `targets`."""

    targets: tuple[str, ...]
    lower: Lower


def require_int(value: Value) -> int:
    """`value` if it is a known integer.

    Raises:
        NotLowered: it is not.
    """
    if isinstance(value, Expr) and value.is_const:
        return value.value
    if isinstance(value, int):
        return int(value)
    raise NotLowered(f"{value!r} is not a known integer")


def require_size(value: Value) -> Expr:
    """`value` as an index expression.

    Raises:
        NotLowered: it is no integer.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, int):
        return as_expr(int(value))
    raise NotLowered(f"{value!r} is not an integer")


def wrap_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front; a 0-dimensional tensor is taken as having one dimension.

    Raises:
        NotLowered: out of range, as ATen will say.
    """
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise NotLowered(f"dimension {dim} of a tensor of {rank} dimensions")
    return dim % limit
