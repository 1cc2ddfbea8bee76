"""The predicted peak of allocated memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, IndexArithmeticError, as_expr, bounds, evaluate, maximum, provably_le

MOST_CANDIDATES = 16
"""More incomparable symbolic peaks than this, and the prediction is given up: nobody could read it."""

# Where totals are compared by their values: how far sizes are above their least, each by its own multiple.
_PLACES: Final = (0, 1, 1000)


@dataclass(frozen=True, slots=True)
class _Total:
    """An amount of memory in bytes, and its values where sizes are some numbers; none if it has none there."""

    size_bytes: Expr
    values: tuple[int, ...]

    def at_most(self, other: _Total) -> bool:
        """Whether it is provably no more than `other`. Values that say otherwise spare the proof."""
        if any(own > others for own, others in zip(self.values, other.values, strict=False)):
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
        self._shares: dict[Expr, int] = {}
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

    def _values(self, total: Expr) -> tuple[int, ...]:
        """`total` at a few places, each a number for every size."""
        for size in sorted(total.free_symbols - self._shares.keys(), key=lambda size: size.name):
            self._shares[size] = len(self._shares) + 1
        try:
            return tuple(evaluate(total, self._numbers(total, place)) for place in _PLACES)
        except IndexArithmeticError:
            return ()

    def _numbers(self, total: Expr, place: int) -> dict[str, int]:
        found = {}
        for size in total.free_symbols:
            least, most = bounds(size).lo or 0, bounds(size).hi
            number = least + place * self._shares[size]
            found[size.name] = number if most is None else min(number, most)
        return found
