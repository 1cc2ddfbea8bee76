"""Which kernels are the same but for their names and what they are launched with, so that one binary serves
all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from coilwork_runtime.manifest.kernel_manifest import KernelSpec


def shared_texts(specs: Iterable[KernelSpec]) -> Mapping[str, KernelSpec]:
    """By name of each of `specs`, the first of them with the same text: that one's is compiled.

    Which one is first depends on the graph alone, so a graph that is compiled again finds its binaries. A
    kernel whose text is no Python is for Triton to refuse, by its own name.
    """
    first: dict[tuple[object, ...], KernelSpec] = {}
    found: dict[str, KernelSpec] = {}
    for spec in specs:
        facts = (spec.target, spec.args, spec.checks)
        found[spec.name] = first.setdefault((_statements(spec), *facts), spec)
    return found


def _statements(spec: KernelSpec) -> str:
    """The kernel's text without its own name, comments, or what it says of itself."""
    try:
        module = ast.parse(spec.source)
    except (SyntaxError, ValueError):
        return f"{spec.name} {spec.source}"
    if ast.get_docstring(module, clean=False) is not None:
        del module.body[0]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == spec.entry:
            node.name = ""
    # an entry that calls itself, or is mentioned otherwise, keeps the name there, and shares nothing
    return ast.dump(module)
