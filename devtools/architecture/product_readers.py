"""Products are recognized once, at lowering: nobody behind it asks an operator's name whether it is one.

The operators are those of which a row of the operator table says `product=`. Lowering makes contractions of
them, and whoever has a question about products asks the node, or the row. Who mentions their names is listed
here, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from architecture.operator_tables import TABLE
from architecture.sources import Source, Violation, find_docstrings, last_name, read_dotted_name

_BEFORE = "rewrites what was captured, before it is lowered"
_CALLS = "an implementation, which makes the call"
ALLOWED: Mapping[str, str] = {
    TABLE: "says which they are",
    "coilwork_lowering.decompositions.library_operators": _BEFORE,
    "coilwork_lowering.joint.early_gradients": _BEFORE,
    "coilwork_lowering.rewrites.epilogues": _BEFORE,
    "coilwork_lowering.rewrites.call_normalization": _BEFORE,
    "coilwork_scheduler.contractions.aten_products": _CALLS,
    "coilwork_scheduler.contractions.implementations": _CALLS,
    "coilwork_runtime.c_shim": "the C functions that ATen has for them",
}


def check_product_readers(sources: Sequence[Source], allowed: Mapping[str, str] = ALLOWED) -> list[Violation]:
    """Modules that mention an operator that multiplies, but for `allowed` ones; and allowances for those that
    do no longer.
    """
    names = product_names(sources)
    found: list[Violation] = []
    seen: set[str] = set()
    for source in sources:
        for line, name in readers_in(source, names):
            seen.add(source.module or "")
            if source.module not in allowed:
                message = (
                    f"{name} is named: ask the contraction, or the operator's row, whether it is a product"
                )
                found.append(source.violation(line, message))
    if any(source.module == TABLE for source in sources):
        found += [
            Violation(path=module, line=1, message="names no product any more: drop its allowance")
            for module in sorted(set(allowed) - seen)
        ]
    return sorted(found)


def product_names(sources: Sequence[Source]) -> frozenset[str]:
    """The operators whose row says which of their arguments are factors."""
    return frozenset(
        given.value
        for source in sources
        if source.module == TABLE
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and last_name(node.func) == "OpInfo"
        if any(keyword.arg == "product" for keyword in node.keywords)
        for given in node.args[:1]
        if isinstance(given, ast.Constant) and isinstance(given.value, str)
    )


def readers_in(source: Source, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and text of every mention of `names`: a text that is such a name, or a torch operator of it."""
    if not names:
        return
    alternatives = "|".join(sorted(map(re.escape, names)))
    text = re.compile(rf"(aten(\.|::))?({alternatives})(\.\w+)?")
    attribute = re.compile(rf"(torch\.ops\.|ops\.)?_?aten\.({alternatives})(\.\w+)?")
    prose = find_docstrings(source.tree)
    for node in ast.walk(source.tree):
        match node:
            case ast.Constant(value=str(value)) if id(node) not in prose and text.fullmatch(value):
                yield node.lineno, value
            case ast.Attribute() if attribute.fullmatch(read_dotted_name(node) or ""):
                yield node.lineno, read_dotted_name(node) or ""
