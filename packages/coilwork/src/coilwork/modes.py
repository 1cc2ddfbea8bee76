"""What each `mode` asks for, and honest words about the parts that have no effect yet."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork.errors import NotBuiltYetWarning
from coilwork.options import Mode

_NO_GRAPHS: Final = "CUDA graphs are not built yet: calls are launched one by one"

MISSING: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        "reduce-overhead": _NO_GRAPHS,
        "max-autotune": _NO_GRAPHS + "; kernel configurations are searched more widely",
    }
)


def announce_mode(mode: Mode) -> None:
    """Warn, once for each mode, about what of it is not built yet."""
    missing = MISSING.get(mode)
    if missing is not None:
        # the warnings registry shows an identical message from one line only once
        warnings.warn(f'mode="{mode}": {missing}', NotBuiltYetWarning, stacklevel=2)
