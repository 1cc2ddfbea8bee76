"""A kernel of open sizes where these are what they likely are: multiples of 16 or so, rows that stay on chip,
offsets of 32 bits.

Accesses of 16 bytes, rows that are read once and short integers for positions all need to know something of
sizes. Where it most often holds, a kernel finds out when it runs, and has a version of its own for it
(`coilwork_triton.shape_versions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from coilwork_ir.index import Expr, as_int, bounds, product, provably_divisible, stride_of, symbol
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import replace_sizes
from coilwork_ir.scalar import IndexValue, Load, Op, Scalar, Scan, Sort, postorder
from coilwork_triton.kernel_passes.table import Draft
from coilwork_triton.launch.parameters import next_power_of_two

# Elements in rows of which all begin at multiples of 16 bytes, whatever their type.
WHOLE: Final = 16
_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialDraft:
    """A kernel for likely sizes.

    Attributes:
        draft: the kernel, over size symbols of its own.
        units: what its sizes are, one for each: this size of the general kernel divided by that number.
        most: sizes of the general kernel, and what they are at most.
    """

    draft: Draft
    units: tuple[tuple[Expr, int], ...]
    most: tuple[tuple[Expr, int], ...]


def specialize(
    draft: Draft, values: tuple[Scalar, ...], *, multiples: bool = True, rows: bool = False
) -> SpecialDraft | None:
    """The kernel of `draft`, whose roots are `values`, for what its sizes likely are; None if it has one
    version alone.

    `multiples`: sizes are the multiples that they likely are. `rows`: rows are no longer than they likely
    are.
    """
    kernel, likely = draft.kernel, draft.likely
    if not any(likely) or any(isinstance(node, Scan | Sort) for node in postorder(values)):
        return None
    known = dict(zip(kernel.sizes, likely, strict=True))
    aligning = _aligning(draft, values) if multiples else frozenset()
    bounded = _bounded(kernel, likely) if rows else {}
    renewed: dict[Expr, Expr] = {}
    sizes: list[Expr] = []
    numbers: list[int] = []
    units: list[tuple[Expr, int]] = []
    for size in kernel.sizes:
        unit = gcd(known[size], WHOLE) if known[size] and size in aligning else 1
        most = bounded.get(size)
        high = min((end for end in (size.hi, most) if end is not None), default=None)
        if high is not None and size.lo is not None and high < size.lo:
            return None
        part = symbol(
            size.name if unit == 1 else f"{size.name}_by_{unit}",
            lo=None if size.lo is None else -(-size.lo // unit),
            hi=None if high is None else high // unit,
        )
        renewed[size] = unit * part
        sizes.append(part)
        numbers.append(known[size] // unit)
        units.append((size, unit))
    special = replace_sizes(kernel, renewed, tuple(sizes))
    if any(as_int(extent) == 0 for extent in (r.symbol.extent for r in special.ranges) if extent is not None):
        # as n % 16 of multiples of 16: no element is left to write a kernel for
        return None
    return SpecialDraft(
        draft=replace(draft, kernel=special, likely=tuple(numbers)),
        units=tuple(units),
        most=tuple(bounded.items()),
    )


def _bounded(kernel: Kernel, likely: tuple[int, ...]) -> dict[Expr, int]:
    """Sizes of rows of any length, and how long rows may be that stand in as many lanes as likely ones."""
    length = product(r.extent for r in kernel.ranges if r.kind == "reduction")
    if bounds(length).hi is not None:
        return {}
    return {
        size: next_power_of_two(number)
        for size, number in zip(kernel.sizes, likely, strict=True)
        if size in length.free_symbols
    }


def _aligning(draft: Draft, values: tuple[Scalar, ...]) -> frozenset[Expr]:
    """Sizes on which it depends whether rows begin at whole vectors: those in strides, and in the lengths of
    the rows themselves.

    Rows lie along the range of most accesses at unit stride.
    """
    kernel = draft.kernel
    own = frozenset(kernel.sizes)
    found: set[Expr] = set()
    indices = [store.index for store in kernel.stores]
    indices += [node.index[0] for node in postorder(values) if isinstance(node, Load)]
    ranges = [r.symbol for r in kernel.ranges]
    for index in indices:
        for place in index.free_symbols & frozenset(ranges):
            step = stride_of(index, place)
            if step is None or not provably_divisible(step, WHOLE):
                found |= own & (index.free_symbols if step is None else step.free_symbols)
    rows = draft.most_along
    if rows is not None:
        tile = next(group for group in draft.group_ranges().values() if rows in group)
        if not provably_divisible(tile[-1].extent, WHOLE):
            found |= own & tile[-1].extent.free_symbols
        found |= own & _ends(values, frozenset(r.symbol for r in tile))
    return frozenset(found)


def _ends(values: tuple[Scalar, ...], rows: frozenset[Expr]) -> frozenset[Expr]:
    """Sizes that positions along `rows` are compared with: whole vectors are inside, or outside, if these are
    multiples.
    """
    found: set[Expr] = set()
    for node in postorder(values):
        if isinstance(node, Op) and node.op in _COMPARISONS:
            sides = [operand.expr for operand in node.operands if isinstance(operand, IndexValue)]
            if len(sides) == 2 and any(not rows.isdisjoint(side.free_symbols) for side in sides):
                found.update(*(side.free_symbols for side in sides if rows.isdisjoint(side.free_symbols)))
    return frozenset(found)
