"""Views as maps: each function takes a tensor and gives another one over the same buffer."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index import Expr, as_expr, as_int, product, provably_divisible, provably_eq
from coilwork_lowering.building.values import Shape, TensorValue, dims


def reindex(value: TensorValue, shape: Shape, coordinates: Sequence[Expr]) -> TensorValue:
    """The tensor of `shape` whose element is `value`'s at `coordinates`, expressions over `dims(shape)`."""
    return TensorValue(buffer=value.buffer, shape=shape, index=value.at(coordinates))


def permute(value: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension `k` of the result is dimension `order[k]` of `value`."""
    shape = tuple(value.shape[k] for k in order)
    new = dims(shape)
    coordinates = [new[list(order).index(k)] for k in range(len(order))]
    return reindex(value, shape, coordinates)


def expand(value: TensorValue, shape: Shape) -> TensorValue:
    """`value` repeated along dimensions of one element and along new leading ones."""
    own = dims(shape)[len(shape) - len(value.shape) :]
    coordinates = [as_expr(0) if as_int(old) == 1 else d for old, d in zip(value.shape, own, strict=True)]
    return reindex(value, shape, coordinates)


def drop(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """Without the dimensions `positions`, whose coordinate is taken as 0."""
    kept = [k for k in range(len(value.shape)) if k not in set(positions)]
    shape = tuple(value.shape[k] for k in kept)
    new = iter(dims(shape))
    coordinates = [next(new) if k in kept else as_expr(0) for k in range(len(value.shape))]
    return reindex(value, shape, coordinates)


def insert(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """With dimensions of one element at `positions` of the result."""
    rank = len(value.shape) + len(positions)
    old = iter(value.shape)
    shape = tuple(as_expr(1) if k in positions else next(old) for k in range(rank))
    new = dims(shape)
    return reindex(value, shape, [new[k] for k in range(rank) if k not in positions])


def select(value: TensorValue, dim: int, at: Expr) -> TensorValue:
    """Without dimension `dim`, taken at `at`."""
    shape = value.shape[:dim] + value.shape[dim + 1 :]
    new = dims(shape)
    return reindex(value, shape, (*new[:dim], at, *new[dim:]))


def narrow(value: TensorValue, dim: int, start: Expr, size: Expr, step: int = 1) -> TensorValue:
    """`size` elements along `dim` from `start`, `step` apart."""
    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    new = dims(shape)
    return reindex(value, shape, (*new[:dim], start + new[dim] * step, *new[dim + 1 :]))


def flip(value: TensorValue, positions: Sequence[int]) -> TensorValue:
    """The order along `positions` reversed."""
    new = dims(value.shape)
    return reindex(
        value,
        value.shape,
        [s - 1 - d if k in positions else d for k, (d, s) in enumerate(zip(new, value.shape))],
    )


def diagonal(value: TensorValue, first: int, second: int, offset: int, size: Expr) -> TensorValue:
    """The diagonal of dimensions `first` and `second` as a last dimension of `size`."""
    rest = [k for k in range(len(value.shape)) if k not in (first, second)]
    shape = (*(value.shape[k] for k in rest), size)
    new = dims(shape)
    coordinates = dict(zip(rest, new[:-1], strict=True))
    coordinates[first] = new[-1] + max(-offset, 0)
    coordinates[second] = new[-1] + max(offset, 0)
    return reindex(value, shape, [coordinates[k] for k in range(len(value.shape))])


def unfold(value: TensorValue, dim: int, count: Expr, size: int, step: int) -> TensorValue:
    """Windows of `size` elements along `dim`, `step` apart, as a last dimension."""
    shape = (*value.shape[:dim], count, *value.shape[dim + 1 :], as_expr(size))
    new = dims(shape)
    coordinates = list(new[:-1])
    coordinates[dim] = coordinates[dim] * step + new[-1]
    return reindex(value, shape, coordinates)


def reshape(value: TensorValue, shape: Shape) -> TensorValue:
    """The elements of `value` in row-major order under another shape.

    Dimensions are matched in groups of equal size first, so that a dimension that merely passes through keeps
    its symbol; only inside a group is there a division.
    """
    if value.shape == shape:
        return value
    new = dims(shape)
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
        inner = product(extents[k + 1 :])
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
