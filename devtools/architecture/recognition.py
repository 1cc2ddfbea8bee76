"""Operators that nodes of the loop IR stand for are recognised by name in one place.

What comes behind asks nodes, or what a call implements. A module recognises an operator that it mentions by
its whole name, as text (`"aten.convolution.default"`) or as an overload (`torch.ops.aten.convolution`),
outside of docstrings. Other kinds of nodes are further rows of `RECOGNISED`. In the packages behind lowering
no operator is named at all but by who writes a call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from architecture.operator_tables import TABLE
from architecture.sources import Source, Violation, find_docstrings, read_dotted_name


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
        where="coilwork_lowering.facts.fx_nodes",
        others={
            "coilwork_scheduler.contractions.convolutions": "writes the calls that implement nodes",
            "coilwork_runtime.c_shim": "says which C function an operator has",
        },
    ),
}


BEHIND_LOWERING = ("scheduler", "triton", "cpp", "wrapper", "cpp-wrapper")
# Modules of these packages that name operators whole: they write calls, and read none.
WRITERS: Mapping[str, str] = {
    "coilwork_scheduler.contractions.aten_products": "writes the calls that implement products",
    "coilwork_scheduler.contractions.convolutions": "writes the calls that implement nodes",
    "coilwork_scheduler.onednn_products": "writes products as calls of oneDNN",
    "coilwork_scheduler.legalize": "writes sorts that kernels lack as calls",
    "coilwork_wrapper.fx_emitter": "writes views, sizes and copies as calls",
}
# Libraries whose operators a program may call.
LIBRARIES = r"(aten|prims|mkldnn|mkl|onednn|quantized|_quantized|torchvision|fbgemm)"


def check_names_behind_lowering(
    sources: Sequence[Source], writers: Mapping[str, str] = WRITERS
) -> list[Violation]:
    """Names of operators behind lowering, outside of modules that write calls.

    Others ask the operator table, or what a call implements.
    """
    name = re.compile(rf"(torch\.ops\.|ops\.)?{LIBRARIES}(\.|::)\w*[A-Za-z]\w*(\.\w+)*")
    behind = {f"coilwork-{package}" for package in BEHIND_LOWERING}
    found: list[Violation] = []
    seen: set[str] = set()
    for source in sources:
        if source.package not in behind:
            continue
        for line, text in mentions(source, name):
            seen.add(source.module or "")
            if source.module not in writers:
                message = f"{text} is named behind lowering: ask its row, or what the call implements"
                found.append(source.violation(line, message))
    if any(source.module == TABLE for source in sources):
        found += [
            Violation(path=module, line=1, message="names no operator any more: drop its allowance")
            for module in sorted(set(writers) - seen)
        ]
    return sorted(found)


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
    prose = find_docstrings(source.tree)
    inner: set[ast.AST] = set()
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute() if node not in inner:
                inner.update(ast.walk(node))
                text = read_dotted_name(node) or ""
            case ast.Constant(value=str(text)) if id(node) not in prose:
                pass
            case _:
                continue
        if name.fullmatch(text):
            yield node.lineno, text
