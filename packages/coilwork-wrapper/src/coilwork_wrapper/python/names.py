"""Python identifiers for the names of a program."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Container, Iterable, Mapping
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_wrapper.surface import FUNCTIONS

DTYPE_NAMES: Final = tuple(dtype.torch_name for dtype in DType)
RESERVED: Final = frozenset(
    {
        *("_", "args", "torch", "rt", "call", "known_inputs", "kernels", "constants", "results"),
        *("make_call", "make_inputs", "make_constants", "KERNELS"),
        *FUNCTIONS,
        *DTYPE_NAMES,
        *dir(builtins),
    }
)
"""Names that generated modules use themselves."""


def identifiers(names: Iterable[str], *taken: Container[str]) -> Mapping[str, str]:
    """A distinct valid identifier for each of `names`, the name itself where that is one and in none of
    `taken`.
    """
    fresh = FreshNames(shared=(RESERVED, *taken))
    chosen: dict[str, str] = {}
    for name in names:
        if name in chosen:
            continue
        base = name if name.isascii() and name.isidentifier() else _spell(name)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        chosen[name] = fresh.close_to(base)
    return chosen


def _spell(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
