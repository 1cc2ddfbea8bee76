"""Directives that cut the iteration space: which points a program or thread has, and how it goes through
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from coilwork_ir.index import as_int, find_bounds, get_extent, multiply_all
from coilwork_ir.kernels.alias_analysis import can_load_ahead
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.workspace import explain_no_room, explain_not_shared
from coilwork_ir.mapping.directive import (
    Directive,
    Number,
    explain_duplicate,
    explain_no_ranges,
    explain_not_positive,
    get_body,
    index_ranges,
    list_kernel_values,
    list_ordered_operations,
    list_values,
)
from coilwork_ir.scalar import Scan

_MOST_GRID_AXES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile(Directive):
    """Parallel ranges, flattened in this order, in pieces of so many points, each of which a program has.

    With `padded`, each row of the innermost range stands in so many lanes, of which it fills the first. The
    tiles of one mapping are its grid axes, the first tile the innermost.
    """

    TEMPLATE: ClassVar[str] = (
        "tile {ranges:names} by {by:number} [padded {padded:whole}] [to {to:program|thread}]"
    )

    ranges: tuple[str, ...]
    by: Number
    padded: int = 0
    to: Literal["program", "thread"] = "program"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Parallel ranges, each in one tile; at most three grid axes unless they are flat; rows fit their
        lanes.
        """
        reason = (
            explain_no_ranges(kernel, self.ranges, ("parallel",))
            or explain_not_positive(self.by, "the tile")
            or explain_duplicate(self, self.ranges, directives)
        )
        if reason is not None:
            return reason
        if self.padded:
            length = find_bounds(index_ranges(kernel)[self.ranges[-1]].extent).hi
            if length is None or length > self.padded:
                return f"rows of {self.ranges[-1]} may be longer than {self.padded} lanes"
        axes = [d for d in directives if isinstance(d, Tile) and d.to == "program"]
        if len(axes) > _MOST_GRID_AXES and not any(isinstance(d, FlatGrid) for d in directives):
            return f"there are {len(axes)} grid axes, and the grid is not flat"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGrid(Directive):
    """All programs are counted along one grid axis, whose limit is higher than that of the others."""

    TEMPLATE: ClassVar[str] = "flat"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """There is a tile to count."""
        known = any(isinstance(d, Tile) for d in directives)
        return None if known else "no range is tiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident(Directive):
    """So many programs go through all tiles of a flat grid: what the next tile needs is on its way while the
    results of one are stored.
    """

    TEMPLATE: ClassVar[str] = "resident {count:whole}"

    count: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """The grid is flat."""
        if not any(isinstance(d, FlatGrid) for d in directives):
            return "the grid is not flat"
        return explain_not_positive(self.count, "the number of programs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Directive):
    """Reduced ranges as one tile in registers, which all passes share.

    With `first`, the tile's axis is the first one of a block: threads lie along the others, whatever is
    looked up.
    """

    TEMPLATE: ClassVar[str] = "keep {ranges:names} by {by:number} [{first:flag}]"

    ranges: tuple[str, ...]
    by: Number
    first: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Reduced ranges of which it is known that a row fits the tile; nothing else says how they are
        sequential.
        """
        reason = (
            explain_no_ranges(kernel, self.ranges, ("reduction",))
            or explain_not_positive(self.by, "the tile")
            or _why_walked(self, self.ranges, directives)
        )
        if reason is not None:
            return reason
        length = find_bounds(multiply_all(index_ranges(kernel)[name].extent for name in self.ranges)).hi
        if length is None or length > min(list_values(self.by)):
            return f"a row may have {'any number of' if length is None else length} points"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Directive):
    """Reduced ranges, flattened, a block of so many points after the other, `stages` blocks at a time on
    their way.
    """

    TEMPLATE: ClassVar[str] = "loop {ranges:names} by {by:number} [stages {stages:number}]"

    ranges: tuple[str, ...]
    by: Number
    stages: Number = 1

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Reduced ranges that nothing is sorted along; later blocks are loaded early only where no store
        changes them.
        """
        reason = (
            explain_no_ranges(kernel, self.ranges, ("reduction",))
            or explain_not_positive(self.by, "the block")
            or explain_not_positive(self.stages, "the number of stages")
            or _why_walked(self, self.ranges, directives)
        )
        if reason is not None:
            return reason
        for name in self.ranges:
            if any(not isinstance(order, Scan) for order in list_ordered_operations(kernel, name)):
                return f"rows are sorted along {name}, which takes whole rows"
        body = get_body(kernel)
        # what does not vary along the loop is stored behind it
        inside = tuple(
            store
            for store in body.stores
            if store.indirect or any(symbol.name in self.ranges for symbol in store.index.free_symbols)
        )
        if max(list_values(self.stages)) > 1 and not can_load_ahead(
            replace(body, stores=inside), list_kernel_values(kernel)
        ):
            return "loads of later blocks may find what the stores of earlier ones change"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(Directive):
    """Ranges whose points a program or unit of work takes one after the other, or `by` at a time, outermost
    first.
    """

    TEMPLATE: ClassVar[str] = "sequential {ranges:names} [by {by:number}] [stages {stages:number}]"

    ranges: tuple[str, ...]
    by: Number = 1
    stages: Number = 1

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Parallel or sequential ranges that are not tiled too; later points are loaded early only where no
        store changes them.
        """
        reason = (
            explain_no_ranges(kernel, self.ranges, ("parallel", "sequential"))
            or explain_not_positive(self.by, "the number of points")
            or explain_not_positive(self.stages, "the number of stages")
            or explain_duplicate(self, self.ranges, directives)
        )
        if reason is not None:
            return reason
        tiled = {name for d in directives if isinstance(d, Tile) for name in d.ranges}
        for name in self.ranges:
            if name in tiled:
                return f"{name} is tiled"
        kept = {name for d in directives if isinstance(d, Keep) for name in d.ranges}
        if max(list_values(self.stages)) > 1 and not can_load_ahead(
            get_body(kernel), list_kernel_values(kernel), within=kept
        ):
            return "loads of later points may find what the stores of earlier ones change"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Directive):
    """A row is shared by programs, each of which has a piece and tells the others of it through a workspace
    (decoupled look-back).
    """

    TEMPLATE: ClassVar[str] = "share {ranges:names} by {by:number} through {workspace:name}"

    ranges: tuple[str, ...]
    by: Number
    workspace: str

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Ranges are reduced, of known length, and only scanned, in one direction, by kinds that have names.
        The workspace is the kernel's own, which is zero before, and has room for all pieces.
        """
        reason = (
            explain_no_ranges(kernel, self.ranges, ("reduction",))
            or explain_not_positive(self.by, "the piece")
            or _why_walked(self, self.ranges, directives)
        )
        if reason is not None:
            return reason
        reason = explain_not_shared(kernel)
        if reason is not None:
            return reason
        if not kernel.workspace or self.workspace != kernel.workspace:
            return f"{self.workspace} is not the workspace of the kernel"
        return explain_no_room(kernel, min(list_values(self.by)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarsen(Directive):
    """A point of the range does what so many neighbours did: a kernel pass wrote them out side by side."""

    TEMPLATE: ClassVar[str] = "coarsen {range:name} by {by:whole}"

    range: str
    by: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """A parallel range; the stores of its neighbours are there, as many times as it says."""
        reason = explain_no_ranges(kernel, (self.range,), ("parallel",)) or explain_not_positive(
            self.by, "the step"
        )
        if reason is not None:
            return reason
        count = len(get_body(kernel).stores)
        return f"{count} stores are not those of {self.by} neighbours" if count % self.by else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straddle(Directive):
    """Blocks of a line of rows that lie in so many rows at most: what is one number per row is loaded once
    per row.
    """

    TEMPLATE: ClassVar[str] = "straddle {range:name} {rows:whole}"

    range: str
    rows: int = 2

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """The innermost range of a tile, whose blocks are no longer than its rows of known length."""
        reason = explain_no_ranges(kernel, (self.range,), ("parallel",))
        if reason is not None:
            return reason
        if self.rows < 2:
            return f"blocks that begin anywhere lie in more than {self.rows} row"
        tile = next((d for d in directives if isinstance(d, Tile) and d.ranges[-1] == self.range), None)
        if tile is None or len(tile.ranges) < 2:
            return f"{self.range} is not the innermost range of a tile of rows"
        length = as_int(get_extent(index_ranges(kernel)[self.range].symbol))
        longest = max(list_values(tile.by))
        if length is None or longest > length * (self.rows - 1):
            return f"a block of {longest} points may lie in more than {self.rows} rows"
        return None


def _why_walked(directive: Directive, names: Sequence[str], directives: Sequence[Directive]) -> str | None:
    """Return why another directive already says how ranges `names` are walked; None if none does."""
    for other in directives:
        if other != directive and isinstance(other, Keep | Loop | Share) and set(other.ranges) & set(names):
            return f"`{other.text}` says how they are walked"
    return None
