"""Text that is executed or parsed as Python, and what hangs on functions: only where there is a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from architecture.sources import Source, Violation, read_dotted_name

# Built-in functions, and the one of a module, that make code of text.
EXECUTING = frozenset({"exec", "eval", "compile", "ast.parse", "builtins.exec", "builtins.eval"})
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "coilwork_runtime.module_loader": (
            "the readable module, for people who load one; nothing that runs imports that"
        ),
        "coilwork_runtime.manifest.readable": "reads the words of a readable module",
        "coilwork_runtime.triton_kernels.worker": "Triton's own language is Python",
        "coilwork_runtime.triton_kernels.triton_builder": "compares Triton texts, and looks for loops",
        "coilwork_triton.text.device_library": "reads our functions in Triton's language to write kernels",
    }
)
"""Modules that may do so, and why."""

READABLE_LOADERS = frozenset(
    {"coilwork_runtime.module_loader.execute_module", "coilwork_runtime.module_loader.load_python"}
)
"""What executes a readable module: offered to people, used by no package."""
OFFERED_BY = "coilwork_runtime"


def check_text_execution(sources: Sequence[Source]) -> list[Violation]:
    """No package makes code of Python text, and what is for people to read is on no way that a
    program runs.
    """
    found: list[Violation] = []
    for source in sources:
        if source.package is None or source.module is None:
            continue
        if source.module not in REASONS:
            found += [
                source.violation(
                    line, f"{name}: say in data what runs, or name the module and the reason in REASONS"
                )
                for line, name in find_executing_calls(source)
            ]
        if source.module != OFFERED_BY:
            found += [
                source.violation(one.line, f"{one.name} executes a readable module, which is for people")
                for one in source.imports
                if one.dotted in READABLE_LOADERS
            ]
    return sorted(found)


def find_executing_calls(source: Source) -> Iterator[tuple[int, str]]:
    """Each call that makes code of text, with its line. Methods of the same names are others."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = read_dotted_name(node.func)
            if name in EXECUTING:
                yield node.lineno, name


def check_no_glued_attributes(sources: Sequence[Source]) -> list[Violation]:
    """Nothing hangs on functions: what goes with one is a value beside it."""
    return sorted(
        source.violation(line, "an attribute of a function: make a value that has both")
        for source in sources
        if source.package is not None and source.module is not None
        for line in (*_find_written_names(source), *_attributes_of_functions(source))
    )


def _find_written_names(source: Source) -> Iterator[int]:
    """Lines of `vars(f)[name] = value`."""
    for target in _targets(source.tree):
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Call):
            if read_dotted_name(target.value.func) == "vars" and not _is_module(target.value, source):
                yield target.lineno


def _attributes_of_functions(source: Source) -> Iterator[int]:
    """Lines of `f.name = value` and `setattr(f, name, value)`, where `f` is defined as a function around
    them."""
    for scope in ast.walk(source.tree):
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        functions = {
            one.name for one in scope.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        owners = [
            (target.lineno, target.value) for target in _targets(scope) if isinstance(target, ast.Attribute)
        ]
        owners += [
            (call.lineno, call.args[0])
            for call in ast.walk(scope)
            if isinstance(call, ast.Call) and read_dotted_name(call.func) == "setattr" and call.args
        ]
        yield from (line for line, owner in owners if isinstance(owner, ast.Name) and owner.id in functions)


def _targets(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            yield node.target


def _is_module(call: ast.Call, source: Source) -> bool:
    """True for `vars` of a module that is imported, which mends one of somebody else's."""
    given = call.args[0] if call.args else None
    if isinstance(given, ast.Call) and read_dotted_name(given.func) == "importlib.import_module":
        return True
    imported = {one.name or one.module for one in source.imports}
    return isinstance(given, ast.Name) and given.id in imported
