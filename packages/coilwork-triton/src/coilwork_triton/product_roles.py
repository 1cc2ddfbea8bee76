"""Roles of warps in kernels of products: what they are, and why there may be no text for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import as_int, find_bounds, find_stride, multiply_all
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Loop, Mapping, Specialise, Tile, Warps, find_all
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.mapping.product_blocks import WARP_GROUPS, Factors, list_names
from coilwork_ir.scalar import Load, list_loads
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.iteration.mapping_parameters import get_single_value

# Warps that multiply together, and the least results that they have.
GROUP_WARPS: Final = 4
GROUP_ROWS: Final = 64
LEAST_COLUMNS: Final = 64
MOST_CONSUMERS: Final = 2
# Registers of a loader's thread.
LOADER_REGISTERS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Roles of a program's warps: one brings blocks, and groups of warps multiply them.

    Attributes:
        consumers: groups that multiply.
        pingpong: each of them has a tile of its own; else they share a tile's rows.
        warps: of a group.
    """

    consumers: int
    pingpong: bool
    warps: int

    @property
    def parts(self) -> int:
        """Parts of a tile's rows, each of which a group multiplies."""
        return 1 if self.pingpong else self.consumers


def find_roles(mapping: Mapping) -> Roles | None:
    """Return the roles of warps in `mapping`, which is legal."""
    one, warps = mapping.find(Specialise), mapping.find(Warps)
    if one is None or warps is None:
        return None
    return Roles(consumers=one.consumers, pingpong=one.pingpong, warps=get_single_value(warps.count))


def explain_no_roles(
    kernel: Kernel, factors: Factors, mapping: Mapping, target: Target
) -> Iterator[tuple[str, str]]:
    """Yield why there is no text for the roles of `mapping`, each reason behind the directive that it is
    about.
    """
    one, warps = mapping.find(Specialise), mapping.find(Warps)
    if one is None:
        return
    if not target.has(WARP_GROUPS):
        yield "specialise", f"no groups of warps multiply on {target.name}"
    if one.consumers > MOST_CONSUMERS:
        yield "specialise", f"there are at most {MOST_CONSUMERS} groups of warps that multiply"
    if warps is None or set(list_values(warps.count)) != {GROUP_WARPS}:
        yield "warps", f"a group that multiplies has {GROUP_WARPS}"
    if factors.others:
        yield "specialise", "there is a batch"
    if any(not isinstance(factor, Load) for node in factors.nodes for factor in node.operands):
        yield "specialise", "a factor is computed"
    lowest = find_bounds(multiply_all(r.extent for r in factors.axes)).lo
    if lowest is None or lowest < 1:
        yield "specialise", "the sum may have no terms"
    if kernel.checks:
        yield "specialise", "the kernel checks what it loads"
    loop = mapping.find(Loop)
    if loop is not None and min(list_values(loop.stages)) < 2:
        # a stage is free when products with the next one have begun
        yield "loop", "blocks of two steps are on their way where warps have roles"
    stored = {store.buffer for store in kernel.stores}
    if any(load.buffer in stored for load in list_loads(list_roots(kernel))):
        yield "specialise", "the kernel stores over what it loads"
    if not factors.rows or not factors.columns:
        yield "specialise", "there are no rows, or no columns"
        return
    inner = factors.columns[-1].symbol
    along = [find_stride(store.index, inner) for store in kernel.stores]
    if any(step is None or as_int(step) != 1 for step in along):
        yield "specialise", "results do not lie along columns"
    tiles = {tile.ranges: tile for tile in find_all(mapping.directives, Tile)}
    rows, columns = (tiles.get(list_names(kernel, side)) for side in (factors.rows, factors.columns))
    parts = 1 if one.pingpong else one.consumers
    if rows is not None and min(list_values(rows.by)) < GROUP_ROWS * parts:
        yield "tile", f"a group that multiplies has at least {GROUP_ROWS} rows"
    if columns is not None and min(list_values(columns.by)) < LEAST_COLUMNS:
        yield "tile", f"a group that multiplies has at least {LEAST_COLUMNS} columns"
