"""Tensors that are known when compiling, such as the indices and weights of an upsampling, as expressions of
the coordinate.

An index computed from an `arange` by arithmetic alone is evaluated here, and compared at every point with the
forms that programs use. Where one fits, reading at it is a map of coordinates like a view's: no index tensor,
no check, and no load that has to wait for another. Weights that are whole multiples of a small fraction are
computed in integers in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.index import Expr, as_expr, floordiv, maximum, minimum, mod
from coilwork_ir.operators import find_info
from coilwork_lowering.facts.lines import line_through
from coilwork_lowering.torch_compat.fakes import use_real_tensors
from coilwork_lowering.torch_compat.operators import Overload

PositionMap: TypeAlias = Callable[[Expr], Expr]

# Evaluating a longer index would take longer than it saves.
_LONGEST: Final = 1 << 16
# Of weights: upsampling by a power of two has twice that power.
_DENOMINATORS: Final = (2, 4, 8, 16, 32, 64)
_DEEPEST: Final = 32


def known_values(given: Any) -> Tensor | None:
    """The integers that the FX value `given` holds in every run, on the CPU; None if that is not known."""
    return _find_known(given, (torch.int32, torch.int64))


def _find_known(given: Any, dtypes: tuple[torch.dtype, ...]) -> Tensor | None:
    if not isinstance(given, torch.fx.Node):
        return None
    fake = given.meta.get("val")
    if not isinstance(fake, Tensor) or fake.dtype not in dtypes:
        return None
    if not all(isinstance(size, int) for size in fake.shape) or not 0 < fake.numel() <= _LONGEST:
        return None
    with use_real_tensors():
        return _evaluate(given, _DEEPEST, {})


def _evaluate(node: torch.fx.Node, depth: int, done: dict[torch.fx.Node, Tensor]) -> Tensor | None:
    """Return what `node` computes from numbers alone, through so many operators at most; `done` is what was
    found before.
    """
    if node in done:
        # an index that is read at two places is evaluated once
        return done[node]
    target = node.target
    if node.op != "call_function" or not isinstance(target, Overload) or depth == 0:
        return None
    if not find_info(target._schema.name.rpartition("::")[2]).is_foldable or target._schema.is_mutable:
        return None

    def operand(given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            found = _evaluate(given, depth - 1, done)
            if found is None:
                raise LookupError(given.name)
            return found
        if isinstance(given, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise LookupError(str(given))
        if isinstance(given, torch.device):
            return torch.device("cpu")
        return [operand(item) for item in given] if isinstance(given, list | tuple) else given

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


def position_map(values: Tensor, size: int) -> PositionMap | None:
    """`values` as a function of the coordinate, where all of them are positions in a dimension of `size`.

    Of `values`, one dimension counts, see `axis_of`. Negative values count from the end. None if a value is
    outside, or if no form fits.
    """
    with use_real_tensors():
        return _position_map(values.reshape(-1).to(torch.int64), size)


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
        """Its values at coordinates."""
        found = torch.div(at * self.factor + self.offset, self.divisor, rounding_mode="floor")
        if self.period is not None:
            found = found.remainder(self.period)
        return found if self.low is None and self.high is None else found.clamp(self.low, self.high)

    def __call__(self, coordinate: Expr) -> Expr:
        """Its value at the coordinate `coordinate`."""
        found = floordiv(coordinate * self.factor + self.offset, as_expr(self.divisor))
        if self.period is not None:
            found = mod(found, as_expr(self.period))
        if self.low is not None:
            found = maximum(found, as_expr(self.low))
        return found if self.high is None else minimum(found, as_expr(self.high))


def _position_map(values: Tensor, size: int) -> PositionMap | None:
    if bool((values < -size).any()) or bool((values >= size).any()):
        return None
    values = torch.where(values < 0, values + size, values)
    at = torch.arange(len(values), dtype=torch.int64)
    return next((form for form in _forms(values, size) if torch.equal(form.values(at), values)), None)


def _forms(values: Tensor, size: int) -> Iterator[_Form]:
    """The forms that the first values, or the two sizes, suggest."""
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
    line = line_through(values)
    if line is not None:
        yield _Form(line.factor, line.offset, line.divisor, low=first, high=int(values[-1]))


def axis_of(shape: Sequence[int]) -> int | None:
    """The only dimension of more than one element, the last one if there is none; None if there
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
        """Its values at coordinates, times the denominator."""
        return (at * self.factor + self.offset).clamp(min=0).remainder(self.denominator)

    def numerator(self, coordinate: Expr) -> Expr:
        """Its value at the coordinate `coordinate`, times the denominator."""
        return mod(maximum(coordinate * self.factor + self.offset, as_expr(0)), as_expr(self.denominator))


def known_fractions(given: Any) -> Fractions | None:
    """The floats that the FX value `given` holds in every run, where they are between 0 and 1 and repeat with
    a short period.

    The weights of an upsampling by a power of two do, but for those at the border.
    """
    fake = given.meta.get("val")
    # what is worked out here has one dimension that counts; anything else is not even looked at, open sizes
    # above all
    if not isinstance(fake, Tensor) or not all(isinstance(size, int) for size in fake.shape):
        return None
    if sum(size != 1 for size in fake.shape) != 1:
        return None
    values = _find_known(given, (torch.float32, torch.float64))
    axis = None if values is None else axis_of(values.shape)
    if values is None or axis is None:
        return None
    with use_real_tensors():
        return _fractions(values.reshape(-1), axis)


def _fractions(values: Tensor, axis: int) -> Fractions | None:
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
            found = Fractions(axis, factor, start, denominator)
            if torch.equal(found.numerators(at), numerators):
                return found
        return None
    return None
