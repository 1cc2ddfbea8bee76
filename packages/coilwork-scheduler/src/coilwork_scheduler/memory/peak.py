"""The predicted peak of allocated memory."""

from __future__ import annotations

from coilwork_ir.index import Expr, as_expr, maximum, provably_le

MOST_CANDIDATES = 16
"""More incomparable symbolic peaks than this, and the prediction is given up: nobody could read it."""


class PeakMeter:
    """Follows allocations and frees, in bytes, and keeps the largest totals seen at the sampled points."""

    def __init__(self) -> None:
        self._live = as_expr(0)
        self._candidates: list[Expr] = []
        self._gave_up = False

    def grow(self, size_bytes: Expr) -> None:
        """Memory was allocated."""
        self._live = self._live + size_bytes
        self.sample()

    def shrink(self, size_bytes: Expr) -> None:
        """Memory was given back."""
        self._live = self._live - size_bytes

    def sample(self) -> None:
        """Take the current total into account."""
        live = self._live
        if self._gave_up or any(provably_le(live, seen) for seen in self._candidates):
            return
        self._candidates = [seen for seen in self._candidates if not provably_le(seen, live)]
        self._candidates.append(live)
        if len(self._candidates) > MOST_CANDIDATES:
            self._gave_up = True

    def peak(self) -> Expr | None:
        """The largest total, or `None` if it depends on sizes in too many ways."""
        if self._gave_up:
            return None
        return maximum(*self._candidates) if self._candidates else as_expr(0)
