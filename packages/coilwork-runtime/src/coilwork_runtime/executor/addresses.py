"""Where tensors begin, asked of many at once."""

from __future__ import annotations

import sys
from typing import Any, Final

from coilwork_runtime.compiling import EXECUTOR

ALIGNMENT_BYTES: Final = 16


def any_unaligned(values: list[Any], positions: tuple[int, ...]) -> bool:
    """Whether a tensor of `values`, at one of `positions`, does not start at a multiple of 16 bytes.

    An optimizer's step asks this of hundreds of tensors in every call: the native executor, once loaded, does it for
    some 30 ns each, Python for a microsecond.
    """
    extension = sys.modules.get(EXECUTOR)
    if extension is not None:
        found: bool = extension.unaligned(values, positions)
        return found
    return any(values[position].data_ptr() % ALIGNMENT_BYTES for position in positions)
