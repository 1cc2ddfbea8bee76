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
            "the mean of numbers one of which is infinite is NaN; eager's running mean is so from the number after it on: it is "
            "infinite if that is the last one."
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
    KnownException(
        ops="fft.fft fft.ifft fft.ihfft fft.rfft",
        ways="dynamic_backward",
        reason=(
            "the gradient of what was padded is cut by `constant_pad_nd` along one dimension; with sizes that are not known, torch's "
            "meta function says that it lies row by row, while torch's kernel keeps the layout that the transform left."
        ),
    ),
)


def reason(op: str, way: str, dtype: str) -> str | None:
    """Why the unit may fail; None if it may not."""
    return next((known.reason for known in KNOWN if known.covers(op, way, dtype)), None)
