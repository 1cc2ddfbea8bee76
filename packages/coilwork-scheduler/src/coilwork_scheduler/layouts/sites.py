"""A node as the pass sees it: which memory its cost depends on, what it costs, and which strides it would
like. Rules make these.

A rule is one row of `rules.RULES`. It claims nodes, and answers for each of them with a `Site`; what several
rules say of one node adds up. A call that no rule claims holds its operands and results to their strides,
since nobody knows what it makes of others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr
from coilwork_ir.loops import Graph, Node
from coilwork_ir.loops.layouts import Strides, ViewsOf
from coilwork_ir.target import Targets
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints

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
    """

    name: str
    buffer: Buffer
    candidates: tuple[Strides, ...]


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
    """What one node makes of the layouts around it."""

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
        """The cost if everything lay as it likes: no layout costs less."""

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Strides that it would like for the memory `root`."""

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Strides that it would like for the memory `root` if other memory lay as `lying` says it may."""

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """The copies that `layout` takes around it."""


@dataclass(frozen=True, slots=True)
class KnownLoops:
    """What is known of loops that are equal but for names, as those of a model's layers are: each is weighed
    once.

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
class Around:
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
    known: KnownLoops = field(default_factory=KnownLoops)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """All buffers of the graph, by name."""
        return self.facts.buffers

    @property
    def roots(self) -> Mapping[str, str]:
        """The first name of the memory of each buffer."""
        return self.facts.root

    def as_captured(self, name: str, buffer: Buffer) -> Strides:
        """The layout that the graph has."""
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
    site: Callable[[int, Node, Around], Site | Sequence[Site] | None]
    why: str
    is_asked: Callable[[ScheduleOptions], bool] = lambda options: True
