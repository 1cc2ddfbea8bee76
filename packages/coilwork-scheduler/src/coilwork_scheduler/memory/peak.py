"""The predicted peak of allocated memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, IndexArithmeticError, as_expr, bounds, evaluate, maximum, provably_le

MOST_CANDIDATES = 16
"""More incomparable symbolic peaks than this, and the prediction is given up: nobody could read it."""

_BITS: Final = 3
# Where totals are compared by their values: how far above its least a size is whose number, counted from 1,
# is given. All at their least, all a little and all far above it, each by its own multiple; then those far
# above whose number has a bit, or lacks it, for each of `_BITS` bits: of any two of the first sizes, each is
# somewhere large while the other is small.
_PLACES: Final[tuple[Callable[[int], int], ...]] = (
    lambda number: 0,
    lambda number: number,
    lambda number: 1000 * number,
    *(lambda number, bit=bit: 1000 * number if number >> bit & 1 else 1 for bit in range(_BITS)),
    *(lambda number, bit=bit: 1 if number >> bit & 1 else 1000 * number for bit in range(_BITS)),
)


@dataclass(frozen=True, slots=True)
class _Total:
    """An amount of memory in bytes, and its value at each of `_PLACES`; none where it divides by a size that
    is 0.
    """

    size_bytes: Expr
    values: tuple[int | None, ...]

    def at_most(self, other: _Total) -> bool:
        """Tell if it is provably no more than `other`. Values that say otherwise spare the proof."""
        for own, others in zip(self.values, other.values, strict=True):
            if own is not None and others is not None and own > others:
                return False
        return provably_le(self.size_bytes, other.size_bytes)


class PeakMeter:
    """Follows allocations and frees, in bytes, and keeps the largest totals seen.

    A total counts when memory is given back after some was allocated: those on the way there are no larger.
    """

    def __init__(self) -> None:
        self._live = as_expr(0)
        self._rising = True
        self._candidates: list[_Total] = []
        self._numbers: dict[Expr, int] = {}
        self._gave_up = False

    def grow(self, size_bytes: Expr) -> None:
        """Memory was allocated."""
        self._live = self._live + size_bytes
        self._rising = True

    def shrink(self, size_bytes: Expr) -> None:
        """Memory was given back."""
        self._settle()
        self._live = self._live - size_bytes

    def peak(self) -> Expr | None:
        """The largest total, or `None` if it depends on sizes in too many ways."""
        self._settle()
        if self._gave_up:
            return None
        return maximum(*(total.size_bytes for total in self._candidates))

    def _settle(self) -> None:
        """Take the current total into account, if it may be one of the largest."""
        if self._gave_up or not self._rising:
            return
        self._rising = False
        live = _Total(self._live, self._values(self._live))
        if any(live.at_most(seen) for seen in self._candidates):
            return
        self._candidates = [seen for seen in self._candidates if not seen.at_most(live)]
        self._candidates.append(live)
        self._gave_up = len(self._candidates) > MOST_CANDIDATES

    def _values(self, total: Expr) -> tuple[int | None, ...]:
        """`total` at every place."""
        for size in sorted(total.free_symbols - self._numbers.keys(), key=lambda size: size.name):
            self._numbers[size] = len(self._numbers) + 1
        return tuple(self._value(total, place) for place in _PLACES)

    def _value(self, total: Expr, place: Callable[[int], int]) -> int | None:
        sizes = {}
        for size in total.free_symbols:
            least, most = bounds(size).lo or 0, bounds(size).hi
            wanted = least + place(self._numbers[size])
            sizes[size.name] = wanted if most is None else min(wanted, most)
        try:
            return evaluate(total, sizes)
        except IndexArithmeticError:
            return None
