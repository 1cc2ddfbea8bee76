"""A graph that no one program computes: its parts are compiled, and Python makes the calls between them.

Parts and calls alternate in levels: the calls of a level come behind its part. A call without effects is
computed as early as its operands allow, so that there are few parts. Calls with effects keep their order
among each other, and a call that overwrites memory stays behind all that comes before it. Graphs that Python
calls, as the rounds of a loop, are compiled as well.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from coilwork_frontend.calling_convention.aten_graph import AtenGraph
from coilwork_frontend.calling_convention.operator_call import Call, make_operator_call
from coilwork_frontend.capture.eager_fallback import box_graph, warn_of_graph, warn_of_parts
from coilwork_frontend.errors import describe
from coilwork_frontend.torch_compat.aot_autograd import forget_tracing
from coilwork_frontend.torch_compat.operators import (
    get_effectful_operator,
    has_effects,
    has_shared_writes,
    is_first_token,
    is_token_sink,
    make_token,
)
from coilwork_frontend.torch_compat.sizes import find_symbols
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin
from coilwork_tools.check_mode.checks import Checks
from coilwork_tools.check_mode.watch import watch_in_eager
from coilwork_tools.explain.report import CompiledGraph, CompileReport
from coilwork_tools.op_fallback.faults import FaultKinds


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
        """Return the least levels behind both."""
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
                least = least.join(self._levels_after(operand))
        if has_effects(node):
            least = least.join(self.effects)
        if has_shared_writes(node):
            least = least.join(self.all)
        self.level[node] = least.called if node in self.cut else least.compiled
        behind = self._levels_after(node)
        self.all = self.all.join(behind)
        if has_effects(node):
            self.effects = self.effects.join(behind)
        if has_shared_writes(node):
            self.writes = self.writes.join(behind)

    def _levels_after(self, node: fx.Node) -> _Least:
        level = self.level[node]
        return _Least(level + 1, level) if node in self.cut else _Least(level, level)


def split_at(gm: fx.GraphModule, cut: Collection[str]) -> tuple[Level, ...]:
    """Split `gm` at the calls named by `cut`, and at those that take an input or an attribute named so."""
    placement = _Placement(cut=_extend_cut(gm, cut))
    for node in _calls(gm):
        placement.place(node)
    return _list_levels(gm, placement.level, placement.cut)


def _calls(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the calls of `gm`, without those that make tokens or keep them: a part makes its own."""
    return [
        node
        for node in gm.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
        and not is_first_token(node)
        and not is_token_sink(node)
    ]


def _extend_cut(gm: fx.GraphModule, cut: Collection[str]) -> frozenset[fx.Node]:
    """Return the calls named by `cut`, those that take values named so, and what takes results of theirs
    apart.
    """
    extended: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.name in cut and node.op in ("placeholder", "get_attr"):
            extended.update(user for user in node.users if user.op != "output")
        elif node.name in cut or _hands_list_on(node):
            extended.add(node)
    for node in gm.graph.nodes:
        if node.target is operator.getitem and node.args[0] in extended:
            extended.add(node)
    return frozenset(extended)


def _hands_list_on(node: fx.Node) -> bool:
    """Return True if some node takes a list that `node` makes as a whole."""
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
    """Return True if a node outside of the part reads the value of `node`."""
    if _is_token(node) or isinstance(node.meta.get("val"), list | tuple | dict):
        return False
    return any(user not in inside and not is_token_sink(user) for user in node.users)


def _is_token(node: fx.Node) -> bool:
    """Return True if `node` only ties calls with effects to each other."""
    if is_first_token(node):
        return True
    source = node.args[0] if node.target is operator.getitem else None
    is_tied = isinstance(source, fx.Node) and get_effectful_operator(source) is not None
    return is_tied and bool(node.args[1] == 0)


def _list_tellers(
    gm: fx.GraphModule, calls: Collection[fx.Node], inputs: Collection[fx.Node]
) -> list[fx.Node]:
    """Integers of `gm` that tell sizes in `calls` which neither `inputs` nor these calls tell."""
    told = {symbol for node in inputs for symbol in find_symbols(node.meta.get("val"), plain=True)}
    wanted = {symbol for node in calls for symbol in find_symbols(node.meta.get("val"))} - told
    tellers: list[fx.Node] = []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node in calls or not wanted:
            break
        tells = find_symbols(value, plain=True) if isinstance(value, torch.SymInt) else set()
        if wanted & tells:
            tellers.append(node)
            wanted -= tells
    return tellers


# ---- compiling the parts ----


CompilePart = Callable[[fx.GraphModule, Sequence[Any]], CompiledGraph]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The places at which a graph is split.

    Attributes:
        levels: parts, and the calls between them.
        reasons: why no program makes a call, by the call.
    """

    levels: tuple[Level, ...]
    reasons: Mapping[Origin, str]


def cut_at(gm: fx.GraphModule, reasons: Mapping[Origin, str]) -> Cuts:
    """Split `gm` at the calls that have a reason, and at those that take the inputs and attributes which
    have one.
    """
    return Cuts(levels=split_at(gm, {origin.node for origin in reasons}), reasons=reasons)


def cut_around(gm: fx.GraphModule, graph_id: str, error: Exception) -> Cuts | None:
    """Split `gm`, which cannot be compiled because of `error`, at the calls that it names, with a warning;
    None if it names none.

    The calls of a graph that `gm` calls are named by the call of that graph.
    """
    if not FaultKinds().is_of_calls(error):
        # no part of a graph can be compiled either
        return None
    places = _list_places(gm)
    named = error.origins if isinstance(error, CoilworkIRError) else ()
    reasons = {replace(one, node=places[one.node]): describe(error) for one in named if one.node in places}
    if not reasons:
        return None
    warn_of_parts(error, graph_id, list(reasons))
    return cut_at(gm, reasons)


def _list_places(gm: fx.GraphModule) -> dict[str, str]:
    """Return the nodes of `gm` by name; those of a graph that `gm` calls as the call."""
    places: dict[str, str] = {}
    for node in gm.graph.nodes:
        for one in node.all_input_nodes:
            held = getattr(gm, str(one.target), None) if one.op == "get_attr" else None
            if isinstance(held, fx.GraphModule):
                places.update(dict.fromkeys(_list_places(held), node.name))
    places.update({node.name: node.name for node in gm.graph.nodes if node.op != "output"})
    return places


@dataclass(slots=True, kw_only=True)
class _Driver:
    """The graph of calls of parts and of what lies between them, as it is made.

    Attributes:
        copies: its nodes by those of the whole graph.
        called: nodes of the whole graph that Python computes.
        held: what its nodes call, by name.
        reports: of the parts.
    """

    gm: fx.GraphModule
    examples: Mapping[fx.Node, Any]
    compile: CompilePart
    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, Any] = field(default_factory=dict)
    called: set[fx.Node] = field(default_factory=set)
    held: dict[str, Any] = field(default_factory=dict)
    reports: list[CompileReport] = field(default_factory=list)

    def add_part(self, part: Part) -> None:
        inputs = [self.examples.get(node, node.meta.get("val")) for node in part.inputs]
        with forget_tracing():
            compiled = self.compile(part.graph, inputs)
        self.reports.append(compiled.report)
        given = tuple(self._lay_out(one) for one in part.inputs)
        results = self.graph.call_function(_Unboxed(compiled), given)
        for number, node in enumerate(part.results):
            self.copies[node] = self.graph.call_function(operator.getitem, (results, number))

    def _lay_out(self, node: fx.Node) -> Any:
        """Return the copy of `node` as a part takes it: what a call of Python's returned has the strides that
        were captured.
        """
        value: object = node.meta.get("val")
        copy = self.copies[node]
        if node not in self.called or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return copy
        strides = value.stride()
        if not all(type(stride) is int for stride in strides):
            return copy
        return self.graph.call_function(_restride, (copy, strides))

    def add_call(self, node: fx.Node) -> None:
        for one in node.all_input_nodes:
            if one.op == "get_attr" and one not in self.copies:
                self.copies[one] = self._take_attribute(one)
            elif is_first_token(one):
                self.copies[one] = None
        self.called.add(node)
        target = get_effectful_operator(node)
        if target is None:
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
            return
        arguments, keywords = fx.map_arg((node.args[1:], node.kwargs), self.copies.__getitem__)
        self.copies[node] = self.graph.call_function(_call_without_token, arguments, keywords)

    def _take_attribute(self, node: fx.Node) -> fx.Node:
        """Return an attribute of the whole graph; a graph among them is compiled."""
        value: Any = self.gm
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, fx.GraphModule):
            value = self._compile_region(value)
        name = f"held_{len(self.held)}"
        self.held[name] = value
        return self.graph.get_attr(name)

    def _compile_region(self, region: fx.GraphModule) -> Callable[..., Any]:
        """Return a function that calls `region`, compiled, with its inputs one by one."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(region.graph, copies)
        results: Any = fx.map_arg(region.graph.output_node().args[0], copies.__getitem__)
        is_one = not isinstance(results, list | tuple)
        graph.output((results,) if is_one else tuple(results))
        inputs = [node.meta.get("val") for node in region.graph.find_nodes(op="placeholder")]
        with forget_tracing():
            compiled = self.compile(fx.GraphModule(region, graph), inputs)
        self.reports.append(compiled.report)
        return _take_first_result(_Unboxed(compiled)) if is_one else _Unboxed(compiled)

    def finish(self) -> Call:
        """Return a function that drives the graph, with one list of inputs, which it empties."""
        for node in self.gm.graph.nodes:
            if node.op == "get_attr" and node not in self.copies:
                self.copies[node] = self._take_attribute(node) if _is_returned(node) else None
        last = self.gm.graph.output_node()
        (results,) = last.args
        self.graph.output(fx.map_arg(results, self.copies.get))
        return make_operator_call(fx.GraphModule(_Held(self.held), self.graph))


class _Held(torch.nn.Module):
    """The values that nodes of a graph call and read, by name."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in held.items():
            # not as buffers, which a constant is none of
            object.__setattr__(self, name, value)


class _Unboxed:
    """A compiled part, called with its inputs one by one."""

    def __init__(self, compiled: CompiledGraph) -> None:
        self._compiled = compiled
        self.__name__ = compiled.report.graph_id

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self._compiled(list(args)))


def _take_first_result(call: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    return lambda *args: call(*args)[0]


def _restride(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`value`, or a copy of it with `strides`; what is captured of a call may not be how its result lies."""
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _call_without_token(target: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the results of a call with effects, behind what would be its token."""
    results = target(*args, **kwargs)
    return (None, *results) if isinstance(results, tuple) else (None, results)


def _is_returned(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def compile_cut(
    graph: AtenGraph, whole: CompileReport, cuts: Cuts, compile_part: CompilePart
) -> CompiledGraph:
    """Compile `graph`, split at `cuts`; `whole` is its report so far. `compile_part` compiles one part."""
    placeholders = graph.gm.graph.find_nodes(op="placeholder")
    examples = dict(zip(placeholders, graph.example_inputs, strict=True))
    driver = _Driver(gm=graph.gm, examples=examples, compile=compile_part)
    for node in placeholders:
        driver.copies[node] = driver.graph.placeholder(node.name)
    for level in cuts.levels:
        if level.part is not None:
            driver.add_part(level.part)
        for node in level.calls:
            driver.add_call(node)
    return CompiledGraph(graph.bind_captured(driver.finish()), _join_reports(whole, driver.reports, cuts))


def _join_reports(whole: CompileReport, parts: Sequence[CompileReport], cuts: Cuts) -> CompileReport:
    """Return the report of a graph that was split at `cuts` and compiled in `parts`."""
    calls = {node.name for level in cuts.levels for node in level.calls}
    called = [_describe_call(one, why) for one, why in cuts.reasons.items() if one.node in calls]
    seconds = Counter(dict(whole.seconds))
    for part in parts:
        seconds.update(part.seconds)
    return replace(
        whole,
        kernels=sum(part.kernels for part in parts),
        distinct_kernels=sum(part.distinct_kernels for part in parts),
        extern_calls=sum(part.extern_calls for part in parts),
        executor="parts",
        seconds=dict(seconds),
        python_calls={name: reason for part in parts for name, reason in part.python_calls.items()},
        operators=[call for part in parts for call in part.operators],
        called=[*called, *(call for part in parts for call in part.called)],
        parts=[part.graph_id for part in parts],
        fallback="; ".join(part.fallback for part in parts if part.fallback),
    )


def run_in_eager(graph: AtenGraph, report: CompileReport, error: Exception, checks: Checks) -> CompiledGraph:
    """Return the captured graph as it is, because of `error`, with a warning and `checks` of its results;
    `report` is what is known of it.
    """
    warn_of_graph(error, report.graph_id)
    report = replace(report, fallback=str(error) or type(error).__name__)
    call = graph.bind_captured(box_graph(graph.gm))
    return CompiledGraph(watch_in_eager(call, checks, f"graph {report.graph_id}"), report)


def _describe_call(call: Origin, reason: str) -> dict[str, str]:
    return {"op": call.op, "reason": reason, "source": f"{call.file}:{call.line}" if call.file else ""}
