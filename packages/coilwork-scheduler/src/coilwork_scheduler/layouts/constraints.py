"""What the layout pass knows of a node (`Site`): its memory, its costs, the strides it would like.

Rules make sites. A rule is one row of `rules.RULES`. It claims nodes, and answers for each of them with
sites, whose costs add up. A call that no rule claims holds its operands and results to their strides, since
nobody knows what it does with others. `list_candidates` gathers the strides that free memory may have.
`insert_copies` puts copies before and behind calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

from coilwork_ir.buffers import Buffer, Ref, SymbolOutput
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, as_int, symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.layouts import Strides, ViewsOf, make_nested_strides
from coilwork_ir.scalar import load
from coilwork_ir.target import Targets
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.options import ScheduleOptions

# ---- Sites and rules ----


SCALE: Final = 8
"""Costs are whole numbers, of bytes in eighths."""

IMPOSSIBLE: Final = 1 << 60
"""The cost of what cannot be: a view that has no strides, a result that a library lays out otherwise."""

LayoutOf: TypeAlias = Callable[[str, Buffer], Strides | None]
"""Strides of a buffer, asked with the name of its memory; None if it cannot show that memory as it lies.
Asked with the name and the buffer of a `Choice`, the candidate.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of a call that is not memory's: how it computes.

    Attributes:
        name: what it is asked by.
        buffer: what shows the candidates, with the strides of the first. It is no buffer of the graph.
        candidates: what to choose from, that of capture first.
        is_asked: the user asks for the only candidate, which may not be that of capture.
    """

    name: str
    buffer: Buffer
    candidates: tuple[Strides, ...]
    is_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy between a call and what it reads or makes.

    Attributes:
        position: of the call among the nodes.
        buffer: what is copied, or what is made by copying the call's result.
        strides: of the copy, which the call is given or gives instead.
        is_result: the call's result is copied, and not an operand.
        bytes_moved: what the copy reads and writes; the writing alone where it runs in the kernel that makes
            the operand.
        bytes_saved: what memory would move more without the copy; None if the call could not be without.
    """

    position: int
    buffer: Buffer
    strides: Strides
    is_result: bool
    bytes_moved: int
    bytes_saved: int | None


class Site(Protocol):
    """The cost and the wishes of one node under the layouts around it."""

    @property
    def obliges(self) -> tuple[str, ...]:
        """Names of buffers that the node, a call, does not hold to their strides."""

    @property
    def memory(self) -> tuple[str, ...]:
        """First names of the memory that it touches, each once."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Return what is chosen beside layouts."""

    @property
    def form(self) -> Hashable:
        """All that its cost depends on beside the strides of `asked`; None if that is not told.

        Sites of one form are weighed once, for layers of a model are equal.
        """

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """Return what it asks a layout for: names of memory, and buffers in it; names and buffers of choices.
        Read where `form` is not None.
        """

    def cost(self, layout: LayoutOf) -> int:
        """Eighths of bytes that memory moves for it under `layout`."""

    def least(self) -> int:
        """Return the cost if everything lay as it likes: no layout costs less."""

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Strides that it would like for the memory `root`."""

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Strides that it would like for the memory `root` if other memory lay as `lying` says it may."""

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """Return the copies that `layout` takes around it."""


@dataclass(frozen=True, slots=True)
class LoopMemo:
    """Results shared by loops that are equal but for names, as those of a model's layers are.

    Attributes:
        forms: numbers of touches, by what their weight depends on beside strides.
        bytes_met: bytes that touches of a form meet.
        weights: weights of touches, by form and strides.
        costs: costs of loops, by the forms and strides of all that they touch.
        steps: steps along ranges, by ranges, index and strides.
        proposals: strides that nodes would like, by what they follow from.
    """

    forms: dict[tuple[object, ...], int] = field(default_factory=dict)
    bytes_met: dict[int, int] = field(default_factory=dict)
    weights: dict[tuple[int, Strides], tuple[int, ...]] = field(default_factory=dict)
    costs: dict[tuple[tuple[int, ...], tuple[Strides, ...]], int] = field(default_factory=dict)
    steps: dict[tuple[object, ...], dict[Expr, Expr]] = field(default_factory=dict)
    proposals: dict[tuple[object, ...], tuple[Strides, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutContext:
    """Facts that rules read.

    Attributes:
        graph, facts, views: the graph, what is known of it, and its views.
        targets, sizes: the devices, and likely sizes.
        row_reductions: positions of reductions whose result goes back to the reduced rows.
        known: what equal loops share.
    """

    graph: Graph
    facts: Dependence
    views: ViewsOf
    targets: Targets
    sizes: SizeHints
    row_reductions: frozenset[int]
    known: LoopMemo = field(default_factory=LoopMemo)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """All buffers of the graph, by name."""
        return self.facts.buffers

    @property
    def roots(self) -> Mapping[str, str]:
        """The first name of the memory of each buffer."""
        return self.facts.root

    def strides_of_capture(self, name: str, buffer: Buffer) -> Strides:
        """Return the layout that the graph has."""
        return buffer.strides

    def bytes_per_us(self, device: str) -> float:
        """Bytes that the memory of `device` moves in a microsecond."""
        return self.targets.of(device).bandwidth_gb_s * 1e3

    def extents(self, buffer: Buffer) -> tuple[int, ...]:
        """Likely extents of `buffer`."""
        return tuple(self.sizes.value(extent) for extent in buffer.shape)

    def steps(self, strides: Iterable[Expr]) -> tuple[int, ...]:
        """Likely values of `strides`."""
        return tuple(self.sizes.value(stride) for stride in strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """One row of the table.

    Attributes:
        name: unique, stable.
        site: what the node at a position costs under other layouts, or several of which the costs add up;
            None or nothing if the rule is not about that node.
        why: what the costs rest on.
        is_asked: whether it is asked under these options.
    """

    name: str
    site: Callable[[int, Node, LayoutContext], Site | Sequence[Site] | None]
    why: str
    is_asked: Callable[[ScheduleOptions], bool] = lambda options: True


# ---- Candidates ----


MOST_CANDIDATES: Final = 8


def list_candidates(
    touching: Mapping[str, Sequence[Site]],
    views: ViewsOf,
    buffers: Mapping[str, Buffer],
    names: Mapping[str, Collection[str]],
) -> dict[str, tuple[Strides, ...]]:
    """Strides that each piece of free memory may have, those of capture first.

    Memory that nobody has a wish for follows what it shares loops with, step by step: the indices of a pool
    lie as its values do. Each is asked about once more at most, so this is linear in the sites.

    Args:
        touching: the sites around each piece of memory, by its first name.
        views, buffers: all views and buffers of the graph.
        names: what each piece is called; there are views among them.
    """
    found = {
        root: list_root_candidates(
            buffers[root], [site.propose(buffers[root]) for site in sites], views, names[root]
        )
        for root, sites in touching.items()
    }
    undecided = {root for root, candidates in found.items() if len(candidates) == 1}
    reached = [root for root in touching if root not in undecided]
    while reached and undecided:
        beside = dict.fromkeys(
            name for root in reached for site in touching[root] for name in site.memory if name in undecided
        )
        reached = []
        for root in beside:
            lying = [
                site.follow(buffers[root], {name: found[name] for name in site.memory if name in found})
                for site in touching[root]
            ]
            candidates = list_root_candidates(buffers[root], lying, views, names[root])
            if len(candidates) > 1:
                found[root] = candidates
                undecided.remove(root)
                reached.append(root)
    return found


def list_root_candidates(
    root: Buffer, proposals: Iterable[Iterable[Strides]], views: ViewsOf, names: Collection[str]
) -> tuple[Strides, ...]:
    """Strides that `root` may have, those of capture first: at most `MOST_CANDIDATES`.

    Args:
        root: free memory.
        proposals: what each site around it would like.
        views: all views of the graph.
        names: what `root` is called; there are views among them, all of which must be able to show it.
    """
    found: dict[Strides, None] = {root.strides: None}
    several = [d for d, extent in enumerate(root.shape) if as_int(extent) != 1]
    proposed = [make_nested_strides(root.shape, tuple(range(len(root.shape))))]
    for wishes in proposals:
        proposed += wishes
    for strides in dict.fromkeys(proposed):
        # the stride of a dimension of one element says nothing
        if any(all(strides[d] is known[d] for d in several) for known in found):
            continue
        if all(views.strides_of(name, strides) is not None for name in names):
            found[strides] = None
        if len(found) == MOST_CANDIDATES:
            break
    return tuple(found)


# ---- Copies ----


def insert_copies(graph: Graph, copied: Iterable[Copy], names: FreshNames) -> Graph:
    """`graph` with each copy in `copied` in front of its call or behind it."""
    by_call: dict[int, list[Copy]] = {}
    for copy in copied:
        by_call.setdefault(copy.position, []).append(copy)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        before: list[Node] = []
        behind: list[Node] = []
        for copy in by_call.get(position, ()):
            assert isinstance(node, Extern), "only calls are given copies"
            current = copy.buffer
            if copy.is_result:
                # as it is laid out by now
                current = next(b for b in list_defined_buffers(node) if b.name == copy.buffer.name)
            other = replace(current, name=names.close_to(current.name), strides=copy.strides)
            if copy.is_result:
                node = replace(node, outputs=tuple(_rename(b, current.name, other) for b in node.outputs))
                behind.append(_copy(other, current, node))
            else:
                given = Ref(current.name)
                node = replace(node, args=tuple(Ref(other.name) if a == given else a for a in node.args))
                before.append(_copy(current, other, node))
        nodes += [*before, node, *behind]
    return replace(graph, nodes=tuple(nodes))


def _rename(output: Buffer | SymbolOutput | None, name: str, other: Buffer) -> Buffer | SymbolOutput | None:
    return other if isinstance(output, Buffer) and output.name == name else output


def _copy(source: Buffer, made: Buffer, like: Extern) -> Pointwise:
    ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(made.shape))
    return Pointwise(
        output=made, ranges=ranges, body=load(source.name, ranges, source.dtype), origins=like.origins
    )
