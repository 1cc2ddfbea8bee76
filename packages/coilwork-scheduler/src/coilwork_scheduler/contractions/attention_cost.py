"""What attention takes: the bytes that it moves, and the tiles that it computes."""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import get_extents
from coilwork_ir.loops import Attention, AttentionGradient
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers
from coilwork_ir.machine.model import AttentionTiles
from coilwork_ir.scalar import list_loads
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import ImplementationContext

# Of fewer, libraries have kernels whose tiles are pieces of the keys.
_LEAST_ROWS: Final = 16


def count_moved_bytes(node: Attention | AttentionGradient, context: ImplementationContext) -> tuple[int, int]:
    """Bytes of the operands of `node`, and of its results."""
    given = sum(context.size(context.facts.buffers[name]) for name in list_read_buffers(node))
    return given, sum(context.size(buffer) for buffer in list_defined_buffers(node))


def model_attention_us(
    node: Attention | AttentionGradient,
    context: ImplementationContext,
    target: Target,
    tiles: AttentionTiles,
    *,
    alone: bool = False,
) -> float:
    """Return the time of an implementation that computes `tiles`, or the time that memory takes, if that is
    longer.

    `alone`: a unit has room for one tile at a time, so the last tiles leave units idle. Memory alone counts
    of gradients, of operands of 32 bits and of few rows, for which the figures were not taken; and where
    results must not depend on what is computed beside them.
    """
    moved_us = context.move_us(*count_moved_bytes(node, context))
    weights, sizes = node.weights, context.sizes
    rows = sizes.numel(get_extents(weights.rows[-1:]))
    if isinstance(node, AttentionGradient) or not target.is_gpu or rows < _LEAST_ROWS:
        return moved_us
    if weights.query.dtype.itemsize != 2 or context.options.batch_invariant:
        return moved_us
    points = sizes.numel(get_extents(weights.rows[:-1]))
    keys = sizes.numel(get_extents((weights.keys,)))
    columns = sizes.numel(get_extents(weights.ranges[-1:]))
    block_us = max(tiles.block_us, tiles.block_column_us * columns)
    if list_loads((weights.score,)):
        block_us += tiles.bias_us
    tile_us = tiles.start_us + tiles.start_column_us * columns + -(-keys // tiles.keys) * block_us
    shares = points * -(-rows // tiles.rows) / target.multiprocessors
    waves = -(-shares // 1) if alone else shares
    return max(moved_us, tiles.certain_share * waves * tile_us)
