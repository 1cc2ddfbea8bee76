"""The Triton functions that kernels carry along: read from the `.triton` files in `functions/`, handed out by
name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from coilwork_ir.syntax.python import Verbatim

_FILES: Final = (
    "elementary.triton",
    "combining.triton",
    "sorting.triton",
    "topk.triton",
    "block_order.triton",
    "thread_vectors.triton",
    "iterative_math.triton",
    "lookback_exchange.triton",
    "atomics.triton",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFunction:
    """One function: its text with its decorator, the functions it calls, if it has a loop that data end."""

    name: str
    source: str
    calls: tuple[str, ...]
    has_while: bool


@cache
def read_device_functions() -> Mapping[str, DeviceFunction]:
    """Return every function of the library, in file order."""
    folder = files("coilwork_triton.text") / "functions"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in _FILES)
    lines = text.splitlines()
    definitions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    names = frozenset(d.name for d in definitions)
    table: dict[str, DeviceFunction] = {}
    for definition in definitions:
        first = min(d.lineno for d in definition.decorator_list)
        used = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and n.id in names}
        table[definition.name] = DeviceFunction(
            name=definition.name,
            source="\n".join(lines[first - 1 : definition.end_lineno]),
            calls=tuple(sorted(used)),
            has_while=any(isinstance(n, ast.While) for n in ast.walk(definition)),
        )
    return MappingProxyType(table)


@cache
def has_lane_loop(name: str) -> bool:
    """Tell if the function `name`, or one that it calls, goes on until no lane of a block has work."""
    function = read_device_functions()[name]
    return function.has_while or any(has_lane_loop(callee) for callee in function.calls)


def collect_functions(names: Iterable[str], *, gluon: bool = False) -> tuple[Verbatim, ...]:
    """Return the functions `names` and all they call, in file order, so that callees come first; with `gluon`
    as Triton's dialect Gluon takes them, whose function for constants is its own.
    """
    table = read_device_functions()
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(table[name].calls)
    sources = (f.source for f in table.values() if f.name in needed)
    return tuple(Verbatim(one.replace("tl.full(", "gl.full(") if gluon else one) for one in sources)
