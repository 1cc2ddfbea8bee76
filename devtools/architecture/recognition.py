"""Operators that nodes of the loop IR stand for are recognised by name in one place.

What comes behind asks nodes, or what a call implements. A module recognises an operator that it mentions by
its whole name, as text (`"aten.convolution.default"`) or as an overload (`torch.ops.aten.convolution`),
outside of docstrings. Other kinds of nodes are further rows of `RECOGNISED`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from architecture.sources import Source, Violation, docstring_nodes, dotted_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """Operators that nodes stand for.

    Attributes:
        operators: a pattern of their names, without a namespace.
        where: the module that recognises them.
        others: modules that mention them for another reason, with that reason.
    """

    operators: str
    where: str
    others: Mapping[str, str]


RECOGNISED: Mapping[str, Recognised] = {
    "convolutions": Recognised(
        operators=r"convolution(_backward)?",
        where="coilwork_lowering.facts.convolutions",
        others={
            "coilwork_scheduler.contractions.convolutions": "writes the calls that implement nodes",
            "coilwork_runtime.c_functions": "says which C function an operator has",
        },
    ),
}


def check_recognised_once(
    sources: Sequence[Source], recognised: Mapping[str, Recognised] = RECOGNISED
) -> list[Violation]:
    """Mentions of operators that are nodes, by modules that have no part in making them."""
    found: list[Violation] = []
    for kind, row in recognised.items():
        name = re.compile(rf"(torch\.ops\.|ops\.)?_?aten(\.|::)({row.operators})(\.\w+)*")
        for source in sources:
            if source.module == row.where or source.module in row.others:
                continue
            found += [
                source.violation(line, f"{kind} are recognised in {row.where}: {text}")
                for line, text in mentions(source, name)
            ]
    return sorted(found)


def mentions(source: Source, name: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Line and text of everything in `source` that is such a name, or an overload of that name."""
    prose = docstring_nodes(source.tree)
    inner: set[ast.AST] = set()
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute() if node not in inner:
                inner.update(ast.walk(node))
                text = dotted_name(node) or ""
            case ast.Constant(value=str(text)) if id(node) not in prose:
                pass
            case _:
                continue
        if name.fullmatch(text):
            yield node.lineno, text
