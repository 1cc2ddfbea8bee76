"""Devices and languages are compared by name where their owner is, and nowhere else.

A back end's words (`"cpu"`, `"cuda"`, a target's kind, a language) are open: whoever compares one has a
closed list that a new device would have to be put in. Others ask for a trait (`coilwork_ir.device_traits`,
`Target.has`), or have a table with a default for what is not in it. Comparisons are `==`, `!=`, `in`,
`startswith`, and patterns of `match`, with names and with constants of the module that hold them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from architecture.sources import Source, Violation

DEVICES = frozenset({"cpu", "cuda", "hip", "xpu", "privateuseone"})
LANGUAGES = frozenset({"cpp", "triton"})
# Modules that the words belong to, with what they are there.
OWNERS: Mapping[str, str] = {
    "coilwork.backends": "the registered back ends",
    "coilwork_ir.device_traits": "torch's own devices, a row each",
    "coilwork_runtime.devices": "what torch says of its own devices",
    "coilwork_runtime.usable_cores": "the controller `cpu` of control groups, which is no device",
    "coilwork_runtime.manifest.kernel_manifest": "the two languages that the runtime builds by itself",
}


def check_device_names(sources: Sequence[Source], owners: Collection[str] = OWNERS) -> list[Violation]:
    """Comparisons with names of devices and languages outside of their owners."""
    return [
        source.violation(line, f"compares with {name!r}; ask for a trait")
        for source in sources
        if (source.module or "") not in owners
        for line, name in _list_comparisons(source.tree)
    ]


def _list_comparisons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names of comparisons."""
    constants = _read_constants(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = (left, *others)
                names = LANGUAGES | DEVICES if any(map(_is_language, sides)) else DEVICES
                yield from ((node.lineno, name) for name in _names(sides, names, constants))
            case ast.Call(func=ast.Attribute(attr="startswith"), args=arguments):
                yield from ((node.lineno, name) for name in _names(arguments, DEVICES, constants))
            case ast.MatchValue(value=value):
                yield from ((value.lineno, name) for name in _names((value,), DEVICES, constants))
            case _:
                pass


def _read_constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Values of the module's own constants, by name."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
            case _:
                pass
    return found


def _is_language(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute | ast.Name) and (
        node.attr if isinstance(node, ast.Attribute) else node.id
    ).endswith("language")


def _names(
    nodes: Sequence[ast.expr], names: frozenset[str], constants: Mapping[str, ast.expr]
) -> Iterator[str]:
    for node in nodes:
        known = constants.get(node.id, node) if isinstance(node, ast.Name) else node
        values = known.elts if isinstance(known, ast.Tuple | ast.Set | ast.List) else [known]
        for value in values:
            if isinstance(value, ast.Constant) and value.value in names:
                yield str(value.value)
