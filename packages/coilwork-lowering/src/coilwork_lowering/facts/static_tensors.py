"""Tensors whose elements are known at compile time, in closed form or by order.

An index made from `arange` by arithmetic alone is evaluated and compared at every point with the forms that
programs use (repeats, rolls, interpolation, windows). Where one fits, reading at it is an index map like a
view's: no index tensor, no check, no dependent load. Weights that are multiples of a small fraction are
computed in integers likewise. For other slopes `fit_line` searches the Stern-Brocot tree, which holds every
fraction, simplest first; where a slope does not fit, two of the values bound the next one.

`is_nondecreasing` recognizes index tensors that never decrease, such as the rows that `nonzero` finds.
Elements accumulated at them are in row order as they come and need no sort: a mixture of experts adds up its
tokens so, and an embedding of positions its gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.index import Expr, as_expr, floordiv, maximum, minimum, mod
from coilwork_ir.operators import find_info
from coilwork_lowering.torch_compat.graphs import use_real_tensors
from coilwork_lowering.torch_compat.operators import Overload

# fit of a line


# Simplest fractions come first: what is not found by then is hardly a scale that somebody wrote down.
_LARGEST_DIVISOR: Final = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """`(factor * i + offset) // divisor`."""

    factor: int
    offset: int
    divisor: int


def fit_line(values: Tensor) -> Line | None:
    """Return the line of the simplest slope that gives `values`, `i64`, once it is bounded by the first and
    the last of them.

    None if they do not increase, or if no simple slope fits.
    """
    if len(values) < 2 or bool((values[1:] < values[:-1]).any()) or bool(values[0] == values[-1]):
        return None
    # What is equal to the first value or the last one may have been stopped there: of either, one element
    # counts, and in one direction.
    start = int((values == values[0]).sum()) - 1
    end = len(values) - int((values == values[-1]).sum())
    at, inner = torch.arange(start, end + 1), values[start : end + 1]
    whole = _mean_slope(inner[1:-1] if len(inner) > 3 else inner)
    least_slope, largest_slope = Fraction(whole), Fraction(whole + 1)
    # of slope - whole, which is between 0 and 1: a fraction below and one above
    below, above = (0, 1), (1, 1)
    numerator, divisor = below
    while divisor <= _LARGEST_DIVISOR and least_slope < largest_slope:
        factor = whole * divisor + numerator
        # the offset is no less than this, and less than that and a divisor
        bounds = inner * divisor - at * factor
        low, high = int(bounds[1:].argmax()) + 1, int(bounds[:-1].argmin())
        if int(bounds[low]) < int(bounds[high]) + divisor:
            return Line(factor, int(bounds[low]), divisor)
        rise, run = int(inner[low] - inner[high]), low - high
        if run > 0:
            below, least_slope = (numerator, divisor), max(least_slope, Fraction(rise - 1, run))
        else:
            above, largest_slope = (numerator, divisor), min(largest_slope, Fraction(rise - 1, run))
        numerator, divisor = below[0] + above[0], below[1] + above[1]
    return None


def _mean_slope(values: Tensor) -> int:
    """Return the mean difference of neighbours, rounded down."""
    return int(values[-1] - values[0]) // (len(values) - 1)


# closed forms


PositionMap: TypeAlias = Callable[[Expr], Expr]

# Evaluating a longer index would take longer than it saves.
_LONGEST: Final = 1 << 16
# Of weights: upsampling by a power of two has twice that power.
_DENOMINATORS: Final = (2, 4, 8, 16, 32, 64)
_DEEPEST: Final = 32


def find_static_values(value: Any) -> Tensor | None:
    """Return the integers that the FX value `value` holds in every run, on the CPU; None if that is not
    known.
    """
    return _find_static(value, (torch.int32, torch.int64))


def _find_static(value: Any, dtypes: tuple[torch.dtype, ...]) -> Tensor | None:
    if not isinstance(value, torch.fx.Node):
        return None
    fake = value.meta.get("val")
    if not isinstance(fake, Tensor) or fake.dtype not in dtypes:
        return None
    if not all(isinstance(size, int) for size in fake.shape) or not 0 < fake.numel() <= _LONGEST:
        return None
    with use_real_tensors():
        return _evaluate(value, _DEEPEST, {})


def _evaluate(node: torch.fx.Node, depth: int, done: dict[torch.fx.Node, Tensor]) -> Tensor | None:
    """Evaluate `node` from numbers alone, through at most `depth` operators; `done` caches results."""
    if node in done:
        # an index that is read at two places is evaluated once
        return done[node]
    target = node.target
    if node.op != "call_function" or not isinstance(target, Overload) or depth == 0:
        return None
    if not find_info(target._schema.name.rpartition("::")[2]).is_foldable or target._schema.is_mutable:
        return None

    def operand(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            evaluated = _evaluate(argument, depth - 1, done)
            if evaluated is None:
                raise LookupError(argument.name)
            return evaluated
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise LookupError(str(argument))
        if isinstance(argument, torch.device):
            return torch.device("cpu")
        return [operand(item) for item in argument] if isinstance(argument, list | tuple) else argument

    try:
        arguments = [operand(a) for a in node.args]
        keywords = {name: operand(a) for name, a in node.kwargs.items()}
    except LookupError:
        return None
    result = target(*arguments, **keywords)
    if not isinstance(result, Tensor) or result.numel() > _LONGEST:
        return None
    done[node] = result
    return result


def fit_position_map(values: Tensor, size: int) -> PositionMap | None:
    """`values` as a function of the coordinate, where all of them are positions in a dimension of `size`.

    Of `values`, one dimension counts, see `find_axis`. Negative values count from the end. None if a value is
    outside, or if no form fits.
    """
    with use_real_tensors():
        return _fit_map(values.reshape(-1).to(torch.int64), size)


@dataclass(frozen=True, slots=True)
class _Form:
    """`(factor * i + offset) // divisor`, then modulo `period` or within `low` and `high`, each
    where given.
    """

    factor: int
    offset: int
    divisor: int = 1
    period: int | None = None
    low: int | None = None
    high: int | None = None

    def values(self, at: Tensor) -> Tensor:
        """Return the form's values at coordinates."""
        values = torch.div(at * self.factor + self.offset, self.divisor, rounding_mode="floor")
        if self.period is not None:
            values = values.remainder(self.period)
        return values if self.low is None and self.high is None else values.clamp(self.low, self.high)

    def __call__(self, coordinate: Expr) -> Expr:
        """Return the form's value at `coordinate`."""
        value = floordiv(coordinate * self.factor + self.offset, as_expr(self.divisor))
        if self.period is not None:
            value = mod(value, as_expr(self.period))
        if self.low is not None:
            value = maximum(value, as_expr(self.low))
        return value if self.high is None else minimum(value, as_expr(self.high))


def _fit_map(values: Tensor, size: int) -> PositionMap | None:
    if bool((values < -size).any()) or bool((values >= size).any()):
        return None
    values = torch.where(values < 0, values + size, values)
    at = torch.arange(len(values), dtype=torch.int64)
    return next(
        (form for form in _candidate_forms(values, size) if torch.equal(form.values(at), values)), None
    )


def _candidate_forms(values: Tensor, size: int) -> Iterator[_Form]:
    """Yield the forms that the first values, or the two sizes, suggest."""
    count = len(values)
    first = int(values[0])
    step = int(values[1]) - first if count > 1 else 0
    yield _Form(step, first)
    # repeated: as nearest upsampling by a whole factor
    changes = torch.nonzero(values != first)
    if len(changes):
        run = int(changes[0])
        yield _Form(int(values[run]) - first, first * run, run)
    # nearest, and nearest in the middle of a pixel
    yield _Form(size, 0, count)
    yield _Form(2 * size, size, 2 * count)
    # rolled
    yield _Form(step, first, 1, period=size)
    # both neighbours of a linear interpolation: from the middle of pixels, and with aligned corners
    for neighbour in (0, 1):
        offset = size - count + 2 * count * neighbour
        yield _Form(2 * size, offset, 2 * count, low=neighbour, high=size - 1)
    # the four of a cubic one, bounded only after they were counted off
    for neighbour in (-1, 0, 1, 2):
        offset = size - count + 2 * count * neighbour
        yield _Form(2 * size, offset, 2 * count, low=0, high=size - 1)
    for neighbour in (-1, 0, 1, 2) if count > 1 else ():
        yield _Form(size - 1, (count - 1) * neighbour, count - 1, low=0, high=size - 1)
    # a window that ends at the borders
    middle = count // 2
    if count > 2:
        slope = int(values[middle]) - int(values[middle - 1])
        yield _Form(
            slope, int(values[middle]) - slope * middle, low=int(values.min()), high=int(values.max())
        )
    # any other slope: a scale that is given, and is not that of the sizes
    line = fit_line(values)
    if line is not None:
        yield _Form(line.factor, line.offset, line.divisor, low=first, high=int(values[-1]))


def find_axis(shape: Sequence[int]) -> int | None:
    """Return the only dimension of more than one element, the last one if there is none; None if there
    are several.
    """
    long = [k for k, size in enumerate(shape) if size != 1]
    if len(long) > 1:
        return None
    return long[0] if long else len(shape) - 1


@dataclass(frozen=True, slots=True)
class Fractions:
    """`max(factor * i + offset, 0) % denominator / denominator`, of the coordinate `i` along `axis`; exact in
    any float type.
    """

    axis: int
    factor: int
    offset: int
    denominator: int

    def numerators(self, at: Tensor) -> Tensor:
        """Return the values at coordinates, times the denominator."""
        return (at * self.factor + self.offset).clamp(min=0).remainder(self.denominator)

    def numerator(self, coordinate: Expr) -> Expr:
        """Return the value at `coordinate`, times the denominator."""
        return mod(maximum(coordinate * self.factor + self.offset, as_expr(0)), as_expr(self.denominator))


def find_static_fractions(value: Any) -> Fractions | None:
    """Return the floats that the FX value `value` holds in every run, where they are between 0 and 1 and
    repeat with a short period.

    The weights of an upsampling by a power of two do, but for those at the border.
    """
    fake = value.meta.get("val")
    # what is worked out here has one dimension that counts; anything else is not even looked at, open sizes
    # above all
    if not isinstance(fake, Tensor) or not all(isinstance(size, int) for size in fake.shape):
        return None
    if sum(size != 1 for size in fake.shape) != 1:
        return None
    values = _find_static(value, (torch.float32, torch.float64))
    axis = None if values is None else find_axis(values.shape)
    if values is None or axis is None:
        return None
    with use_real_tensors():
        return _fit_fractions(values.reshape(-1), axis)


def _fit_fractions(values: Tensor, axis: int) -> Fractions | None:
    at = torch.arange(len(values), dtype=torch.int64)
    last = len(values) - 1
    for denominator in _DENOMINATORS:
        scaled = values * denominator
        if not torch.equal(scaled, scaled.round()) or bool(
            (scaled < 0).any() or (scaled >= denominator).any()
        ):
            continue
        numerators = scaled.to(torch.int64)
        # the first elements may be those of the border
        factor = int(numerators[last] - numerators[last - 1]) % denominator
        offset = (int(numerators[last]) - factor * last) % denominator
        # with a negative one, positions before the first element become the first
        for start in (offset, offset - denominator):
            fractions = Fractions(axis, factor, start, denominator)
            if torch.equal(fractions.numerators(at), numerators):
                return fractions
        return None
    return None


# order


_aten: Final = torch.ops.aten


def is_nondecreasing(value: Any) -> bool:
    """Tell if the FX value `value` is a row of positions, none negative, each at least the one before, in
    every run.

    Of its dimensions at most one is of another size than 1, unless all its values are known when compiling.
    """
    if not isinstance(value, torch.fx.Node):
        return False
    values = find_static_values(value)
    if values is not None:
        with use_real_tensors():
            row = values.reshape(-1)
            return bool((row[0] >= 0) & (row[1:] >= row[:-1]).all())
    if not _is_row(value):
        return False
    if value.target is operator.getitem:
        return _is_first_of_unbound(value)
    if value.op != "call_function" or not isinstance(value.target, Overload):
        return False
    name, source = value.target._schema.name.rpartition("::")[2], value.args[0]
    if name in ("arange", "iota"):
        return _counts_up(value, name)
    if name == "add":
        more = value.args[1]
        return type(more) is int and more >= 0 and not value.kwargs and is_nondecreasing(source)
    if name == "select":
        return _is_nonzero_call(source) and value.args[1:3] in ((1, 0), (-1, 0))
    if name == "slice":
        step = value.args[4] if len(value.args) > 4 else 1
        return isinstance(step, int) and step > 0 and is_nondecreasing(source)
    info = find_info(name)
    if info.is_reshape and _is_nonzero_call(source):
        return _is_column(source)
    return (info.is_identity or info.is_reshape) and is_nondecreasing(source)


def find_step_from_zero(given: Any) -> int | None:
    """Return the step, above zero, of a row of positions that an `arange` counts up from 0; None of
    anything else.
    """
    while isinstance(given, torch.fx.Node) and isinstance(given.target, Overload) and _is_row(given):
        name = given.target._schema.name.rpartition("::")[2]
        if name in ("arange", "iota"):
            start, step = _range_of(given, name)
            return step if type(start) is int and start == 0 and type(step) is int and step > 0 else None
        info = find_info(name)
        if not info.is_identity and not info.is_reshape:
            return None
        given = given.args[0]
    return None


def _is_row(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64:
        return False
    return value.dim() > 0 and sum(type(size) is not int or size != 1 for size in value.shape) <= 1


def _counts_up(node: torch.fx.Node, name: str) -> bool:
    """Tell whether a range of so many positions begins at 0 or later, and goes up."""
    start, step = _range_of(node, name)
    return type(start) is int and start >= 0 and type(step) is int and step > 0


def _range_of(node: torch.fx.Node, name: str) -> tuple[Any, Any]:
    """Return the first number of a call of `arange` or `iota`, and its step."""
    overload = node.target
    assert isinstance(overload, Overload)
    if name == "iota":
        return node.kwargs.get("start"), node.kwargs.get("step")
    if overload is _aten.arange.default:
        return 0, 1
    return node.args[0], node.args[2] if len(node.args) > 2 else 1


def _is_nonzero_call(value: Any) -> bool:
    """Tell if `value` is a result of `nonzero`: coordinates in row-major order, by its documentation."""
    return isinstance(value, torch.fx.Node) and value.target is _aten.nonzero.default


def _is_column(coordinates: Any) -> bool:
    columns = coordinates.meta["val"].shape[1]
    return type(columns) is int and columns == 1


def _is_first_of_unbound(node: torch.fx.Node) -> bool:
    source, number = node.args
    if not isinstance(source, torch.fx.Node) or source.target is not _aten.unbind.int:
        return False
    return _is_nonzero_call(source.args[0]) and (*source.args[1:], number) in ((1, 0), (-1, 0))
