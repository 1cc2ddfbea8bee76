"""The form of a loop node, which is the node without names of buffers and origins; and nodes under other
names.

Layers of a model are equal, and so are the nodes of one place in each of them: they have one form, and
mention other buffers. Both functions walk every field that a node has, so that a field that is added to a
node is a part of its form without more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar

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
    replace_operands,
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
    """Return the nodes of `graph`, as repetitions are looked for among them."""
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
        match _classify(type(value)):
            case "plain":
                same: Hashable = value
                return same
            case "tuple":
                return tuple([self.describe(part) for part in value])
            case "scalar":
                return self._place(value)
            case "buffer":
                return (self._number(value.name), value.dtype, value.shape, value.strides, value.device)
            case "reference":
                return (type(value), self._number(value.name))
            case "list":
                return (ListValue, *[self.describe(part) for part in value.items])
            case "number":
                # equal numbers of other types, and zeros of other signs, are other arguments
                return (type(value), repr(value))
            case "parts":
                return self.describe_fields(value)

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


_Class: TypeAlias = Literal["plain", "tuple", "scalar", "buffer", "reference", "list", "number", "parts"]


def _find_class(kind: type) -> _Class:
    """Return what values of `kind` are to a form; "parts" are values that may mention buffers."""
    if kind is tuple:
        return "tuple"
    if issubclass(kind, Scalar):
        return "scalar"
    if kind is Buffer:
        return "buffer"
    if kind is Ref or kind is Item:
        return "reference"
    if kind is ListValue:
        return "list"
    if issubclass(kind, bool | int | float | complex):
        return "number"
    return "parts" if is_dataclass(kind) and kind.__module__.startswith("coilwork_ir.loops") else "plain"


_classify: Final[Callable[[type], _Class]] = cache(_find_class)


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
    return NodeRenamer().rename(node, names, origins)


class NodeRenamer:
    """Renames nodes as `rename_node` does, each of them many times: which parts of a scalar value mention
    buffers is found once.
    """

    def __init__(self) -> None:
        # by value: those below it that mention buffers, and itself if it does, operands before users
        self.mentioning: dict[Scalar, tuple[Scalar, ...]] = {}

    def rename(
        self, node: _NodeType, names: Mapping[str, str], origins: tuple[Origin, ...] | None = None
    ) -> _NodeType:
        """Return `node` under other names, as `rename_node` does."""
        changes = _Renaming(names, self.mentioning).rename_fields(node)
        if origins is not None:
            changes["origins"] = origins
        return replace(node, **changes) if changes else node


class _Renaming:
    """New names for buffers; values that are rewritten already."""

    def __init__(self, names: Mapping[str, str], mentioning: dict[Scalar, tuple[Scalar, ...]]) -> None:
        self.names = names
        self.mentioning = mentioning
        self.done: dict[Scalar, Scalar] = {}

    def rename_fields(self, value: Any) -> dict[str, Any]:
        """Return the fields of `value` that change, by name."""
        kind = type(value)
        named = _NAMED.get(kind, ())
        changes: dict[str, Any] = {}
        for name in _list_fields(kind):
            old = getattr(value, name)
            new = self._rename_names(old) if name in named else self.rename(old)
            if new is not old:
                changes[name] = new
        return changes

    def rename(self, value: Any) -> Any:
        match _classify(type(value)):
            case "tuple":
                parts = tuple([self.rename(part) for part in value])
                return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
            case "scalar":
                return self._rewrite(value)
            case "buffer" | "reference":
                name = self.names.get(value.name, value.name)
                return value if name is value.name else replace(value, name=name)
            case "list":
                items = self.rename(value.items)
                return value if items is value.items else ListValue(items)
            case "parts":
                changes = self.rename_fields(value)
                return replace(value, **changes) if changes else value
            case _:
                return value

    def _rename_names(self, value: Any) -> Any:
        if type(value) is tuple:
            return tuple([self._rename_names(part) for part in value])
        return self.names.get(value, value) if type(value) is str else value

    def _rewrite(self, root: Scalar) -> Scalar:
        parts = self.mentioning.get(root)
        if parts is None:
            parts = self.mentioning[root] = _list_mentioning(root)
        done = self.done
        for part in parts:
            if part in done:
                continue
            operands = [done.get(operand, operand) for operand in part.operands]
            new = replace_operands(part, operands)
            if type(new) is Load:
                assert isinstance(new, Load)
                name, mask, other = self.names.get(new.buffer, new.buffer), new.mask, new.other
                if name != new.buffer:
                    new = load(name, new.index, new.dtype, indirect=new.indirect, mask=mask, other=other)
            done[part] = new
        return done.get(root, root)


def _list_mentioning(root: Scalar) -> tuple[Scalar, ...]:
    """Return the values below `root`, and itself, that are loads or computed from loads, operands before
    users.
    """
    found: dict[Scalar, None] = {}
    for value in iterate_postorder((root,)):
        if type(value) is Load or any(operand in found for operand in value.operands):
            found[value] = None
    return tuple(found)
