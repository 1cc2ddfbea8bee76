"""Facts about ATen's operators stand in one table, `coilwork_ir.operators`: no module has a table of
operators' names beside it.

A table is what a module binds to a name and what mentions several operators: as strings (`"aten.add"`, or
`"addmm"` alone, if the operator table has a row of that name), or as overloads (`torch.ops.aten.add.Tensor`).
Names that our own scalar ops have, too, count as theirs. Two kinds of binding are no tables of facts:
`RULES`, which registers lowerings, and the pattern of a rewrite, which says what a graph looks like.

Names of fused attention are read in one module, which makes nodes of the calls: others ask the node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from architecture.module_state import outside_functions
from architecture.sources import Source, Violation, last_name, read_dotted_name

TABLE = "coilwork_ir.operators.table"
SCALAR_OPS = "coilwork_ir.ops"
# What registers lowerings, and the calls that write a pattern.
LOWERINGS = "coilwork_lowering.ops."
REGISTRATION = "RULES"
PATTERNS = frozenset({"call", "Rewrite"})
# Fewer bare names than these are rather a word that an operator has for its name, too.
FEWEST_BARE = 3
QUALIFIED = re.compile(r"(aten|prims)(\.|::)\w+")
OVERLOAD = re.compile(r"(torch\.ops\.|ops\.)?_?(aten|prims)\.\w+")

_CONTRACTION = "products are to be recognized once, at lowering: this goes when they are nodes"
_LAYOUT = "registers decompositions that lay their results out as eager does, by overload"
_SPELLING = "the ways in which programs call one function, before torch makes operators of it"
# Tables that stand elsewhere: module, name and why.
ALLOWED: Mapping[tuple[str, str], str] = {
    ("coilwork_scheduler.contractions.attention", "KERNELS"): "the calls that compute a node",
    ("coilwork_lowering.decompositions.prims", "_RENAMED"): "registers what prims mean in ATen's operators",
    ("coilwork_lowering.decompositions.strides", "_ROUNDING"): _LAYOUT,
    ("coilwork_lowering.decompositions.strides", "_BY_THE_SECOND"): _LAYOUT,
    ("coilwork_lowering.decompositions.strides", "_ITERATED"): _LAYOUT,
    ("coilwork_lowering.decompositions.strides", "_LIKE_ONE"): _LAYOUT,
    ("coilwork_lowering.decompositions.strides", "_LAID_OUT_AS_A_SUM"): _LAYOUT,
    ("coilwork_lowering.decompositions.strides", "_CONTIGUOUS"): _LAYOUT,
    ("coilwork_lowering.facts.operand_checks", "_SHAPE_RULES"): "registers functions that check shapes",
    (
        "coilwork_lowering.ops.special_functions.chebyshev",
        "_CYLINDRICAL",
    ): "registers lowerings, with their series",
    (
        "coilwork_lowering.ops.special_functions.chebyshev",
        "_OTHERS",
    ): "registers lowerings, with their series",
    ("coilwork_lowering.rewrites.call_normalization", "_SPELLINGS"): _SPELLING,
    ("coilwork_lowering.rewrites.concat_split", "_SPLITS"): "the alternatives of a pattern",
    (
        "coilwork_lowering.building.size_assertions",
        "_SQUEEZES",
    ): "registers decompositions of the overloads of one operator",
    (
        "coilwork_lowering.torch_compat.operators",
        "_COUNTED",
    ): "goes with torch 2.11, whose meta functions it mends",
    ("coilwork_runtime.c_shim", "_FUNCTIONS"): "the runtime imports no IR: its own table of C functions",
    ("coilwork_runtime.c_shim", "_CASTING"): "the runtime imports no IR: its own table of C functions",
    (
        "coilwork_runtime.c_shim",
        "NUMBER_READS",
    ): "the runtime imports no IR: its own table of C functions",
    (
        "coilwork_runtime.triton_kernels.triton_builder",
        "_CHAINS",
    ): "functions of Triton's, which are called as ATen's are",
    (
        "coilwork_ir.conformance.dataflow_cases",
        "WRITTEN_CASES",
    ): "cases, some of which are called as operators are",
    ("coilwork_frontend.capture.dtype_checks", "_BY_MODE"): _SPELLING,
    ("coilwork_frontend.capture.dtype_checks", "_POOLS_WITH_POSITIONS"): _SPELLING,
    ("coilwork_frontend.torch_compat.operators", "ROW_POOLS"): _SPELLING,
    ("coilwork_frontend.capture.dtype_checks", "_IMAGE_POOLS"): _SPELLING,
    ("coilwork_frontend.capture.dtype_checks", "_HUBER"): _SPELLING,
    ("coilwork_frontend.capture.dtype_checks", "_REARRANGING"): _SPELLING,
    ("coilwork_frontend.capture.operator_fixes", "_SELECTIONS"): _SPELLING,
    ("coilwork_frontend.capture.operator_fixes", "_SUMS"): _SPELLING,
    (
        "coilwork_frontend.calling_convention.lazy_conjugation",
        "_OPERATORS",
    ): "operators that set a tensor's bits, and views that drop them",
    ("coilwork_frontend.capture.operator_fixes", "_RESIZE_OPERATORS"): _SPELLING,
    ("coilwork_frontend.capture.unbacked_sizes", "_SQUEEZES"): "the overloads of one operator",
    ("coilwork_frontend.capture.runtime_checks", "_ASSERTIONS"): _SPELLING,
    ("coilwork_frontend.capture.runtime_checks", "ONE_HOT"): _SPELLING,
    ("coilwork_frontend.capture.runtime_checks", "_QUANTILES"): _SPELLING,
}

ATTENTION = re.compile(r"(^|\b(aten)(\.|::))_(scaled_dot_product|flash|efficient|cudnn)_(\w+_)?attention")
# Where names of fused attention may stand: who reads them, and who writes them.
ATTENTION_NAMES: Mapping[str, str] = {
    "coilwork_lowering.ops.attention": "reads them, and makes nodes",
    "coilwork_scheduler.contractions.attention": "calls what computes a node",
    "coilwork_frontend.retargeting": "writes the call that torch chooses on a device that is not here",
    TABLE: "facts about operators",
    "coilwork_runtime.c_shim": "the runtime imports no IR: its own table of C functions",
}


def check_operator_tables(
    sources: Sequence[Source], allowed: Mapping[tuple[str, str], str] = ALLOWED
) -> list[Violation]:
    """Tables of operators outside of the operator table, but for `allowed` ones; and allowances for tables
    that are gone.
    """
    bare = bare_names(sources)
    found: list[Violation] = []
    seen: set[tuple[str, str]] = set()
    for source in sources:
        for line, name in tables_in(source, bare):
            key = (source.module or "", name)
            seen.add(key)
            if key not in allowed:
                message = f"{name} is a table of ATen's operators; its facts belong in rows of {TABLE}"
                found.append(source.violation(line, message))
    if any(source.module == TABLE for source in sources):
        gone = sorted(key for key in allowed if key not in seen)
        found += [
            Violation(
                path=module, line=1, message=f"{name} is no table of operators any more: drop its allowance"
            )
            for module, name in gone
        ]
    return sorted(found)


def check_attention_names(sources: Sequence[Source]) -> list[Violation]:
    """Names of fused attention, as strings or overloads, outside of the modules that read or write them."""
    return sorted(
        source.violation(node.lineno, f"{name} is recognised in coilwork_lowering.ops.attention alone")
        for source in sources
        if source.module not in ATTENTION_NAMES
        for node in ast.walk(source.tree)
        for name in [_attention_name(node)]
        if name and isinstance(node, ast.Constant | ast.Attribute)
    )


def _attention_name(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)) if ATTENTION.search(text) and " " not in text:
            return text
        case ast.Attribute(attr=name) if ATTENTION.search(name):
            return name
    return ""


def bare_names(sources: Sequence[Source]) -> frozenset[str]:
    """The names of operators that have a row, less words of our own op table."""
    rows = {
        given.value.partition(".")[0]
        for source in sources
        if source.module == TABLE
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and last_name(node.func) == "OpInfo"
        for given in node.args[:1]
        if isinstance(given, ast.Constant) and isinstance(given.value, str)
    }
    ours = {
        node.value
        for source in sources
        if source.module == SCALAR_OPS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    # rows of another library's operators begin with its name
    return frozenset(rows - ours - {"", "mkldnn"})


def tables_in(source: Source, bare: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and name of every table of operators in `source`."""
    if source.module == TABLE:
        return
    for statement in outside_functions(source.tree.body):
        match statement:
            case ast.Assign(targets=[target], value=ast.expr() as value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pass
            case _:
                continue
        name = last_name(target) or "_"
        if name == REGISTRATION and (source.module or "").startswith(LOWERINGS):
            continue
        named = set(mentions(value, bare))
        qualified = {each for each in named if each.partition(".")[0] not in bare}
        if len(qualified) > 1 or len(named) >= FEWEST_BARE:
            yield statement.lineno, name


def mentions(value: ast.expr, bare: frozenset[str]) -> Iterator[str]:
    """The operators that an expression mentions, but for those in patterns. A text of other words, too, is
    prose or code.
    """
    match value:
        case ast.Call(func=function) if last_name(function) in PATTERNS:
            return
        case ast.Constant(value=str(text)):
            words = text.split()
            named = [word for word in words if word.partition(".")[0] in bare or QUALIFIED.match(word)]
            if 2 * len(named) > len(words):
                yield from named
            return
        case ast.Attribute() if OVERLOAD.match(read_dotted_name(value) or ""):
            yield read_dotted_name(value) or ""
            return
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield from mentions(child, bare)
        elif isinstance(child, ast.keyword | ast.comprehension):
            yield from mentions(child.value if isinstance(child, ast.keyword) else child.iter, bare)
