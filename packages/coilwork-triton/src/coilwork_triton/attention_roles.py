"""Attention whose warps have roles: what there is text for, and in what blocks.

One warp brings blocks of operands by the copy engine, and groups of four warps, the consumers, multiply them
on Hopper's tensor cores (`statements/specialised_attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, find_bounds
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.attention import AttentionKernelCore, find_core, roles_of
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.mapping import Index, Loop, Mapping, Resident, Specialise, Tile, Warps, find_all
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.mapping.product_blocks import WARP_GROUPS
from coilwork_ir.scalar import Load, Op, Parameter, Scalar
from coilwork_ir.target import Target
from coilwork_triton.facts.stored_rows import StoredRows, find_stored_rows
from coilwork_triton.launch.parameters import round_up_to_power_of_two
from coilwork_triton.product_roles import GROUP_ROWS, GROUP_WARPS, LOADER_REGISTERS

CONSUMER_ROWS: Final = GROUP_ROWS
MOST_CONSUMERS: Final = 4
# Groups that have room for queries in registers, too; else these stay in shared memory, those of two tiles.
MOST_WITH_QUERIES: Final = 2
# Registers of a multiprocessor for each thread of one group of warps.
_REGISTERS: Final = 512
_GROUP_THREADS: Final = 128
# Registers for what is no block: places, conditions, numbers of a row.
_REST: Final = 32
# Columns of values, and terms of products, that registers and shared memory have room for.
_LEAST_WHOLE, _MOST_WHOLE = 64, 128
_KEYS: Final = (64, 128)
# What barriers and alignment take of shared memory.
_ASIDE: Final = 2048


def find_operands(kernel: Kernel, core: AttentionKernelCore) -> tuple[StoredRows, ...] | str:
    """Queries, keys and values, and the gradient of results if there is one, as rows in memory; or why one of
    them is none.
    """
    roles, weights = roles_of(kernel), core.weights
    sides: list[tuple[str, Scalar, Range, Range]] = [
        ("query", weights.query, roles.rows, roles.length),
        ("key", weights.key, roles.keys, roles.length),
        ("value", weights.value, roles.keys, roles.columns),
    ]
    if isinstance(core, AttentionGradientCore):
        sides.append(("gradient", core.gradient, roles.rows, roles.columns))
    found: list[StoredRows] = []
    types = set[DType]()
    for name, body, far, near in sides:
        if not isinstance(body, Load) or body.operands:
            return f"the {name} is computed"
        if body.dtype.itemsize != 2:
            return f"the {name} has no 16 bits"
        rows = find_stored_rows(kernel, body.buffer, body.index[0], far, near, body.dtype.itemsize)
        if isinstance(rows, str):
            return rows
        found.append(rows)
        types.add(body.dtype)
    return tuple(found) if len(types) == 1 else "operands have different types"


def find_stored_result(kernel: Kernel, core: AttentionCore) -> StoredRows | None:
    """Return where the copy engine stores the result; None if threads store it, which change it first."""
    roles, dtype = roles_of(kernel), core.weights.query.dtype
    for store in kernel.stores:
        value = store.value
        if not isinstance(value, Op) or value.op != "cast" or not _is_result(value.operands[0]):
            continue
        if value.dtype is not dtype or store.mode != "store" or store.indirect or store.mask is not None:
            continue
        place = store.index
        found = find_stored_rows(kernel, store.buffer, place, roles.rows, roles.columns, dtype.itemsize)
        if not isinstance(found, str):
            return found
    return None


def _is_result(value: Scalar) -> bool:
    return isinstance(value, Parameter) and value.position == 0


def explain_no_roles(kernel: Kernel, target: Target) -> str | None:
    """Return why warps cannot have roles in `kernel`, attention or its gradient; None if they can."""
    core = find_core(kernel)
    if core is None:
        return "it is no attention"
    if isinstance(core, AttentionGradientCore):
        if core.inner is None:
            return "what all weights of a row pass on is not given"
        if core.bias is not None:
            return "the gradient of a bias is summed"
    if not target.has(WARP_GROUPS):
        return f"no groups of warps multiply on {target.name}"
    found = find_operands(kernel, core)
    if isinstance(found, str):
        return found
    roles = roles_of(kernel)
    for name, r in (("columns", roles.columns), ("terms", roles.length)):
        if not _LEAST_WHOLE <= _cover_extent(r.extent) <= _MOST_WHOLE:
            return f"a block has no {_LEAST_WHOLE} to {_MOST_WHOLE} {name}"
    is_gradient = isinstance(core, AttentionGradientCore)
    for name, r in (("keys", roles.keys), *([("rows", roles.rows)] if is_gradient else [])):
        least = find_bounds(r.extent).lo
        if least is None or least < 1:
            return f"there may be no {name}"
    if kernel.checks:
        return "the kernel checks what it loads"
    stored = {store.buffer for store in kernel.stores}
    if any(rows.buffer in stored for rows in found):
        return "the kernel stores over what it loads"
    lists = core.weights.blocks
    if lists is not None and min(
        lists.row_block & -lists.row_block, lists.key_block & -lists.key_block
    ) < max(_KEYS):
        return f"lists are of blocks that {max(_KEYS)} does not divide"
    return None


def check_roles(kernel: Kernel, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    """Yield the directives of `mapping`, whose warps have roles, that there is no text for, with reasons."""
    one, loop = mapping.find(Specialise), mapping.find(Loop)
    resident, warps = mapping.find(Resident), mapping.find(Warps)
    if one is None:
        if resident is not None:
            yield "resident", "only warps with roles go on to another tile"
        return
    reason = explain_no_roles(kernel, target)
    if reason is not None:
        yield "specialise", reason
        return
    index = mapping.find(Index)
    if index is None or index.dtype != "i32":
        yield "index", "the copy engine counts in 32 bits"
    is_gradient = isinstance(kernel.core, AttentionGradientCore)
    most = MOST_WITH_QUERIES if is_gradient else MOST_CONSUMERS
    if one.consumers > most or one.pingpong:
        yield "specialise", f"1 to {most} groups of warps share the rows of a tile"
        return
    if warps is None or set(list_values(warps.count)) != {GROUP_WARPS}:
        yield "warps", f"a group that multiplies has {GROUP_WARPS}"
    rows = next(
        t for t in find_all(mapping.directives, Tile) if t.ranges == (roles_of(kernel).rows.symbol.name,)
    )
    if set(list_values(rows.by)) != {CONSUMER_ROWS * one.consumers}:
        yield "tile", f"a group that multiplies has {CONSUMER_ROWS} rows"
    sizes = (CONSUMER_ROWS,) if is_gradient else _KEYS
    if loop is None or not set(list_values(loop.by)) <= set(sizes):
        yield "loop", f"blocks have {' or '.join(map(str, sizes))} points"
        return
    if not is_gradient and not all(has_registers_for(kernel, one.consumers, n) for n in list_values(loop.by)):
        yield "specialise", "registers have no room for the blocks of so many groups"
    if min(list_values(loop.stages)) < 2:
        # the values of a block are multiplied after the keys of the next one
        yield "loop", "blocks of two steps are on their way where warps have roles"
    bytes_used = (
        count_shared_bytes(kernel, one.consumers, k, s)
        for k in list_values(loop.by)
        for s in list_values(loop.stages)
    )
    if min(bytes_used) > target.shared_memory_bytes:
        yield "loop", "blocks do not fit the shared memory"


def count_query_places(consumers: int) -> int:
    """Return the number of tiles whose queries are in shared memory at a time."""
    return 1 if consumers <= MOST_WITH_QUERIES else 2


def has_registers_for(kernel: Kernel, consumers: int, keys: int) -> bool:
    """Tell if a thread of attention has registers for scores and weights of so many `keys`, sums and queries,
    and for the rest.
    """
    roles = roles_of(kernel)
    length, columns = _cover_extent(roles.length.extent), _cover_extent(roles.columns.extent)
    queries = length // 2 if consumers <= MOST_WITH_QUERIES else 0
    blocks = CONSUMER_ROWS * (keys + keys // 2 + columns + queries) // _GROUP_THREADS
    return blocks + _REST <= count_registers(consumers)


def count_registers(consumers: int) -> int:
    """Return the number of registers of a consumer's thread.

    All threads begin with the same number, the loader's among them, which take those of a whole group. Then
    the loader keeps few.
    """
    groups = consumers + 1
    whole = _round_registers(_REGISTERS // groups) * groups
    return _round_registers((whole - LOADER_REGISTERS) // consumers)


def _round_registers(count: int) -> int:
    """Registers come in eights."""
    return count // 8 * 8


def count_shared_bytes(kernel: Kernel, consumers: int, keys: int, stages: int) -> int:
    """Bytes of shared memory of a program that has blocks of so many `keys`, `stages` at a time."""
    roles = roles_of(kernel)
    length, columns = _cover_extent(roles.length.extent), _cover_extent(roles.columns.extent)
    if isinstance(kernel.core, AttentionGradientCore):
        return 2 * (consumers * CONSUMER_ROWS + stages * keys) * (length + columns) + _ASIDE
    # queries, and results on their way to memory
    rows = consumers * CONSUMER_ROWS * (count_query_places(consumers) * length + columns)
    return 2 * (rows + stages * keys * (length + columns)) + _ASIDE


def _cover_extent(extent: Expr) -> int:
    most = find_bounds(extent).hi
    return 0 if most is None else round_up_to_power_of_two(most)
