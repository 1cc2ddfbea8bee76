"""Declarations that all three IRs share: buffers, symbols that calls bind, arguments of external calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, add_all, as_expr, as_int

DEFAULT_DEVICE: Final = "cpu"
"""The device of a buffer of which none is named; text forms leave it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A strided tensor in memory.

    Attributes:
        name: unique in its graph; the text forms print it with a `%`.
        dtype: element type.
        shape: extents, in elements.
        strides: distance between neighbours along each dimension, in elements; 0 for expanded dimensions.
        device: `"cpu"`, `"cuda:0"`, …: the device it lives on.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str = DEFAULT_DEVICE

    def offset_of(self, index: tuple[Expr, ...]) -> Expr:
        """Flat offset, in elements from the buffer's first, of the element at `index`."""
        return add_all(i * s for i, s in zip(index, self.strides, strict=True))

    @property
    def numel(self) -> Expr:
        """Number of elements."""
        count = as_expr(1)
        for extent in self.shape:
            count = count * extent
        return count

    @property
    def span(self) -> Expr:
        """Elements from the first to one past the last in memory, for non-negative strides; 0 if there are
        none.
        """
        if any(as_int(extent) == 0 for extent in self.shape):
            return as_expr(0)
        return (
            add_all((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
            + 1
        )


def make_contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides for `shape`, in elements."""
    strides: list[Expr] = []
    step = as_expr(1)
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A tensor known at compile time.

    `key` names it in the table of tensors that travels beside the graph (attribute name in the captured
    module).
    """

    buffer: Buffer
    key: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a buffer as an argument or result."""

    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """The number that a buffer of one element holds when the call is made, for an operator that takes no
    tensor there.
    """

    name: str


@dataclass(frozen=True, slots=True)
class TorchValue:
    """A torch constant that is not a number, by attribute: `TorchValue("strided")`,
    `TorchValue("channels_last")`.
    """

    attribute: str


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A `torch.device` argument, e.g. `DeviceValue("cuda:0")`."""

    device: str


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list argument."""

    items: tuple[Argument, ...]


Argument: TypeAlias = (
    Ref
    | Item
    | Expr
    | bool
    | int
    | float
    | complex
    | str
    | DType
    | TorchValue
    | DeviceValue
    | ListValue
    | None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolOutput:
    """A result of a call that is a number, bound to `symbol` from there on (`aten._local_scalar_dense`)."""

    symbol: Expr


ResultPath: TypeAlias = tuple[int, ...]
"""Where a result lies in what an operator returns: its number, and in a list its number there: `(1, 0)`, the
first of list 1.
"""

GraphInput: TypeAlias = Buffer | Expr
"""A tensor, or an integer bound to a size symbol."""

GraphOutput: TypeAlias = Ref | Expr | None
"""A tensor by name, an integer, or nothing."""


def list_references(argument: Argument) -> tuple[str, ...]:
    """Names of the buffers that `argument` mentions, in order."""
    match argument:
        case Ref(name) | Item(name):
            return (name,)
        case ListValue(items):
            return tuple(name for item in items for name in list_references(item))
        case _:
            return ()
