"""The user's source lines of a graph, and texts about an equal graph that stood in other lines.

What is compiled of a graph names the lines of the program that compiled it first. The keys of caches leave
lines out, so that a program that was edited above a function is not compiled again. A program that finds an
entry renames the lines in it to its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import fx

from coilwork_ir.loc import get_trace_origin

Rename = Callable[[str], str]


def list_source_lines(gm: fx.GraphModule) -> list[str]:
    """Return the innermost source line of each call in `gm`, as `path:number  code`; empty if unknown."""
    lines = []
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method"):
            place = get_trace_origin("", node.meta.get("stack_trace"))
            lines.append(f"{place.file}:{place.line}  {place.code}".rstrip() if place.file else "")
    return lines


def pack_lines(lines: Sequence[str]) -> list[list[object]]:
    """Return `lines` as JSON: the distinct ones, and which of them stands where."""
    texts = list(dict.fromkeys(lines))
    numbers = {text: number for number, text in enumerate(texts)}
    return [[*texts], [numbers[line] for line in lines]]


def unpack_lines(packed: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines that were packed.

    Raises:
        ValueError, TypeError, LookupError: they are damaged.
    """
    texts, order = packed
    return [str(texts[number]) for number in order if isinstance(number, int)]


def match_lines(before: Sequence[str], now: Sequence[str]) -> Rename | None:
    """Return the function that replaces lines of a graph in texts by those of an equal graph.

    None if one line has become several, so that nothing tells which of them a text means.
    """
    if len(before) != len(now):
        return None
    replaced: dict[str, str] = {}
    for one, other in zip(before, now, strict=True):
        for spelling, new in zip(_list_spellings(one), _list_spellings(other), strict=True):
            if replaced.setdefault(spelling, new) != new:
                return None
    changed = {one: other for one, other in replaced.items() if one != other and one and other}
    if not changed:
        return str
    longest = sorted(changed, key=len, reverse=True)
    pattern = re.compile("|".join(f"(?<![\\w.-]){re.escape(one)}(?!\\d)" for one in longest))
    return lambda text: pattern.sub(lambda found: changed[found[0]], text)


def _list_spellings(line: str) -> tuple[str, ...]:
    """Return `line` as generated code, messages and reports name it."""
    place, _, code = line.partition("  ")
    short = place.rsplit("/", 1)[-1]
    return line, f"{short}  {code}".rstrip(), place, short
