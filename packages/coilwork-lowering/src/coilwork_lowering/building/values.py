"""What an FX value is while a graph is lowered.

A tensor is a buffer and a map from its logical coordinates to the buffer's: view operators compose maps and
compute nothing. The map is written over the symbols `dims(shape)`: `d0`, `d1`, … for dimensions of more than
one element, and 0 for dimensions of exactly one, whose coordinate is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    bounds,
    coefficients,
    maximum,
    product,
    substitute,
    symbol,
    total,
)
from coilwork_ir.scalar import Scalar

Shape: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorValue:
    """Element `c` of the tensor, for `c` within `shape`, is element `index(c)` of `buffer`."""

    buffer: Buffer
    shape: Shape
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.buffer.dtype

    @property
    def device(self) -> str:
        """Device, e.g. `"cpu"`."""
        return self.buffer.device

    def at(self, coordinates: Sequence[Expr]) -> tuple[Expr, ...]:
        """Buffer coordinates of the element at `coordinates`."""
        mapping = {d: c for d, c in zip(dims(self.shape), coordinates, strict=True) if not d.is_const}
        return tuple(substitute(e, mapping) for e in self.index)


@dataclass(frozen=True, slots=True)
class NumberValue:
    """A Python float, or an integer or boolean that no index expression can say, known at run time only."""

    scalar: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A comparison of sizes: `lhs relation rhs`."""

    lhs: Expr
    relation: str
    rhs: Expr


Value: TypeAlias = (
    "TensorValue | NumberValue | Relation | Expr | bool | int | float | complex | str | torch.dtype"
    " | torch.device | torch.layout | torch.memory_format | torch.fx.GraphModule | tuple[Value, ...] | None"
)


def dims(shape: Shape) -> tuple[Expr, ...]:
    """The coordinate symbols of a tensor of `shape`."""
    return coordinate_symbols("d", shape)


def coordinate_symbols(prefix: str, shape: Shape) -> tuple[Expr, ...]:
    """`prefix0`, `prefix1`, … with the extents of `shape`; 0 for extents that are 1."""
    return tuple(
        as_expr(0) if as_int(extent) == 1 else symbol(f"{prefix}{k}", extent=extent)
        for k, extent in enumerate(shape)
    )


def whole(buffer: Buffer) -> TensorValue:
    """The tensor that `buffer` holds."""
    return TensorValue(buffer=buffer, shape=buffer.shape, index=dims(buffer.shape))


def is_whole(value: TensorValue) -> bool:
    """Tell if `value` is its buffer, element for element."""
    return value.shape == value.buffer.shape and value.index == dims(value.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Strides and offset of a tensor in its buffer's memory, in elements."""

    strides: tuple[Expr, ...]
    offset: Expr


def layout_of(value: TensorValue) -> Layout | None:
    """Return where `value` lies in its buffer's memory; None when that is no strided layout.

    Dimensions of one element get the stride that a row-major tensor would have there.
    """
    moving = [d for d in dims(value.shape) if not d.is_const]
    affine = coefficients(value.buffer.offset_of(value.index), moving)
    if affine is None:
        steps = _replace_empty_strides(value.buffer.shape, value.buffer.strides)
        affine = coefficients(total(i * s for i, s in zip(value.index, steps, strict=True)), moving)
    if affine is None:
        return None
    found = dict(zip(moving, affine[0], strict=True))
    strides: list[Expr] = []
    below = as_expr(1)
    for d, extent in zip(reversed(dims(value.shape)), reversed(value.shape), strict=True):
        strides.append(below if d.is_const else found[d])
        if not d.is_const:
            below = strides[-1] * extent
    return Layout(tuple(reversed(strides)), affine[1])


def same_strides(shape: Shape, a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Tell if strides `a` and `b` place the elements of a tensor of `shape` alike."""
    if any(as_int(extent) == 0 for extent in shape):
        return True
    a, b = (_replace_empty_strides(shape, strides) for strides in (a, b))
    return all(bounds(extent).hi == 1 or x == y for extent, x, y in zip(shape, a, b, strict=True))


def _replace_empty_strides(shape: Shape, strides: Sequence[Expr]) -> list[Expr]:
    """`strides` if there are elements: torch takes sizes from data for 1 at least when it lays out rows,
    which then they are.
    """
    sizes = {maximum(size, 1): size for size in shape}
    sizes |= {size: as_expr(1) for size in shape if bounds(size).hi == 1}
    return [stride if as_int(stride) is not None else _rebuilt(stride, sizes) for stride in strides]


def _rebuilt(stride: Expr, factors: Mapping[Expr, Expr]) -> Expr:
    """`stride` with other factors for some of its terms'."""
    terms = (product([c, *(factors.get(atom, atom) for atom in atoms)]) for c, atoms in stride.terms)
    return total(terms) + stride.constant
