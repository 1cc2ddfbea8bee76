"""A graph split where no program goes on: parts that are compiled, and calls between them that Python makes.

Parts and calls alternate in levels: the calls of a level come behind its part. What has no effect is computed
as early as its operands allow, so that there are few parts. What has one stays in its place among the others
that have one, and what overwrites memory stays behind all that comes before it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from coilwork_frontend.torch_compat.operators import (
    get_effectful_operator,
    has_effects,
    make_token,
    makes_token,
    sinks_tokens,
    writes_memory,
)
from coilwork_frontend.torch_compat.sizes import symbols_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Calls that are compiled together.

    Attributes:
        graph: the calls, with a placeholder for each of `inputs`.
        inputs: nodes of the whole graph, outside of the part.
        results: nodes of the whole graph, in the part.
    """

    graph: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A part, if there is one, and the calls that Python makes behind it."""

    part: Part | None
    calls: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class _Least:
    """The least levels that come behind something: of a compiled call, and of one that Python makes."""

    compiled: int = 0
    called: int = 0

    def join(self, other: _Least) -> _Least:
        """The least levels behind both."""
        return _Least(max(self.compiled, other.compiled), max(self.called, other.called))


@dataclass(slots=True)
class _Placement:
    """Levels of calls, which are placed one after another.

    Attributes:
        cut: the calls that Python makes.
        level: of each call so far.
        effects, writes, all: what comes behind the calls so far: those with effects, those that overwrite
            memory, and all of them.
    """

    cut: frozenset[fx.Node]
    level: dict[fx.Node, int] = field(default_factory=dict)
    effects: _Least = _Least()
    writes: _Least = _Least()
    all: _Least = _Least()

    def place(self, node: fx.Node) -> None:
        least = self.writes
        for operand in node.all_input_nodes:
            if operand in self.level:
                least = least.join(self._behind(operand))
        if has_effects(node):
            least = least.join(self.effects)
        if writes_memory(node):
            least = least.join(self.all)
        self.level[node] = least.called if node in self.cut else least.compiled
        behind = self._behind(node)
        self.all = self.all.join(behind)
        if has_effects(node):
            self.effects = self.effects.join(behind)
        if writes_memory(node):
            self.writes = self.writes.join(behind)

    def _behind(self, node: fx.Node) -> _Least:
        level = self.level[node]
        return _Least(level + 1, level) if node in self.cut else _Least(level, level)


def split_at(gm: fx.GraphModule, cut: Collection[str]) -> tuple[Level, ...]:
    """Split `gm` at the calls named by `cut`, and at those that take an input or an attribute named so."""
    placement = _Placement(cut=_with_neighbours(gm, cut))
    for node in _calls(gm):
        placement.place(node)
    return _list_levels(gm, placement.level, placement.cut)


def _calls(gm: fx.GraphModule) -> list[fx.Node]:
    """The calls of `gm`, without those that make tokens or keep them: a part makes its own."""
    return [
        node
        for node in gm.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
        and not makes_token(node)
        and not sinks_tokens(node)
    ]


def _with_neighbours(gm: fx.GraphModule, cut: Collection[str]) -> frozenset[fx.Node]:
    """The calls named by `cut`, those that take values named so, and what takes results of theirs apart."""
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.name in cut and node.op in ("placeholder", "get_attr"):
            found.update(user for user in node.users if user.op != "output")
        elif node.name in cut or _hands_list_on(node):
            found.add(node)
    for node in gm.graph.nodes:
        if node.target is operator.getitem and node.args[0] in found:
            found.add(node)
    return frozenset(found)


def _hands_list_on(node: fx.Node) -> bool:
    """Tell if somebody takes a list that `node` makes as a whole."""
    is_list = isinstance(node.meta.get("val"), list | tuple | dict) and node.op == "call_function"
    return is_list and any(user.target is not operator.getitem for user in node.users)


def _list_levels(
    gm: fx.GraphModule, level: Mapping[fx.Node, int], cut: frozenset[fx.Node]
) -> tuple[Level, ...]:
    levels: list[Level] = []
    for number in range(max(level.values(), default=-1) + 1):
        here = [node for node in level if level[node] == number]
        compiled = [node for node in here if node not in cut]
        part = _make_part(gm, compiled) if compiled else None
        levels.append(Level(part=part, calls=tuple(node for node in here if node in cut)))
    return tuple(levels)


def _make_part(gm: fx.GraphModule, calls: Sequence[fx.Node]) -> Part:
    inside = set(calls)
    outside = [one for node in calls for one in node.all_input_nodes if one not in inside]
    inputs = {one: None for one in outside if one.op != "get_attr" and not _is_token(one)}
    inputs.update(dict.fromkeys(_list_tellers(gm, calls, inputs)))
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for one in inputs:
        copies[one] = graph.placeholder(one.name)
        copies[one].meta.update(one.meta)
    for one in dict.fromkeys(outside):
        if _is_token(one):
            copies[one] = make_token(graph)
            copies[one].meta.update(one.meta)
        elif one.op == "get_attr":
            copies[one] = graph.node_copy(one)
    for node in calls:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = tuple(node for node in calls if _is_result(node, inside))
    graph.output(tuple(copies[node] for node in results))
    return Part(graph=fx.GraphModule(gm, graph), inputs=tuple(inputs), results=results)


def _is_result(node: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Tell if somebody outside of a part reads a value of its."""
    if _is_token(node) or isinstance(node.meta.get("val"), list | tuple | dict):
        return False
    return any(user not in inside and not sinks_tokens(user) for user in node.users)


def _is_token(node: fx.Node) -> bool:
    """Tell if `node` is nothing but what ties calls with effects to each other."""
    if makes_token(node):
        return True
    source = node.args[0] if node.target is operator.getitem else None
    is_tied = isinstance(source, fx.Node) and get_effectful_operator(source) is not None
    return is_tied and bool(node.args[1] == 0)


def _list_tellers(
    gm: fx.GraphModule, calls: Collection[fx.Node], inputs: Collection[fx.Node]
) -> list[fx.Node]:
    """Integers of `gm` that tell sizes in `calls` which neither `inputs` nor these calls tell."""
    told = {symbol for node in inputs for symbol in symbols_of(node.meta.get("val"), plain=True)}
    wanted = {symbol for node in calls for symbol in symbols_of(node.meta.get("val"))} - told
    found: list[fx.Node] = []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node in calls or not wanted:
            break
        tells = symbols_of(value, plain=True) if isinstance(value, torch.SymInt) else set()
        if wanted & tells:
            found.append(node)
            wanted -= tells
    return found
