"""The checks that a user may ask for, as a value that costs nothing to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckedValues = Literal["off", "results", "kernels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks that a user asks for.

    Attributes:
        against_eager: every call runs beside eager and float64.
        nan: where NaN is an error: nowhere, in results, or in all that kernels read and write.
        inf: the same for infinities.
    """

    against_eager: bool = False
    nan: CheckedValues = "off"
    inf: CheckedValues = "off"

    @property
    def has_any(self) -> bool:
        """True if calls are looked at, for which the program is needed besides what runs it."""
        return self.against_eager or self.nan != "off" or self.inf != "off"
