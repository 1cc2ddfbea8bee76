"""What each `mode` asks for, and honest words about the parts that are not built yet."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from coilwork.compile_options import CompileOptions, Mode
from coilwork.errors import NotBuiltYetWarning
from coilwork_runtime import Search
from coilwork_runtime.triton_kernels.descent import Trial

_NO_GRAPHS: Final = "CUDA graphs of whole calls are not built yet; stretches of work that repeat go to the driver as graphs in every mode"

MISSING: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        "reduce-overhead": _NO_GRAPHS,
        "max-autotune": _NO_GRAPHS
        + "; the best configuration of each Triton kernel is searched for in its first call",
    }
)


def search_of(options: CompileOptions, told: Callable[[str, int, Trial], None]) -> Search | None:
    """The search that `options` ask for; `told` hears of its progress."""
    if not options.mode.startswith("max-autotune") or not options.autotune_budget:
        return None
    return Search(most=options.autotune_budget, told=told)


def announce_mode(mode: Mode) -> None:
    """Warn, once for each mode and process, about what of it is not built yet."""
    if mode in MISSING:
        _announce(mode)


# A process-wide memory of what was said. The registry that `warnings` keeps is no such memory: Dynamo changes the
# filters while it works, which empties it.
@cache
def _announce(mode: Mode) -> None:
    warnings.warn(f'mode="{mode}": {MISSING[mode]}', NotBuiltYetWarning, stacklevel=4)
