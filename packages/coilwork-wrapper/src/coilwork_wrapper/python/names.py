"""Python identifiers for the names of a program."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from typing import Final

RESERVED: Final = frozenset(
    {"args", "torch", "rt", "call", "kernels", "constants", "make_call", "make_inputs"}
)


def identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    """A distinct valid identifier for each of `names`, the name itself where that is one."""
    used = set(RESERVED) | set(taken)
    chosen: dict[str, str] = {}
    for name in names:
        if name in chosen:
            continue
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        candidate, number = base, 1
        while candidate in used:
            candidate = f"{base}_{number}"
            number += 1
        used.add(candidate)
        chosen[name] = candidate
    return chosen
