"""What can go wrong in index arithmetic."""

from __future__ import annotations


class IndexArithmeticError(ValueError):
    """A meaningless operation on index expressions: division by the constant zero, the name of a sum, ..."""


class IndexSyntaxError(IndexArithmeticError):
    """Text that is not an index expression.

    `position` counts characters from 0 in `text`.
    """

    def __init__(self, reason: str, *, text: str, position: int) -> None:
        super().__init__(f"{reason} at column {position + 1}\n  {text}\n  {' ' * position}^")
        self.reason = reason
        self.text = text
        self.position = position
