"""Devices and languages are compared by name where their owner is, and nowhere else.

A back end's words (`"cpu"`, `"cuda"`, a target's kind, a language) are open: whoever compares one has a
closed list that a new device would have to be put in. Others ask for a trait (`coilwork_ir.device_traits`,
`Target.has`), or have a table with a default for what is not in it. Comparisons are `==`, `!=`, `in`,
`startswith`, and patterns of `match`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from architecture.sources import Source, Violation

DEVICES = frozenset({"cpu", "cuda", "hip", "xpu", "privateuseone"})
LANGUAGES = frozenset({"cpp", "triton"})
OWNERS = "coilwork.backends"
# Modules that compare all the same, with the reason.
EXCEPTIONS: Mapping[str, str] = {
    "coilwork_cpp.codegen": "the generator says which kind of target is its back end's",
    "coilwork_triton.codegen": "the generator says which kinds of targets are its back end's",
    "coilwork_ir.text.atoms": "the text form leaves out the device that most buffers of tests are on",
    "coilwork_cpp_wrapper.module": "the C++ wrapper refuses what is neither for CPUs nor for CUDA, by name",
    "coilwork_runtime.manifest.kernel_manifest": (
        "Triton is one of the two languages that are the runtime's own"
    ),
    "coilwork_runtime.executor.vendor_libraries": "the libraries that the native executor calls are CUDA's",
    "coilwork_runtime.layout_checks": (
        "people write `cuda` for the first GPU in modules that they run by themselves"
    ),
    "coilwork_runtime.triton_kernels.worker": "Triton's words for what it compiles for",
    "coilwork_tools.demo.worker": "measures by the clock of CUDA's events",
    "coilwork_tools.bench.worker": "measures by the clock of CUDA's events",
    "coilwork_tools.bench.comparison": "names the device that was measured as CUDA does",
}


def check_device_names(
    sources: Sequence[Source], exceptions: Mapping[str, str] = EXCEPTIONS
) -> list[Violation]:
    """Comparisons with names of devices and languages outside of back ends, and exceptions that are none any
    more.
    """
    found: list[Violation] = []
    used: set[str] = set()
    for source in sources:
        module = source.module or ""
        if f"{module}.".startswith(f"{OWNERS}."):
            continue
        for line, name in _list_comparisons(source.tree):
            if module in exceptions:
                used.add(module)
            else:
                found.append(source.violation(line, f"compares with {name!r}; ask for a trait"))
    found += [
        Violation(path=module, line=1, message="is an exception, and compares no name of a device")
        for module in exceptions
        if module not in used and any(source.module == module for source in sources)
    ]
    return found


def _list_comparisons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names of comparisons."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = (left, *others)
                names = LANGUAGES | DEVICES if any(map(_is_language, sides)) else DEVICES
                yield from ((node.lineno, name) for name in _names(sides, names))
            case ast.Call(func=ast.Attribute(attr="startswith"), args=arguments):
                yield from ((node.lineno, name) for name in _names(arguments, DEVICES))
            case ast.MatchValue(value=value):
                yield from ((value.lineno, name) for name in _names((value,), DEVICES))
            case _:
                pass


def _is_language(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute | ast.Name) and (
        node.attr if isinstance(node, ast.Attribute) else node.id
    ).endswith("language")


def _names(nodes: Sequence[ast.expr], names: frozenset[str]) -> Iterator[str]:
    for node in nodes:
        values = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
        for value in values:
            if isinstance(value, ast.Constant) and value.value in names:
                yield str(value.value)
