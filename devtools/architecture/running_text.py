"""Text that is executed or parsed as Python while models run: only where there is a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from architecture.sources import Source, Violation, dotted_name

# Packages of which code runs when a program is loaded or called.
RUNNING = frozenset({"coilwork-runtime", "coilwork-cpp-wrapper", "coilwork"})
# Built-in functions, and the one of a module, that make code of text.
EXECUTING = frozenset({"exec", "eval", "compile", "ast.parse", "builtins.exec", "builtins.eval"})
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "coilwork_runtime.loader": "the readable module, for people who load one",
        "coilwork_runtime.manifest.readable": "reads the words of a readable module",
        "coilwork_runtime.triton_kernels.worker": "Triton's own language is Python",
        "coilwork_runtime.triton_kernels.equal_texts": "compares texts in Triton's language",
        "coilwork_runtime.triton_kernels.small_work": "looks for loops in Triton's language",
    }
)
"""Modules that may do so, and why."""


def check_running_text(sources: Sequence[Source]) -> list[Violation]:
    """No program is loaded or called by way of Python text; what is of use to people is not on that way."""
    return sorted(
        source.violation(line, f"{name}: say in data what runs, or name the module and the reason in REASONS")
        for source in sources
        if source.package in RUNNING and source.module not in REASONS
        for line, name in executing_calls(source)
    )


def executing_calls(source: Source) -> Iterator[tuple[int, str]]:
    """Each call that makes code of text, with its line. Methods of the same names are others."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            if name in EXECUTING:
                yield node.lineno, name


def check_no_glued_attributes(sources: Sequence[Source]) -> list[Violation]:
    """The runtime hangs nothing on functions: what goes with one is a value beside it."""
    return sorted(
        source.violation(node.lineno, "an attribute of a function: make a value that has both")
        for source in sources
        if source.package == "coilwork-runtime"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript)
        and isinstance(target.value, ast.Call)
        and dotted_name(target.value.func) == "vars"
        and not _is_module(target.value)
    )


def _is_module(call: ast.Call) -> bool:
    """True for `vars(importlib.import_module(...))`, which mends a module of somebody else's."""
    given = call.args[0] if call.args else None
    return isinstance(given, ast.Call) and dotted_name(given.func) == "importlib.import_module"
