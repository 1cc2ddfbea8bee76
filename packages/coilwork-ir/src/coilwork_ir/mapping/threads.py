"""Directives that divide a tile among threads and vector lanes: order, counts, and points at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from coilwork_ir.index import as_int
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.mapping.directive import (
    Directive,
    Number,
    explain_no_ranges,
    explain_not_positive,
    index_ranges,
    is_dense_along,
    list_ordered_operations,
    list_reductions,
    list_values,
)
from coilwork_ir.mapping.tiling import Keep, Loop, Sequential, Share, Tile
from coilwork_ir.scalar import Scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes(Directive):
    """The order of threads over a tile: so many neighbours along the first range are one thread's; with 1,
    none access several at once. With `narrow` no access is wider than that, whatever else a thread has.
    """

    TEMPLATE: ClassVar[str] = "lanes {ranges:names} by {by:number} [{narrow:flag}]"

    ranges: tuple[str, ...]
    by: Number
    narrow: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """The first range is tiled, kept, looped over or shared, in blocks that hold whole runs of so many
        neighbours.
        """
        reason = explain_no_ranges(kernel, self.ranges) or explain_not_positive(
            self.by, "the number of neighbours"
        )
        if reason is not None:
            return reason
        first = self.ranges[0]
        tile = next(
            (d for d in directives if isinstance(d, Tile | Keep | Loop | Share) and first in d.ranges),
            None,
        )
        if tile is None:
            return f"{first} is in no tile"
        fits = any(size % each == 0 for size in list_values(tile.by) for each in list_values(self.by))
        return None if fits else f"{self.by} neighbours do not divide the block of `{tile.text}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(Directive):
    """A block's points along the range are dealt out in runs of so many neighbours, each of which one thread
    scans.
    """

    TEMPLATE: ClassVar[str] = "runs {range:name} by {by:number}"

    range: str
    by: Number

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Something is scanned along the range, which is in blocks of at least two runs."""
        reason = explain_no_ranges(kernel, (self.range,), ("reduction",)) or explain_not_positive(
            self.by, "the run"
        )
        if reason is not None:
            return reason
        if not any(isinstance(order, Scan) for order in list_ordered_operations(kernel, self.range)):
            return f"nothing is scanned along {self.range}"
        walk = next(
            (d for d in directives if isinstance(d, Keep | Loop | Share) and self.range in d.ranges), None
        )
        if walk is None:
            return f"{self.range} is in no block"
        if 2 * min(list_values(self.by)) > max(list_values(walk.by)):
            return f"a block of `{walk.text}` has fewer than two runs"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Directive):
    """The innermost range of the text, whose neighbouring points are computed together.

    With `by`, accesses are of so many elements that stand on multiples of that in memory, wherever rows begin
    (`shifted`) or end; `tail` says what becomes of the elements at the ends: masks, a loop of single
    elements, or a store of their own.
    """

    TEMPLATE: ClassVar[str] = (
        "vector {range:name} [by {by:whole}] [{shifted:flag}] [tail {tail:scalar|masked|peel}]"
    )

    range: str
    by: int = 0
    shifted: bool = False
    tail: Literal["scalar", "masked", "peel"] = "scalar"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """A range whose points do not have to come in order; of unit stride somewhere, where accesses are of
        whole vectors.
        """
        reason = explain_no_ranges(kernel, (self.range,), ("parallel", "reduction"))
        if reason is not None:
            return reason
        if any(isinstance(d, Vector) and d != self for d in directives):
            return "another range is the vector already"
        if any(isinstance(d, Sequential) and self.range in d.ranges for d in directives):
            return f"the points of {self.range} come one after the other"
        if self.by < 0:
            return f"a vector has {self.by} elements"
        if self.by and list_ordered_operations(kernel, self.range):
            return f"rows along {self.range} are scanned or sorted from their first element on"
        if self.by and not is_dense_along(kernel, index_ranges(kernel)[self.range].symbol):
            return f"no access along {self.range} is at unit stride"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warps(Directive):
    """The warps of a program."""

    TEMPLATE: ClassVar[str] = "warps {count:number}"

    count: Number

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """At least one, a power of two."""
        return explain_not_positive(self.count, "the number of warps") or _why_no_power(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads(Directive):
    """The ranges whose points, or blocks of points, are units of work that threads share, outermost first.

    With `together` a thread walks all of its units as one piece.
    """

    TEMPLATE: ClassVar[str] = "threads [over {ranges:names}] [{together:flag}]"

    ranges: tuple[str, ...] = ()
    together: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Parallel ranges that are not sequential; together only along one range, in blocks."""
        reason = explain_no_ranges(kernel, self.ranges, ("parallel",))
        if reason is not None:
            return reason
        for directive in directives:
            if isinstance(directive, Sequential):
                blocked = {other.range for other in directives if isinstance(other, Block)}
                for name in directive.ranges:
                    if name in self.ranges and name not in blocked:
                        return f"`{directive.text}` takes the points of {name} one after the other"
        if self.together:
            blocks = [d for d in directives if isinstance(d, Block)]
            if len(self.ranges) != 1 or [d.range for d in blocks] != list(self.ranges):
                return "units are one piece only along one range, in blocks"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Directive):
    """A unit of work has so many points of the range, which it walks; the last one may have fewer."""

    TEMPLATE: ClassVar[str] = "block {range:name} by {by:whole}"

    range: str
    by: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """A range that threads share; at least one point."""
        reason = explain_no_ranges(kernel, (self.range,), ("parallel",)) or explain_not_positive(
            self.by, "the block"
        )
        if reason is not None:
            return reason
        if any(isinstance(d, Block) and d != self and d.range == self.range for d in directives):
            return f"{self.range} is in blocks already"
        shared = any(isinstance(d, Threads) and self.range in d.ranges for d in directives)
        return None if shared else f"threads do not share {self.range}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grain(Directive):
    """A thread takes so many units at least as have that many instructions, of which a point has `at`."""

    TEMPLATE: ClassVar[str] = "grain {instructions:whole} at {at:whole}"

    instructions: int
    at: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Both are numbers of instructions."""
        return explain_not_positive(self.instructions, "the grain") or explain_not_positive(
            self.at, "a point"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Directive):
    """The nest is done in the units of work of the nest before, which finds the ends of its rows in the
    cache.
    """

    TEMPLATE: ClassVar[str] = "join"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Units of work that are points, of ranges that threads share one by one; nothing is reduced."""
        if list_reductions(kernel):
            return "the nest reduces"
        if not any(isinstance(d, Threads) and d.ranges and not d.together for d in directives):
            return "threads share no range of the nest"
        blocks = [d for d in directives if isinstance(d, Block)]
        return f"`{blocks[0].text}` cuts the units" if blocks else None


# Passes along reduced ranges, by number


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulators(Directive):
    """Neighbours along the innermost reduced range combine into so many partial results, which are combined
    at the end.
    """

    TEMPLATE: ClassVar[str] = "accumulators {count:whole} pass {step:whole}"

    count: int
    step: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Something is reduced, scanned or sorted; a power of two."""
        reason = explain_not_positive(self.count, "the number of partial results") or _why_no_power(
            self.count
        )
        return reason or _why_no_pass(kernel, self, self.step, directives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Directive):
    """Partial results are folded into the total after so many points of the range, and reset."""

    TEMPLATE: ClassVar[str] = "fold {range:name} every {by:whole} pass {step:whole}"

    range: str
    by: int
    step: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """A reduced range; along the innermost one, whole groups of accumulators."""
        reason = (
            explain_no_ranges(kernel, (self.range,), ("reduction",))
            or explain_not_positive(self.by, "the block")
            or _why_no_pass(kernel, self, self.step, directives)
        )
        if reason is not None:
            return reason
        innermost = [r.symbol.name for r in kernel.ranges if r.kind == "reduction"][-1]
        each = [d.count for d in directives if isinstance(d, Accumulators) and d.step == self.step]
        if self.range == innermost and any(self.by % count for count in each):
            return f"{self.by} points are no whole groups of accumulators"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peel(Directive):
    """The last so many points of a row are no part of the pass's vectors: they are combined one by one."""

    TEMPLATE: ClassVar[str] = "peel {range:name} last {count:whole} pass {step:whole}"

    range: str
    count: int
    step: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Rows of known length; what is left are whole groups of accumulators."""
        reason = (
            explain_no_ranges(kernel, (self.range,), ("reduction",))
            or explain_not_positive(self.count, "the number of points")
            or _why_no_pass(kernel, self, self.step, directives)
        )
        if reason is not None:
            return reason
        length = as_int(index_ranges(kernel)[self.range].extent)
        each = [d.count for d in directives if isinstance(d, Accumulators) and d.step == self.step]
        if length is None or self.count > length:
            return f"{self.range} is not known to have {self.count} points"
        if not each or (length - self.count) % each[0]:
            return "what is left are not whole groups of accumulators"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant(Directive):
    """Reductions combine in an order that the reduced ranges alone decide: in so many lanes, folded after so
    many points.
    """

    TEMPLATE: ClassVar[str] = "invariant {lanes:whole} by {block:whole}"

    lanes: int
    block: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Both are positive, and blocks hold whole groups of lanes; no row is walked in pieces, whose number
        would decide the order.
        """
        reason = explain_not_positive(self.lanes, "the number of lanes") or explain_not_positive(
            self.block, "the block"
        )
        if reason is not None:
            return reason
        if self.block % self.lanes:
            return f"{self.lanes} lanes do not divide {self.block}"
        sequential = {name for name, entry in index_ranges(kernel).items() if entry.kind == "sequential"}
        for directive in directives:
            if isinstance(directive, Share) or (
                isinstance(directive, Sequential) and sequential.intersection(directive.ranges)
            ):
                return f"`{directive.text}` walks rows in pieces, whose number decides the order"
        return None


def _why_no_power(number: Number) -> str | None:
    """Return why some value of `number` is no power of two; None if all are."""
    odd = [value for value in list_values(number) if value & (value - 1)]
    return f"{odd[0]} is no power of two" if odd else None


def _why_no_pass(
    kernel: Kernel, directive: Directive, step: int, directives: Sequence[Directive]
) -> str | None:
    """Return why nothing can be said of pass number `step`, or has been said already; None if it can."""
    if step < 0 or not any(r.kind == "reduction" for r in index_ranges(kernel).values()):
        return f"there is no pass {step}: no range is reduced"
    for other in directives:
        if type(other) is type(directive) and other != directive and getattr(other, "step", None) == step:
            return f"`{other.text}` says it of pass {step} already"
    return None
