"""What each `mode` asks for, and honest words about the parts that have no effect yet."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
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
    """Warn, once for each mode and process, about what of it is not built yet."""
    if mode in MISSING:
        _announce(mode)


# A process-wide memory of what was said. The registry that `warnings` keeps is no such memory: Dynamo changes the
# filters while it works, which empties it.
@cache
def _announce(mode: Mode) -> None:
    warnings.warn(f'mode="{mode}": {MISSING[mode]}', NotBuiltYetWarning, stacklevel=4)
