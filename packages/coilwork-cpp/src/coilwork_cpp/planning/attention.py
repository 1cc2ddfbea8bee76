"""Plan how a kernel of attention, or of its gradient, runs: blocks of rows go through blocks of keys.

tile y0 by 1         other ranges: a unit of work has one point of them
tile y1 by 64        rows, lanes of vectors
loop r0 by 96        keys, block by block
keep r1 by 64        the length of products
functions vector     contract
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import AttentionKernelCore, Roles, find_core, roles_of
from coilwork_ir.kernels.mask_bounds import find_conditions
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.loops.nodes import BlockLists
from coilwork_ir.mapping import Contract, Directive, Functions, Invariant, Keep, Loop, Mapping, Tile
from coilwork_ir.mapping.directive import list_values

ROWS: Final = 64
"""Points of a block of rows: the vectors of some rows of a product, for any size of vectors."""
_KEYS: Final = 96
# Its scores are to stay in a cache.
_MOST_KEYS: Final = 128
_LEAST_KEYS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """The way in which an attention or its gradient runs.

    Attributes:
        kernel, core, roles: what is computed, and the ranges by their roles.
        mapping: how it runs.
        keys: points of a block of keys.
        lists: the lists of blocks that tell which blocks of keys a block of rows has; None where comparisons
            of positions do, or all have to be gone through.
    """

    kernel: Kernel
    core: AttentionKernelCore
    roles: Roles
    mapping: Mapping
    keys: int
    lists: BlockLists | None

    @property
    def length(self) -> int:
        """The terms of a product of a query and a key."""
        return as_int(self.roles.length.extent) or 0

    @property
    def columns(self) -> int:
        """Columns of values."""
        return as_int(self.roles.columns.extent) or 0


def propose_attention(kernel: Kernel, common: Sequence[Directive]) -> AttentionPlan:
    """Return how `kernel`, whose core is attention or its gradient, is to run, with directives that are
    `common`.

    Raises:
        EmitError: it is none that is computed in blocks.
    """
    roles = roles_of(kernel)
    lists = _find_lists(kernel)
    keys = _KEYS if lists is None else _divide(lists.key_block)
    return plan_attention(kernel, _outline(roles, keys, common))


def plan_attention(kernel: Kernel, mapping: Mapping) -> AttentionPlan:
    """Return how `kernel` runs as `mapping` says, whoever chose that.

    Raises:
        EmitError: there are no loops for a directive, which the error names.
    """
    core, roles = find_core(kernel), roles_of(kernel)
    assert core is not None
    for keyword, reason in _list_reasons(roles, mapping):
        raise EmitError(f"mapping-{keyword}", f"no loops of {kernel.name}: {reason}")
    loop = mapping.find(Loop)
    assert isinstance(loop, Loop)
    (keys,) = list_values(loop.by)
    lists = _find_lists(kernel)
    if lists is not None and lists.key_block % keys:
        lists = None
    return AttentionPlan(kernel=kernel, core=core, roles=roles, mapping=mapping, keys=keys, lists=lists)


def _outline(roles: Roles, keys: int, common: Sequence[Directive]) -> Mapping:
    others = tuple(Tile(ranges=(r.symbol.name,), by=1, to="thread") for r in roles.others)
    return Mapping(
        directives=(
            *others,
            Tile(ranges=(roles.rows.symbol.name,), by=ROWS, to="thread"),
            Loop(ranges=(roles.keys.symbol.name,), by=keys),
            Keep(ranges=(roles.length.symbol.name,), by=as_int(roles.length.extent) or 1),
            *(one for one in common if not isinstance(one, Invariant)),
        )
    )


def _list_reasons(roles: Roles, mapping: Mapping) -> Iterator[tuple[str, str]]:
    """Yield the directives that have no loops, by their keywords."""
    taken = (Tile, Loop, Keep, Functions, Contract)
    for one in mapping.directives:
        if not isinstance(one, taken):
            yield one.keyword(), f"attention takes no `{one.keyword()}`"
    if mapping.nests:
        yield "nest", "attention is one nest"
    wanted = {r.symbol.name: 1 for r in roles.others} | {roles.rows.symbol.name: ROWS}
    tiles = [one for one in mapping.directives if isinstance(one, Tile)]
    found = {name: list_values(tile.by) for tile in tiles for name in tile.ranges}
    if found != {name: (by,) for name, by in wanted.items()}:
        yield "tile", f"units of work have {ROWS} rows, and one point of the ranges around them"
    loops = [one for one in mapping.directives if isinstance(one, Loop)]
    if len(loops) != 1 or loops[0].ranges != (roles.keys.symbol.name,):
        yield "loop", "keys are gone through in blocks, and nothing else"
    elif len(sizes := list_values(loops[0].by)) != 1 or not 1 <= sizes[0] <= _MOST_KEYS:
        yield "loop", f"a block has 1 to {_MOST_KEYS} keys"


def _find_lists(kernel: Kernel) -> BlockLists | None:
    """Return the lists of blocks that say more than comparisons of positions in the mask do."""
    core = find_core(kernel)
    assert core is not None
    lists = core.weights.blocks
    if lists is None or lists.find("keys") is None or lists.row_block % ROWS:
        return None
    if find_conditions(core.weights.mask).exact or _divide(lists.key_block) < _LEAST_KEYS:
        return None
    return lists


def _divide(block: int) -> int:
    """Return the longest block of keys that divides `block`."""
    return max(size for size in range(1, _KEYS + 1) if block % size == 0)


def is_forward(core: AttentionKernelCore) -> bool:
    """Tell if `core` is attention itself, and not its gradient."""
    return isinstance(core, AttentionCore)
