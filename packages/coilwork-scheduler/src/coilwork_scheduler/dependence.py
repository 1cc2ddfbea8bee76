"""Find which node defines, reads and overwrites which memory, the order that follows, and dead code
elimination.

Memory is followed through its names: a view, an aliasing result and a buffer `into` another share that
buffer's memory, and all names of one memory have one root. A node that overwrites memory runs after every
earlier node that touches it under any name. The wait for an operator touches the memory that the operator has
used until then. Random calls keep their order, and so do effects; barriers keep theirs among all nodes.
Inputs are overwritten after the assertions on sizes that come before: a caller that handles a failed
assertion finds its inputs intact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coilwork_ir.buffers import Argument, Buffer, Constant, ListValue, Ref
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, get_extents
from coilwork_ir.inflight_memory import InFlight
from coilwork_ir.loops import (
    AssertSize,
    Attention,
    AttentionGradient,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
)
from coilwork_ir.loops.access import (
    list_bodies,
    list_bound_symbols,
    list_defined_buffers,
    list_memory_aliases,
    list_overwritten_buffers,
    list_read_buffers,
)
from coilwork_ir.scalar import find_index_symbols
from coilwork_scheduler.errors import ScheduleError

# ---- Dependence analysis ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Facts about one graph; nodes are named by their positions.

    Attributes:
        buffers: every buffer of the graph by name.
        definer: the node that defines a buffer; inputs and constants have none.
        reads: names that each node reads, in first-use order.
        root: the first name of the memory a buffer lives in.
        external: roots that belong to inputs and constants.
        overwriters: nodes that overwrite the memory of a root, in order; roots without any are absent.
        before: nodes that must run before each node, sorted.
        symbol_definer: the node that determines a symbol.
        released: roots that operators have used until a node waits for them, by the node.
    """

    buffers: Mapping[str, Buffer]
    definer: Mapping[str, int]
    reads: tuple[tuple[str, ...], ...]
    root: Mapping[str, str]
    external: frozenset[str]
    overwriters: Mapping[str, tuple[int, ...]]
    before: tuple[tuple[int, ...], ...]
    symbol_definer: Mapping[Expr, int]
    released: Mapping[int, tuple[str, ...]]

    def fresh_names(self) -> FreshNames:
        """Names for new buffers of the graph."""
        return FreshNames(self.buffers)


def analyse(graph: Graph, before_pass: tuple[Graph, Dependence] | None = None) -> Dependence:
    """Return the dependences of `graph`. Linear in its size.

    `before_pass` is the graph of which `graph` was made, with its dependences: nodes that both have read the
    same buffers.

    Raises:
        ScheduleError: a node reads a name that nothing before it defines, or that was overwritten.
    """
    walk = _Walk(graph)
    if before_pass is not None:
        old, facts = before_pass
        walk.known = dict(zip(map(id, old.nodes), facts.reads, strict=True))
    before = tuple(walk.visit(position, node) for position, node in enumerate(graph.nodes))
    return Dependence(
        buffers=walk.buffers,
        definer=walk.definer,
        reads=tuple(walk.reads),
        root=walk.root,
        external=frozenset(walk.external),
        overwriters={root: tuple(nodes) for root, nodes in walk.overwriters.items()},
        before=before,
        symbol_definer=walk.symbol_definer,
        released=walk.released,
    )


class _Walk:
    """State of one pass over the nodes."""

    def __init__(self, graph: Graph) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.definer: dict[str, int] = {}
        self.root: dict[str, str] = {}
        self.external: set[str] = set()
        self.overwriters: dict[str, list[int]] = {}
        self.symbol_definer: dict[Expr, int] = {}
        self.reads: list[tuple[str, ...]] = []
        # what nodes that are known read, by their identity
        self.known: dict[int, tuple[str, ...]] = {}
        # per root: nodes that touch the memory since it was last overwritten, that overwriter included
        self._touching: dict[str, list[int]] = {}
        self._stale: set[str] = set()
        self._names: dict[str, list[str]] = {}
        self._last_random: int | None = None
        self._last_effect: int | None = None
        self._last_assertion: int | None = None
        self._last_barrier: int | None = None
        self.released: dict[int, tuple[str, ...]] = {}
        self._in_flight: InFlight[str] = InFlight()
        self._binds = any(list_bound_symbols(node) for node in graph.nodes)
        for entry in (*graph.inputs, *graph.constants):
            buffer = entry.buffer if isinstance(entry, Constant) else entry
            if isinstance(buffer, Buffer):
                self._define(buffer, buffer.name)
                self.external.add(buffer.name)

    def _define(self, buffer: Buffer, root: str) -> None:
        if buffer.name in self.buffers:
            raise ScheduleError("redefinition", f"buffer %{buffer.name} is defined twice")
        self.buffers[buffer.name] = buffer
        self.root[buffer.name] = root
        self._names.setdefault(root, []).append(buffer.name)
        self._touching.setdefault(root, [])

    def visit(self, position: int, node: Node) -> tuple[int, ...]:
        before: set[int] = set()
        names = self.known.get(id(node))
        if names is None:
            names = list_read_buffers(node)
        self.reads.append(names)
        for name in names:
            self._require(name, node)
            if name in self.definer:
                before.add(self.definer[name])
            self._touching[self.root[name]].append(position)
        for old, _ in list_overwritten_buffers(node):
            self._require(old, node)
            if old in self.definer:
                before.add(self.definer[old])
            root = self.root[old]
            before.update(self._touching[root])
            self._touching[root] = [position]
            self._stale.update(self._names[root])
            self.overwriters.setdefault(root, []).append(position)
            if root in self.external and self._last_assertion is not None:
                before.add(self._last_assertion)
        self._define_results(position, node)
        self._order_effects(position, node, before)
        if isinstance(node, Extern):
            self._follow_in_flight(position, node)
        if self._last_barrier is not None:
            before.add(self._last_barrier)
        if isinstance(node, Extern) and node.barrier:
            before.update(range(self._last_barrier or 0, position))
            self._last_barrier = position
        if self._binds:
            for symbol in sorted(find_used_symbols(node), key=lambda s: s.name):
                if symbol in self.symbol_definer:
                    before.add(self.symbol_definer[symbol])
            for symbol in list_bound_symbols(node):
                self.symbol_definer[symbol] = position
        before.discard(position)
        return tuple(sorted(before))

    def _define_results(self, position: int, node: Node) -> None:
        shared = dict(list_memory_aliases(node))
        for buffer in list_defined_buffers(node):
            source = shared.get(buffer.name)
            root = buffer.name if source is None else self.root[source]
            self._define(buffer, root)
            self.definer[buffer.name] = position
            self._touching[root].append(position)

    def _order_effects(self, position: int, node: Node, before: set[int]) -> None:
        if isinstance(node, Extern) and node.random:
            if self._last_random is not None:
                before.add(self._last_random)
            self._last_random = position
        if is_effect(node):
            if self._last_effect is not None:
                before.add(self._last_effect)
            self._last_effect = position
        if isinstance(node, AssertSize | Cond | Loop):
            self._last_assertion = position

    def _follow_in_flight(self, position: int, node: Extern) -> None:
        """Note that the wait for an operator touches the memory that the operator has used until then."""
        if node.waits:
            roots = tuple(self.root[name] for name in node.waits)
            released = self._in_flight.wait(roots)
            for root in dict.fromkeys((*released, *roots)):
                self._touching[root].append(position)
            if released:
                self.released[position] = released
        if node.in_flight:
            self._in_flight.start(
                (self.root[name] for name in node.in_flight), (self.root[name] for name in node.until)
            )

    def _require(self, name: str, node: Node) -> None:
        if name not in self.buffers:
            raise ScheduleError(
                "undefined", f"buffer %{name} is read before it is defined", origins=node.origins
            )
        if name in self._stale:
            raise ScheduleError(
                "overwritten", f"buffer %{name} is read after it was overwritten", origins=node.origins
            )


def index_readers(graph: Graph, facts: Dependence) -> dict[str, list[int]]:
    """Nodes that read each buffer, or take over its memory; the number of nodes stands for the graph's
    results.
    """
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        for name in dict.fromkeys(
            (*facts.reads[position], *(old for old, _ in list_overwritten_buffers(node)))
        ):
            readers.setdefault(name, []).append(position)
    for output in graph.outputs:
        if isinstance(output, Ref):
            readers.setdefault(output.name, []).append(len(graph.nodes))
    return readers


def is_effect(node: Node) -> bool:
    """Tell if `node` does something besides defining buffers; effects keep their order."""
    match node:
        case Extern():
            return node.effect
        case AssertSize() | Cond() | Loop():
            # nested graphs may hold effects of their own
            return True
        case _:
            return False


def find_used_symbols(node: Node) -> frozenset[Expr]:
    """Size symbols that `node` needs the values of; range variables may be among the result."""
    found: set[Expr] = set()
    for expr in _list_node_expressions(node):
        found |= expr.free_symbols
    found |= find_index_symbols(list_bodies(node))
    found.difference_update(list_bound_symbols(node))
    return frozenset(found)


def _list_node_expressions(node: Node) -> Iterator[Expr]:
    bound = list_bound_symbols(node)
    if not bound:
        for buffer in list_defined_buffers(node):
            yield from buffer.shape
            yield from buffer.strides
    match node:
        case Pointwise() | Reduce() | Scan() | Sort() | Scatter() | Contraction():
            for symbol in node.ranges + (node.axes if isinstance(node, Reduce | Contraction) else ()):
                if symbol.extent is not None:
                    yield symbol.extent
            if isinstance(node, Contraction) and node.groups is not None:
                yield from get_extents((node.groups.index,))
            if isinstance(node, Scatter):
                yield from node.index
        case Attention() | AttentionGradient():
            yield from get_extents((*node.weights.ranges, *node.weights.axes))
            if isinstance(node, AttentionGradient):
                for argument in node.state:
                    yield from _argument_expressions(argument)
        case Convolution():
            for body in (node.value, node.weight, node.gradient, node.epilogue):
                yield from () if body is None else [r.extent for r in body.ranges if r.extent is not None]
        case View():
            yield node.offset
        case Extern():
            for argument in (*node.args, *(value for _, value in node.kwargs)):
                yield from _argument_expressions(argument)
        case Cond():
            for argument in node.operands:
                yield from _argument_expressions(argument)
        case Loop():
            if node.rounds is not None:
                yield node.rounds
            for argument in (*node.carried, *node.extra):
                yield from _argument_expressions(argument)
        case AssertSize():
            yield node.lhs
            yield node.rhs


def _argument_expressions(argument: Argument) -> Iterator[Expr]:
    match argument:
        case Expr():
            yield argument
        case ListValue(items):
            for item in items:
                yield from _argument_expressions(item)
        case _:
            return


# ---- Dead code elimination ----


def remove_dead(graph: Graph, facts: Dependence) -> Graph:
    """Remove the nodes of `graph`, of which `facts` are known, whose results nobody uses.

    Kept whatever their use: effects, random calls (each one advances the generator), run-time checks, and
    what overwrites memory of an input or constant.
    """
    needed = [must_run(node, facts) for node in graph.nodes]

    def need_symbols(symbols: frozenset[Expr]) -> None:
        for symbol in symbols:
            if symbol in facts.symbol_definer:
                needed[facts.symbol_definer[symbol]] = True

    for output in graph.outputs:
        match output:
            case Ref(name) if name in facts.definer:
                needed[facts.definer[name]] = True
            case Expr():
                need_symbols(output.free_symbols)
            case _:
                pass
    for position in reversed(range(len(graph.nodes))):
        if not needed[position]:
            continue
        node = graph.nodes[position]
        for name in (*facts.reads[position], *(old for old, _ in list_overwritten_buffers(node))):
            if name in facts.definer:
                needed[facts.definer[name]] = True
        if facts.symbol_definer:
            need_symbols(find_used_symbols(node))
    kept = tuple(node for node, keep in zip(graph.nodes, needed, strict=True) if keep)
    nodes = _drop_unused_results(kept, graph)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _drop_unused_results(nodes: tuple[Node, ...], graph: Graph) -> tuple[Node, ...]:
    """Drop the names of unused results from external calls that return several.

    Some operators return nothing where their meta function promises a tensor (a workspace for a backward pass
    that will not happen), so a result that is not needed must not be touched.
    """
    used = {output.name for output in graph.outputs if isinstance(output, Ref)}
    for node in nodes:
        used.update(list_read_buffers(node))
        used.update(old for old, _ in list_overwritten_buffers(node))
    return tuple(_trim_results(node, used) if isinstance(node, Extern) else node for node in nodes)


def _trim_results(node: Extern, used: set[str]) -> Extern:
    if node.single or node.out_overload:
        return node
    kept = {number for number, _ in node.aliases} | {number for _, number, _ in node.binds}
    used = used.union(node.in_flight)
    outputs = tuple(
        None if isinstance(o, Buffer) and o.name not in used and number not in kept else o
        for number, o in enumerate(node.outputs)
    )
    return node if outputs == node.outputs else replace(node, outputs=outputs)


def must_run(node: Node, facts: Dependence) -> bool:
    """Tell if `node` may not be removed even when nobody reads what it defines."""
    if is_effect(node) or (isinstance(node, Extern) and node.random):
        return True
    if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter) and node.checks:
        return True
    return any(facts.root[old] in facts.external for old, _ in list_overwritten_buffers(node))
