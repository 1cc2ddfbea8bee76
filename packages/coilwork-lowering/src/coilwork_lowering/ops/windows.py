"""The geometry of pooling: which elements of a source belong to a point of the target, one dimension at a
time.

Forwards the source is the input and a point's taps are its window. Backwards the source is the gradient of
the output and a point's taps are the windows that cover it: a gather, so that no two points write one
element.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    maximum,
    minimum,
    mod,
    multiply_all,
    provably_divisible,
    provably_le,
    provably_lt,
    provably_nonneg,
)
from coilwork_ir.scalar import Scalar, const
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.scalar_math import ge, index, logical_and, lt

Along = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """The taps of one dimension, in ascending order of their source coordinates.

    Attributes:
        count: taps of one point, those that are not valid included.
        position: source coordinate of a tap, from the target coordinate and the tap's number.
        valid: whether the tap takes part, of type bool; constant where that is known. A valid tap lies in the
            source.
    """

    count: Expr
    position: Callable[[Expr, Expr], Expr]
    valid: Callable[[Expr, Expr], Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledDim:
    """One dimension of a pooling.

    Attributes:
        window: taps of an output element in the input.
        cover: taps of an input element in the output: the windows that reach over it. Those that skip it by
            dilation are among them.
        first: smallest valid input coordinate of an output element's window.
        elements: by how many elements a mean divides, from the output coordinate; None: always
            `window.count`.
        is_uneven: windows differ in size inside the input, not only at its border.
    """

    window: Taps
    cover: Taps
    first: Along
    elements: Along | None
    is_uneven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShape:
    """A window's size, step, padding and dilation along one dimension, as the operator was given them."""

    kernel: int
    step: int
    padding: int
    dilation: int
    ceil_mode: bool
    count_include_pad: bool


def _hold_everywhere(o: Expr, tap: Expr) -> Scalar:
    return const(True, DType.BOOL)


def _test_unless(condition: bool, test: Callable[[], Scalar]) -> Scalar:
    return const(True, DType.BOOL) if condition else test()


def is_within(at: Expr, size: Expr, *, starts_in: bool = False, ends_in: bool = False) -> Scalar:
    """`0 <= at < size`, without the halves that hold for sure."""
    low = _test_unless(starts_in or provably_nonneg(at), lambda: ge(index(at), index(as_expr(0))))
    high = _test_unless(ends_in or provably_lt(at, size), lambda: lt(index(at), index(size)))
    return simplify(logical_and(low, high))


def make_strided_windows(size: Expr, count: Expr, s: WindowShape) -> PooledDim:
    """Return `count` windows of one size at regular distances over an input of `size` elements."""
    span = s.dilation * (s.kernel - 1) + 1

    def position(o: Expr, tap: Expr) -> Expr:
        return o * s.step - s.padding + tap * s.dilation

    def valid(o: Expr, tap: Expr) -> Scalar:
        # without ceil_mode the last window ends inside the padding at the latest
        room = (s.kernel - 1 - tap) * s.dilation - s.padding
        return is_within(position(o, tap), size, ends_in=not s.ceil_mode and provably_nonneg(room))

    def first(o: Expr) -> Expr:
        start = position(o, as_expr(0))
        return start if s.padding == 0 else maximum(start, mod(start, as_expr(s.dilation)))

    covers = as_expr(-(-span // s.step))

    def cover_position(i: Expr, tap: Expr) -> Expr:
        return (i + s.padding) // s.step - (covers - 1 - tap)

    def is_covered(i: Expr, tap: Expr) -> Scalar:
        inside = is_within(cover_position(i, tap), count)
        offset = mod(i + s.padding, as_expr(s.step)) + (covers - 1 - tap) * s.step
        reached = _test_unless(
            provably_lt(offset, as_expr(span)), lambda: lt(index(offset), index(as_expr(span)))
        )
        return simplify(logical_and(inside, reached))

    return PooledDim(
        window=Taps(count=as_expr(s.kernel), position=position, valid=valid),
        cover=Taps(count=covers, position=cover_position, valid=is_covered),
        first=first,
        elements=_count_divisor(size, s),
    )


def _count_divisor(size: Expr, s: WindowShape) -> Along | None:
    """Return the divisor of a window's mean, or None.

    Padding counts if it is asked for; what `ceil_mode` adds beyond it never does.
    """
    if not s.ceil_mode and (s.padding == 0 or s.count_include_pad):
        return None

    def elements(o: Expr) -> Expr:
        start = o * s.step - s.padding
        end = minimum(start + s.kernel, size + s.padding)
        if s.count_include_pad:
            return end - start
        return minimum(end, size) - maximum(start, as_expr(0))

    return elements


def make_adaptive_windows(size: Expr, count: Expr) -> PooledDim:
    """`count` windows that share an input of `size` elements as evenly as possible, overlapping where they
    must.
    """
    window, cover = _share_elements(size, count), _share_elements(count, size)
    even = provably_divisible(size, count)
    if even:
        each = size // count
        cover = Taps(count=as_expr(1), position=lambda i, tap: i // each, valid=_hold_everywhere)

    def first(o: Expr) -> Expr:
        return window.position(o, as_expr(0))

    def elements(o: Expr) -> Expr:
        return ceildiv((o + 1) * size, count) - first(o)

    return PooledDim(
        window=window, cover=cover, first=first, elements=None if even else elements, is_uneven=not even
    )


def _share_elements(size: Expr, count: Expr) -> Taps:
    """Return taps of windows that share elements: window `o` of `count` reaches from `floor(o * size /
    count)` to `ceil((o + 1) * size / count)`, exclusive.

    Element `i` lies in window `o` exactly if `o` lies in window `i` of the windows with both roles exchanged.
    """
    if provably_divisible(size, count):
        each = size // count
        return Taps(count=each, position=lambda o, tap: o * each + tap, valid=_hold_everywhere)

    def position(o: Expr, tap: Expr) -> Expr:
        return (o * size) // count + tap

    def valid(o: Expr, tap: Expr) -> Scalar:
        end = ceildiv((o + 1) * size, count)
        at = position(o, tap)
        return _test_unless(provably_lt(at, end), lambda: lt(index(at), index(end)))

    return Taps(count=_bound_window_sizes(size, count), position=position, valid=valid)


def _bound_window_sizes(size: Expr, count: Expr) -> Expr:
    """Return an upper bound of the windows' sizes, attained if both numbers are known."""
    n, windows = as_int(size), as_int(count)
    if n is None or windows is None or windows > 4096:
        return ceildiv(size, count) + 1
    return as_expr(max(-(-(o + 1) * n // windows) - o * n // windows for o in range(windows)))


def is_small(taps: Sequence[Taps], limit: int) -> bool:
    """Tell if there are at most `limit` taps in all, and how many is known."""
    total = as_int(multiply_all(t.count for t in taps))
    return total is not None and total <= limit


def iterate_taps(
    taps: Sequence[Taps], point: Sequence[Expr]
) -> Iterator[tuple[tuple[Expr, ...], tuple[Expr, ...], Scalar]]:
    """Yield numbers, source coordinates and validity of every tap of `point`, row-major. Counts must be
    known.
    """
    for numbers in itertools.product(*(range(as_int(t.count) or 0) for t in taps)):
        chosen = tuple(as_expr(k) for k in numbers)
        yield chosen, *find_tap(taps, point, chosen)


def find_tap(
    taps: Sequence[Taps], point: Sequence[Expr], numbers: Sequence[Expr]
) -> tuple[tuple[Expr, ...], Scalar]:
    """Return source coordinates and validity of the tap with these numbers."""
    at = tuple(t.position(o, k) for t, o, k in zip(taps, point, numbers, strict=True))
    mask: Scalar = const(True, DType.BOOL)
    for t, o, k in zip(taps, point, numbers, strict=True):
        mask = logical_and(mask, t.valid(o, k))
    return at, simplify(mask)


def flat_position(at: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Return the row-major number of the element `at` in a tensor of `sizes`."""
    flat = as_expr(0)
    for coordinate, size in zip(at, sizes, strict=True):
        flat = flat * size + coordinate
    return flat


def fits_32_bits(largest: Expr) -> bool:
    """Tell if numbers from 0 to `largest` can be computed in `i32`."""
    return provably_le(largest, as_expr(2**31 - 1))
