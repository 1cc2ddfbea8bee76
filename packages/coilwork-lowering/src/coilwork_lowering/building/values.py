"""Represent an FX value while a graph is lowered: for a tensor, a buffer and a map of coordinates.

The map goes from the tensor's logical coordinates to the buffer's, over the symbols `make_dims(shape)`: `d0`,
`d1`, ... for dimensions of more than one element, and 0 for dimensions of exactly one. View operators compose
maps and compute nothing; the functions from `reindex` to `reshape` each return another tensor over the same
buffer. `get_dtype` and `format_device` give Coilwork's names for torch's types and devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.dtypes import DType, parse_torch_dtype
from coilwork_ir.index import (
    Expr,
    add_all,
    as_expr,
    as_int,
    find_bounds,
    find_coefficients,
    maximum,
    multiply_all,
    provably_divisible,
    provably_eq,
    substitute,
    symbol,
)
from coilwork_ir.scalar import Scalar
from coilwork_lowering.errors import LoweringError

# values


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

    def get_coordinates(self, coordinates: Sequence[Expr]) -> tuple[Expr, ...]:
        """Buffer coordinates of the element at `coordinates`."""
        mapping = {d: c for d, c in zip(make_dims(self.shape), coordinates, strict=True) if not d.is_const}
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


def make_dims(shape: Shape) -> tuple[Expr, ...]:
    """Return the coordinate symbols of a tensor of `shape`."""
    return make_coordinate_symbols("d", shape)


def make_coordinate_symbols(prefix: str, shape: Shape) -> tuple[Expr, ...]:
    """`prefix0`, `prefix1`, … with the extents of `shape`; 0 for extents that are 1."""
    return tuple(
        as_expr(0) if as_int(extent) == 1 else symbol(f"{prefix}{k}", extent=extent)
        for k, extent in enumerate(shape)
    )


def make_whole_value(buffer: Buffer) -> TensorValue:
    """Return the tensor that `buffer` holds."""
    return TensorValue(buffer=buffer, shape=buffer.shape, index=make_dims(buffer.shape))


def is_whole(value: TensorValue) -> bool:
    """Tell if `value` is its buffer, element for element."""
    return value.shape == value.buffer.shape and value.index == make_dims(value.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Strides and offset of a tensor in its buffer's memory, in elements."""

    strides: tuple[Expr, ...]
    offset: Expr


def find_layout(value: TensorValue) -> Layout | None:
    """Return the strides and offset at which `value` lies in its buffer's memory; None if there are none.

    Dimensions of one element get the stride that a row-major tensor would have there.
    """
    moving = [d for d in make_dims(value.shape) if not d.is_const]
    affine = find_coefficients(value.buffer.offset_of(value.index), moving)
    if affine is None:
        steps = _replace_empty_strides(value.buffer.shape, value.buffer.strides)
        affine = find_coefficients(add_all(i * s for i, s in zip(value.index, steps, strict=True)), moving)
    if affine is None:
        return None
    stride_of = dict(zip(moving, affine[0], strict=True))
    strides: list[Expr] = []
    below = as_expr(1)
    for d, extent in zip(reversed(make_dims(value.shape)), reversed(value.shape), strict=True):
        strides.append(below if d.is_const else stride_of[d])
        if not d.is_const:
            below = strides[-1] * extent
    return Layout(tuple(reversed(strides)), affine[1])


def are_same_strides(shape: Shape, a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Tell if strides `a` and `b` place the elements of a tensor of `shape` alike."""
    if any(as_int(extent) == 0 for extent in shape):
        return True
    a, b = (_replace_empty_strides(shape, strides) for strides in (a, b))
    return all(find_bounds(extent).hi == 1 or x == y for extent, x, y in zip(shape, a, b, strict=True))


def _replace_empty_strides(shape: Shape, strides: Sequence[Expr]) -> list[Expr]:
    """`strides` if there are elements: torch takes sizes from data for 1 at least when it lays out rows,
    which then they are.
    """
    sizes = {maximum(size, 1): size for size in shape}
    sizes |= {size: as_expr(1) for size in shape if find_bounds(size).hi == 1}
    return [stride if as_int(stride) is not None else _rebuild_stride(stride, sizes) for stride in strides]


def _rebuild_stride(stride: Expr, factors: Mapping[Expr, Expr]) -> Expr:
    """`stride` with other factors for some of its terms'."""
    terms = (multiply_all([c, *(factors.get(atom, atom) for atom in atoms)]) for c, atoms in stride.terms)
    return add_all(terms) + stride.constant


# views


def reindex(value: TensorValue, shape: Shape, coordinates: Sequence[Expr]) -> TensorValue:
    """Return the tensor of `shape` whose element is `value`'s at `coordinates`, expressions over
    `make_dims(shape)`.
    """
    return TensorValue(buffer=value.buffer, shape=shape, index=value.get_coordinates(coordinates))


def permute(value: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension `k` of the result is dimension `order[k]` of `value`."""
    shape = tuple(value.shape[k] for k in order)
    new = make_dims(shape)
    coordinates = [new[list(order).index(k)] for k in range(len(order))]
    return reindex(value, shape, coordinates)


def expand(value: TensorValue, shape: Shape) -> TensorValue:
    """`value` repeated along dimensions of one element and along new leading ones."""
    own = make_dims(shape)[len(shape) - len(value.shape) :]
    coordinates = [as_expr(0) if as_int(old) == 1 else d for old, d in zip(value.shape, own, strict=True)]
    return reindex(value, shape, coordinates)


def drop(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """Return `value` without the dimensions `positions`, whose coordinate is taken as 0."""
    remaining = [k for k in range(len(value.shape)) if k not in set(positions)]
    shape = tuple(value.shape[k] for k in remaining)
    new = iter(make_dims(shape))
    coordinates = [next(new) if k in remaining else as_expr(0) for k in range(len(value.shape))]
    return reindex(value, shape, coordinates)


def insert(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """`value` with dimensions of one element at `positions` of the result."""
    rank = len(value.shape) + len(positions)
    old = iter(value.shape)
    shape = tuple(as_expr(1) if k in positions else next(old) for k in range(rank))
    new = make_dims(shape)
    return reindex(value, shape, [new[k] for k in range(rank) if k not in positions])


def select(value: TensorValue, dim: int, at: Expr) -> TensorValue:
    """Return `value` at `get_coordinates` of dimension `dim`, without that dimension."""
    shape = value.shape[:dim] + value.shape[dim + 1 :]
    new = make_dims(shape)
    return reindex(value, shape, (*new[:dim], at, *new[dim:]))


def narrow(value: TensorValue, dim: int, start: Expr, size: Expr, step: int = 1) -> TensorValue:
    """`size` elements along `dim` from `start`, `step` apart."""
    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    new = make_dims(shape)
    return reindex(value, shape, (*new[:dim], start + new[dim] * step, *new[dim + 1 :]))


def flip(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """Return the order along `positions` reversed."""
    new = make_dims(value.shape)
    return reindex(
        value,
        value.shape,
        [s - 1 - d if k in positions else d for k, (d, s) in enumerate(zip(new, value.shape))],
    )


def take_diagonal(value: TensorValue, first: int, second: int, offset: int, size: Expr) -> TensorValue:
    """Return the diagonal of dimensions `first` and `second` as a last dimension of `size`."""
    rest = [k for k in range(len(value.shape)) if k not in (first, second)]
    shape = (*(value.shape[k] for k in rest), size)
    new = make_dims(shape)
    coordinates = dict(zip(rest, new[:-1], strict=True))
    coordinates[first] = new[-1] + max(-offset, 0)
    coordinates[second] = new[-1] + max(offset, 0)
    return reindex(value, shape, [coordinates[k] for k in range(len(value.shape))])


def unfold(value: TensorValue, dim: int, count: Expr, size: int, step: int) -> TensorValue:
    """Windows of `size` elements along `dim`, `step` apart, as a last dimension."""
    shape = (*value.shape[:dim], count, *value.shape[dim + 1 :], as_expr(size))
    new = make_dims(shape)
    coordinates = list(new[:-1])
    coordinates[dim] = coordinates[dim] * step + new[-1]
    return reindex(value, shape, coordinates)


def reshape(value: TensorValue, shape: Shape) -> TensorValue:
    """Return the elements of `value` in row-major order under another shape.

    Dimensions are matched in groups of equal size first, so that a dimension that merely passes through keeps
    its symbol; only inside a group is there a division.
    """
    if value.shape == shape:
        return value
    new = make_dims(shape)
    coordinates: list[Expr] = []
    for olds, news in _groups(value.shape, shape):
        linear = as_expr(0)
        for k in news:
            linear = linear * shape[k] + new[k]
        coordinates.extend(_unravel(linear, [value.shape[k] for k in olds]))
    return reindex(value, shape, coordinates)


def _unravel(linear: Expr, extents: Sequence[Expr]) -> list[Expr]:
    if any(as_int(extent) == 0 for extent in extents):
        # no element to find, and nothing may be divided by 0
        return [as_expr(0)] * len(extents)
    result: list[Expr] = []
    outer = True
    for k, extent in enumerate(extents):
        inner = multiply_all(extents[k + 1 :])
        if as_int(extent) == 1:
            result.append(as_expr(0))
            continue
        quotient = linear // inner
        # the outermost needs no remainder: the linear index stays below the product
        result.append(quotient if outer else quotient % extent)
        outer = False
    return result


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Positions of `old` and `new`, cut wherever the products of the sizes so far agree."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        left, right = as_expr(1), as_expr(1)
        if i < len(old):
            olds.append(i)
            left = old[i]
            i += 1
        if j < len(new):
            news.append(j)
            right = new[j]
            j += 1
        while not _equal(left, right):
            a, b = as_int(left), as_int(right)
            grow_left = j >= len(new) or (a is not None and b is not None and a < b)
            if a is None or b is None:
                grow_left = j >= len(new) or (i < len(old) and _divides(left, right))
            if grow_left and i < len(old):
                olds.append(i)
                left = left * old[i]
                i += 1
            elif j < len(new):
                news.append(j)
                right = right * new[j]
                j += 1
            elif i < len(old):
                olds.append(i)
                left = left * old[i]
                i += 1
            else:
                break
        groups.append((olds, news))
    return groups


def _equal(a: Expr, b: Expr) -> bool:
    return a == b or provably_eq(a, b)


def _divides(small: Expr, large: Expr) -> bool:
    """Tell if `small` is a factor of `large` as far as the terms show."""
    return as_int(small) != 0 and provably_divisible(large, small)


# types and devices


def format_device(device: torch.device) -> str:
    """`"cpu"`, `"cuda:0"`: an accelerator always with its number."""
    if device.type == "meta" or has_trait(device.type, HOST_MEMORY):
        return device.type
    return f"{device.type}:{device.index or 0}"


def get_dtype(dtype: torch.dtype) -> DType:
    """Coilwork's name for a torch element type.

    Raises:
        LoweringError[dtype]: there is none.
    """
    try:
        return parse_torch_dtype(str(dtype))
    except ValueError as cause:
        raise LoweringError(
            "dtype", str(cause), remedy="keep tensors of this type out of the region"
        ) from cause
