"""Directives about data on their way: caches, registers, tiles on chip, and of what type positions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from coilwork_ir.index import Expr, bound_magnitude, find_bounds, multiply_all, provably_le
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.rewrite import index_values
from coilwork_ir.mapping.directive import (
    Directive,
    Number,
    explain_no_ranges,
    explain_not_positive,
    get_body,
    list_kernel_values,
    list_loads,
    list_ordered_operations,
    list_reductions,
    list_stores,
)
from coilwork_ir.scalar import Const, IndexValue, Load
from coilwork_ir.scalar import Sort as SortValue

INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose(Directive):
    """Tiles of what lies along the first range are read, and used, or with `moves` stored, along the second.

    Tiles have so many points of either; they are on the stack of a thread. With `step`, it is one pass that
    does so.
    """

    TEMPLATE: ClassVar[str] = "transpose {ranges:names} by {by:wholes} [{moves:flag}] [pass {step:whole}]"

    ranges: tuple[str, ...]
    by: tuple[int, ...]
    moves: bool = False
    step: int | None = None

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Two ranges whose points may come in any order; to move, stores are of what is loaded, as it is."""
        if len(self.ranges) != 2 or len(self.by) != 2:
            return "a tile has two ranges and two sizes"
        reason = explain_no_ranges(kernel, self.ranges, ("parallel", "reduction"))
        for size in self.by:
            reason = reason or explain_not_positive(size, "the tile")
        if reason is not None:
            return reason
        for name in self.ranges:
            if list_ordered_operations(kernel, name):
                return f"the points of {name} come in order"
        plain = all(
            isinstance(store.value, Load)
            and store.mode == "store"
            and store.mask is None
            and not store.indirect
            for store in get_body(kernel).stores
        )
        return "what is stored is not just what is loaded" if self.moves and not plain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Privatise(Directive):
    """Programs count in so many bins first what they add to the arguments at places that data choose."""

    TEMPLATE: ClassVar[str] = "privatise {args:names} in {bins:whole} bins"

    args: tuple[str, ...]
    bins: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Integers are added, whose sums are the same in whatever order, at indirect places."""
        reason = explain_not_positive(self.bins, "the number of bins")
        if reason is not None:
            return reason
        for arg in self.args:
            stores = list_stores(kernel, arg)
            if not stores:
                return f"nothing is stored to {arg}"
            for store in stores:
                if store.mode != "add" or not store.indirect:
                    return f"the store to {arg} does not add at a place that data choose"
                if not store.value.dtype.is_integer:
                    return f"sums of {store.value.dtype.text} depend on their order"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Directive):
    """Sort a row by `threads` threads of a program, each with `width` neighbours at a time."""

    TEMPLATE: ClassVar[str] = (
        "sort {range:name} by {threads:number} width {width:number} [keys {keys:integer|float}]"
    )

    range: str
    threads: Number
    width: Number
    keys: Literal["integer", "float"] = "integer"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Rows are sorted along the range."""
        reason = (
            explain_no_ranges(kernel, (self.range,), ("reduction",))
            or explain_not_positive(self.threads, "the number of threads")
            or explain_not_positive(self.width, "the width")
        )
        if reason is not None:
            return reason
        return (
            None if list_ordered_operations(kernel, self.range) else f"nothing is sorted along {self.range}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Directive):
    """Find only so many first elements of rows in order, or read them in pass `step`.

    On a GPU `share` threads hold a run of them, and they are looked for among `room` elements that reach a
    bound, the best of `groups` groups giving that bound, by `spread` threads; with a room of 0 all of a row
    is sorted.
    """

    TEMPLATE: ClassVar[str] = (
        "select {range:name} first {first:whole} "
        "[sharing {share:number} groups {groups:number} room {room:number} spread {spread:number}] "
        "[pass {step:whole}]"
    )

    range: str
    first: int
    share: Number = 1
    groups: Number = 1
    room: Number = 0
    spread: Number = 1
    step: int | None = None

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Rows are sorted along the range."""
        reason = explain_not_positive(self.first, "the number of elements")
        if reason is not None:
            return reason
        if not any(isinstance(value, SortValue) for value in list_kernel_values(kernel)):
            return "nothing is sorted"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict(Directive):
    """The lines of the arguments are the first, or the last, to leave the cache."""

    TEMPLATE: ClassVar[str] = "evict {args:names} {priority:first|last}"

    args: tuple[str, ...]
    priority: Literal["first", "last"]

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """They are loaded."""
        for arg in self.args:
            if not list_loads(kernel, arg):
                return f"{arg} is not loaded"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch(Directive):
    """The pass asks for the lines of the arguments that come next: what the first pass reads of the next row,
    or the last one writes.
    """

    TEMPLATE: ClassVar[str] = "prefetch {args:names} pass {step:whole}"

    args: tuple[str, ...]
    step: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """They are accessed at places that no data choose."""
        for arg in self.args:
            plain = [load for load in list_loads(kernel, arg) if not load.operands]
            if not plain and not any(not store.indirect for store in list_stores(kernel, arg)):
                return f"where {arg} is accessed is not known ahead"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Directive):
    """The pass keeps the values, by their names in the kernel's text, for later passes to read back instead
    of computing them again.
    """

    TEMPLATE: ClassVar[str] = "save {values:names} pass {step:whole}"
    NAMES_VALUES: ClassVar[bool] = True

    values: tuple[str, ...]
    step: int

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """They are values of the kernel that are computed at each point of a pass."""
        if not list_reductions(kernel) and not any(r.kind == "reduction" for r in get_body(kernel).ranges):
            return "the kernel has no passes"
        known = index_values(get_body(kernel))
        for name in self.values:
            if name not in known:
                return f"the kernel has no value {name}"
            if isinstance(known[name], Const):
                return f"{name} is a constant"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Directive):
    """The type of positions and sizes; `promised` by the caller where the kernel does not prove that 32 bits
    are enough.
    """

    TEMPLATE: ClassVar[str] = "index {dtype:i32|i64} [{promised:flag}]"

    dtype: Literal["i32", "i64"]
    promised: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Legal in 32 bits if every argument's span and every product of ranges is proved to fit."""
        if self.dtype == "i64" or self.promised:
            return None
        for arg in get_body(kernel).args:
            if not provably_le(arg.span, INT32_MAX):
                return f"{arg.name} may have {find_bounds(arg.span).hi or 'any number of'} elements"
        for kind in ("parallel", "sequential", "reduction"):
            if not provably_le(
                multiply_all(r.extent for r in get_body(kernel).ranges if r.kind == kind), INT32_MAX
            ):
                return f"the {kind} ranges may have more points than 32 bits count"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Values(Directive):
    """Positions that are values of the kernel are of 32 bits, too; `promised` by the version's guard, or by
    the caller, where the kernel does not prove that these are enough.
    """

    TEMPLATE: ClassVar[str] = "values {dtype:i32} [{promised:flag}]"

    dtype: Literal["i32"] = "i32"
    promised: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Offsets are of 32 bits; every position that is a value is proved to fit, and none that data decide
        is promised to.
        """
        if not any(isinstance(d, Index) and d.dtype == "i32" for d in directives):
            return "positions are not of 32 bits"
        for expr in list_wide_values(kernel):
            if not self.promised:
                return f"{expr!r} may leave 32 bits"
            if bound_magnitude(expr) is None:
                return f"data decide how large {expr!r} gets"
        return None


def list_wide_values(kernel: Kernel) -> tuple[Expr, ...]:
    """Positions that are values of `kernel`, and are not proved to fit 32 bits."""
    positions = []
    for value in list_kernel_values(kernel):
        if isinstance(value, IndexValue):
            most = find_bounds(value.expr)
            if most.lo is None or most.hi is None or most.lo < -INT32_MAX or most.hi > INT32_MAX:
                positions.append(value.expr)
    return tuple(positions)
