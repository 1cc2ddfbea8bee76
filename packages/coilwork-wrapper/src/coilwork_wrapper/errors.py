"""Errors that emitted graphs raise while they run."""

from __future__ import annotations


class LayoutError(RuntimeError):
    """A tensor has another element type, device, shape or stride than the program was planned for.

    `code` is stable: `input-layout`, `operator-shape`, `operator-dtype` or `misaligned`.
    """

    def __init__(self, code: str, what: str, *, remedy: str = "") -> None:
        self.code = code
        self.what = what
        super().__init__(f"LayoutError[{code}]: {what}" + (f"\n  try     {remedy}" if remedy else ""))
