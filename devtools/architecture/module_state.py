"""Mutable state at module level: a compiler without globals compiles two models in two threads.

A container bound at module or class level must be immutable, or be annotated with a read-only interface
(`Mapping`, `Sequence`, `Set` of collections.abc, also inside `Final`), so that mypy refuses whoever changes
it. The tables of `coilwork_ir.intern_table` are the one exception: they are thread-safe and hold immutable
values, or a bounded memo of a pure function. `functools.cache` on a function of immutable arguments is no
state that a caller could see, and is allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from architecture.sources import Source, Violation, last_name

MUTABLE_CALLS = frozenset(
    "dict list set sorted bytearray defaultdict deque Counter OrderedDict ChainMap WeakValueDictionary "
    "WeakKeyDictionary "
    "WeakSet local ContextVar count SimpleNamespace Queue SimpleQueue".split()
)
STATEFUL_MODULES = frozenset(
    "collections contextvars itertools queue threading types typing weakref builtins".split()
)
MUTATING_METHODS = frozenset(
    "append add update setdefault pop popitem clear extend insert remove discard appendleft popleft".split()
)
READ_ONLY = frozenset(
    {"Mapping", "Sequence", "Set", "AbstractSet", "Collection", "Iterable", "Final", "frozenset", "tuple"}
)
BUILDERS = frozenset({"__init__", "__new__", "__post_init__"})
# The module whose classes may be bound at module level though they grow.
INTERNING = "coilwork_ir.intern_table"
# State at the edge, of immutable values: which module holds it, by what name, and why.
ALLOWED: Mapping[tuple[str | None, str], str] = {
    (
        "coilwork.backend",
        "_AROUND",
    ): "what the blocks `with coilwork.options(...)` say that a thread is in",
    (
        "coilwork_aot.wrapper",
        "_KEPT",
    ): "where the programs go that a thread is exporting: a registered wrapper is handed nothing else",
    (
        "coilwork_runtime.triton_kernels.user_kernels",
        "_DEFINED",
    ): "what is behind operators that launches defined in torch's table, which keeps them for the process",
    (
        "coilwork_wrapper.kernel_operators",
        "_OPERATORS",
    ): "what is behind operators of built kernels in torch's table, which keeps them for the process",
    (
        "coilwork_wrapper.triton_calls",
        "_KERNELS",
    ): "the kernels that torch's table of Triton kernels keeps for the process",
}
# Ours that hold no values, as those of `threading`.
LOCKS = frozenset({"ForkedLock"})


def check_no_mutable_module_state(sources: Sequence[Source]) -> list[Violation]:
    changing = classes_that_change(sources)
    return sorted(found for source in sources for found in mutable_bindings(source, changing))


def check_no_global_statements(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(node.lineno, f"global {', '.join(node.names)}: pass the value instead")
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    )


def mutable_bindings(source: Source, changing: frozenset[str]) -> Iterator[Violation]:
    for statement in outside_functions(source.tree.body):
        targets: list[ast.expr]
        annotation: ast.expr | None = None
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value, annotation = [statement.target], statement.value, statement.annotation
        else:
            continue
        names = [last_name(target) or "_" for target in targets]
        if all(is_dunder(name) for name in names) or is_read_only(annotation):
            continue
        if all((source.module, name) in ALLOWED for name in names):
            continue
        kind = mutable_kind(value, changing)
        if kind is not None:
            advice = "use a tuple, frozenset or MappingProxyType, or annotate it Mapping, Sequence or Set"
            yield source.violation(statement.lineno, f"{', '.join(names)} is a mutable {kind}; {advice}")


def outside_functions(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import: the module's, its classes', and those inside their blocks."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from outside_functions(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from outside_functions(handler.body)


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def is_read_only(annotation: ast.expr | None) -> bool:
    """`Mapping[...]`, `Final[Mapping[...]]`, and the same in quotes. A bare `Final` fixes the name, not the
    value.
    """
    match annotation:
        case ast.Constant(value=str(text)):
            return is_read_only(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=base, slice=inner) if last_name(base) in ("Final", "ClassVar"):
            return is_read_only(inner)
        case ast.Subscript(value=base):
            return last_name(base) in READ_ONLY
        case ast.Name() | ast.Attribute():
            return last_name(annotation) in READ_ONLY - {"Final"}
    return False


def mutable_kind(value: ast.expr, changing: frozenset[str]) -> str | None:
    """Return what mutable thing the expression makes, or None."""
    match value:
        case ast.Dict() | ast.DictComp():
            return "dict"
        case ast.List() | ast.ListComp():
            return "list"
        case ast.Set() | ast.SetComp():
            return "set"
        case ast.IfExp(body=one, orelse=other):
            return mutable_kind(one, changing) or mutable_kind(other, changing)
        case ast.BinOp(left=one, right=other):
            return mutable_kind(one, changing) or mutable_kind(other, changing)
        case ast.Call(func=function):
            name = constructor(function)
            return name if name in MUTABLE_CALLS or name in changing else None
    return None


def constructor(function: ast.expr) -> str | None:
    """`deque` of `deque`, `collections.deque` and `deque[int]`; no method of a value."""
    match function:
        case ast.Subscript(value=inner):
            return constructor(inner)
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
            owner in STATEFUL_MODULES or name[:1].isupper()
        ):
            return name
    return None


def classes_that_change(sources: Sequence[Source]) -> frozenset[str]:
    """Names of our classes with a method, other than those that build, that changes `self`."""
    names = set()
    for source in sources:
        if source.module == INTERNING:
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name not in BUILDERS]
                if any(changes_self(method) for method in methods):
                    names.add(node.name)
    return frozenset(names) - LOCKS


def changes_self(method: ast.FunctionDef) -> bool:
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=targets) if any(is_part_of_self(target) for target in targets):
                return True
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target) if is_part_of_self(target):
                return True
            case ast.Delete(targets=targets) if any(is_part_of_self(target) for target in targets):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if (
                name in MUTATING_METHODS and is_part_of_self(owner)
            ):
                return True
    return False


def is_part_of_self(node: ast.expr) -> bool:
    """`self.a`, `self.a[i]`, `self.a.b`."""
    match node:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return is_part_of_self(inner)
        case ast.Tuple(elts=elements):
            return any(is_part_of_self(element) for element in elements)
    return False
