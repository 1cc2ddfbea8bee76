"""The form of a loop node, which is the node without names of buffers and origins; and nodes under other
names.

Layers of a model are equal, and so are the nodes of one place in each of them: they have one form, and
mention other buffers. Both functions walk every field that a node has, so that a field that is added to a
node is a part of its form without more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from coilwork_ir.buffers import Buffer, Constant, Item, ListValue, Ref
from coilwork_ir.loc import Origin
from coilwork_ir.loops.access import list_defined_buffers, list_overwritten_buffers, list_read_buffers
from coilwork_ir.loops.nodes import (
    AssertSize,
    Cond,
    Extern,
    Graph,
    Groups,
    Loop,
    Mutation,
    Node,
    Pointwise,
    Scatter,
    View,
)
from coilwork_ir.repetition import Entry
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Parameter,
    Scalar,
    iterate_postorder,
    load,
    rewrite,
)

_NodeType = TypeVar("_NodeType", bound=Node)

# Fields whose strings, alone or in tuples, are names of buffers.
_NAMED: Final[Mapping[type, frozenset[str]]] = MappingProxyType(
    {
        Pointwise: frozenset({"into"}),
        Scatter: frozenset({"into"}),
        Groups: frozenset({"ends"}),
        View: frozenset({"source"}),
        Mutation: frozenset({"source"}),
        Extern: frozenset({"aliases", "in_flight", "until", "waits"}),
    }
)
_SLOTS: Final[Mapping[type[Scalar], tuple[str, ...]]] = MappingProxyType(
    {
        kind: tuple(name for name in kind.__slots__ if not name.startswith("_"))
        for kind in Scalar.__subclasses__()
    }
)


# ---- forms ----


@dataclass(frozen=True, slots=True)
class NodeForm:
    """The form that nodes of one place in equal layers share: `key`. `names` are the buffers by number, in
    the order in which the node mentions them.
    """

    key: Hashable
    names: tuple[str, ...]


def describe_node(node: Node) -> NodeForm | None:
    """Describe `node`, in time linear in its size; None for nodes with graphs or effects of their own, and
    for calls that other calls wait for or that bind sizes, which nothing may stand for.
    """
    if isinstance(node, Cond | Loop | AssertSize):
        return None
    if isinstance(node, Extern) and (
        node.effect or node.barrier or node.binds or node.in_flight or node.waits or node.retains
    ):
        return None
    description = _Description()
    key = description.describe_fields(node)
    return NodeForm((key, tuple(description.values)), tuple(description.numbers))


def list_entries(graph: Graph) -> list[Entry]:
    """The nodes of `graph`, as repetitions are looked for among them."""
    entries = []
    for node in graph.nodes:
        form = describe_node(node)
        defines = tuple([buffer.name for buffer in list_defined_buffers(node)])
        if form is None:
            entries.append(Entry(None, list_entry_names(node), defines))
        else:
            entries.append(Entry(form.key, form.names, defines))
    return entries


def list_entry_names(node: Node) -> tuple[str, ...]:
    """Names that a node without a form reads, overwrites or defines."""
    overwritten = [old for old, _ in list_overwritten_buffers(node)]
    defined = [buffer.name for buffer in list_defined_buffers(node)]
    return (*list_read_buffers(node), *overwritten, *defined)


def list_facts(graph: Graph, promises: Mapping[str, Hashable]) -> dict[str, Hashable]:
    """Return facts about buffers that no node says: how inputs and constants lie and what is
    in `promises` about them; of results, how often they are results, and if their strides are free.
    """
    free = frozenset(graph.free_results)
    counts = Counter(output.name for output in graph.outputs if isinstance(output, Ref))
    facts: dict[str, Hashable] = {name: (count, name in free) for name, count in counts.items()}
    for entry in (*graph.inputs, *graph.constants):
        buffer = entry.buffer if isinstance(entry, Constant) else entry
        if isinstance(buffer, Buffer):
            layout = (buffer.dtype, buffer.shape, buffer.strides, buffer.device)
            promised = (isinstance(entry, Constant), promises.get(buffer.name))
            facts[buffer.name] = (layout, promised, counts[buffer.name])
    return facts


class _Description:
    """The buffers and scalar values of a node, numbered as they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.places: dict[Scalar, int] = {}
        self.values: list[Hashable] = []

    def describe_fields(self, value: Any) -> Hashable:
        kind = type(value)
        named = _NAMED.get(kind, ())
        found: list[Hashable] = [kind.__name__]
        for name in _list_fields(kind):
            part = getattr(value, name)
            found.append(self._describe_names(part) if name in named else self.describe(part))
        return tuple(found)

    def describe(self, value: Any) -> Hashable:
        if value is None or type(value) is str:
            return value
        if type(value) is tuple:
            return tuple([self.describe(part) for part in value])
        if isinstance(value, Scalar):
            return self._place(value)
        if type(value) is Buffer:
            return (self._number(value.name), value.dtype, value.shape, value.strides, value.device)
        if type(value) is Ref or type(value) is Item:
            return (type(value), self._number(value.name))
        if type(value) is ListValue:
            return (ListValue, *[self.describe(part) for part in value.items])
        if isinstance(value, bool | int | float | complex):
            # equal numbers of other types, and zeros of other signs, are other arguments
            return (type(value), repr(value))
        return self.describe_fields(value) if _has_parts(type(value)) else value

    def _describe_names(self, value: Any) -> Hashable:
        if type(value) is tuple:
            return tuple([self._describe_names(part) for part in value])
        return self._number(value) if type(value) is str else value

    def _number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _place(self, root: Scalar) -> int:
        places = self.places
        if root in places:
            return places[root]
        for node in iterate_postorder((root,)):
            if node in places:
                continue
            operands = tuple([places[operand] for operand in node.operands])
            places[node] = len(places)
            kind = type(node)
            if kind is Load:
                assert isinstance(node, Load)
                number, is_masked = self._number(node.buffer), node.mask is not None
                self.values.append((number, node.index, node.dtype, operands, is_masked, repr(node.other)))
            elif kind is Op:
                assert isinstance(node, Op)
                self.values.append((node.op, node.dtype, operands))
            elif kind is Const or kind is Parameter or (kind is IndexValue and not operands):
                # values are interned
                self.values.append(node)
            else:
                own = tuple([getattr(node, name) for name in _SLOTS[kind]])
                self.values.append((kind, node.dtype, operands, own))
        return places[root]


def _has_parts(kind: type) -> bool:
    """Tell if values of `kind` are made of values that may mention buffers."""
    return is_dataclass(kind) and kind.__module__.startswith("coilwork_ir.loops")


def _list_fields(kind: type) -> tuple[str, ...]:
    known = _FIELDS.get(kind)
    return _names_of(kind) if known is None else known


def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "origins")


_FIELDS: Final[Mapping[type, tuple[str, ...]]] = MappingProxyType(
    {kind: _names_of(kind) for kind in (*Node.__args__, Mutation, Groups)}
)


# ---- renaming ----


def rename_node(
    node: _NodeType, names: Mapping[str, str], origins: tuple[Origin, ...] | None = None
) -> _NodeType:
    """`node` with other names for buffers, those that it defines included, and with `origins` if they are
    given. Names that `names` does not have stay. The node holds no graphs.
    """
    renamed: _NodeType = _Renaming(names).rename_fields(node)
    return renamed if origins is None else replace(renamed, origins=origins)


class _Renaming:
    """New names for buffers; values that are rewritten already."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.done: dict[Scalar, Scalar] = {}

    def rename_fields(self, value: Any) -> Any:
        kind = type(value)
        named = _NAMED.get(kind, ())
        changes = {}
        for name in _list_fields(kind):
            old = getattr(value, name)
            new = self._rename_names(old) if name in named else self.rename(old)
            if new is not old:
                changes[name] = new
        return replace(value, **changes) if changes else value

    def rename(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is str:
            return value
        if kind is tuple:
            parts = tuple([self.rename(part) for part in value])
            return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
        if isinstance(value, Scalar):
            return self._rewrite(value)
        if kind is Buffer or kind is Ref or kind is Item:
            name = self.names.get(value.name, value.name)
            return value if name is value.name else replace(value, name=name)
        if kind is ListValue:
            items = self.rename(value.items)
            return value if items is value.items else ListValue(items)
        return self.rename_fields(value) if _has_parts(kind) else value

    def _rename_names(self, value: Any) -> Any:
        if type(value) is tuple:
            return tuple([self._rename_names(part) for part in value])
        return self.names.get(value, value) if type(value) is str else value

    def _rewrite(self, root: Scalar) -> Scalar:
        found = self.done.get(root)
        if found is None:
            found = self.done[root] = rewrite((root,), self._visit)[0]
        return found

    def _visit(self, value: Scalar) -> Scalar:
        if type(value) is not Load:
            return value
        assert isinstance(value, Load)
        name = self.names.get(value.buffer)
        if name is None:
            return value
        mask, other = value.mask, value.other
        return load(name, value.index, value.dtype, indirect=value.indirect, mask=mask, other=other)
