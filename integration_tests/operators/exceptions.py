"""Where compiled code may differ from eager, and why: what a sweep finds beyond this list is a bug."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownException:
    """Operators, ways and dtypes by shell patterns, several separated by blanks; `reason` is a sentence for a user."""

    ops: str
    reason: str
    ways: str = "*"
    dtypes: str = "*"

    def covers(self, op: str, way: str, dtype: str) -> bool:
        """Whether this is about the unit."""
        wanted = ((op, self.ops), (way, self.ways), (dtype, self.dtypes))
        return all(any(fnmatchcase(given, one) for one in among.split()) for given, among in wanted)


KNOWN: Final[tuple[KnownException, ...]] = (
    KnownException(
        ops="std_mean var_mean std_mean.unbiased var_mean.unbiased",
        ways="hard",
        reason=(
            "the mean of numbers one of which is infinite is infinite, as `mean` says, too; eager's running mean is NaN from "
            "the number after it on, so that its result depends on where the infinity stands."
        ),
    ),
    KnownException(
        ops="clamp",
        ways="hard",
        reason=(
            "where limits are broadcast and their layouts contradict that of the input, torch's meta function, whose strides a "
            "compiled graph has to keep, names others than torch's kernel makes."
        ),
    ),
)


def reason(op: str, way: str, dtype: str) -> str | None:
    """Why the unit may fail; None if it may not."""
    return next((known.reason for known in KNOWN if known.covers(op, way, dtype)), None)
