"""The order of symbols' names: as a reader would count them."""

from __future__ import annotations

import re
from typing import Final

_DIGITS: Final = re.compile(r"\d+")


def natural(name: str) -> str:
    """A text that sorts as `name` does when digit runs compare as numbers: i2 before i10."""
    stem = name.rstrip("0123456789")
    if stem.isalpha():  # the common case, without the regular expression
        return f"{stem}{chr(0x30 + len(name) - len(stem))}{name[len(stem) :]}"
    return _DIGITS.sub(lambda run: chr(0x30 + len(run[0])) + run[0], name)
