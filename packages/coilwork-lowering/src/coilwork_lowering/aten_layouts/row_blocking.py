"""Compute unaligned products whose result must be dense, block of rows by block of rows.

Each block goes to an aligned temporary and is copied to its place in the result.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import torch

from coilwork_lowering.aten_layouts.formats import estimate_bytes
from coilwork_lowering.aten_layouts.products import (
    Product,
    is_unaligned,
    model_aligned_us,
    model_unaligned_us,
)
from coilwork_lowering.facts.fx_nodes import insert_call

_aten: Final = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The cut of a product.

    Attributes:
        rows: rows of each block; the last one has what is left.
        columns: columns of the blocks, whole vectors. A product of its own computes the few others, for all
            rows.
        blocks_us: time of all of it, as modelled.
    """

    rows: int
    columns: int
    blocks_us: float


class RowBlocking:
    """Rewrites one graph, product by product.

    A block is computed into a temporary, all of whose sizes are whole vectors, and copied to its place in the
    result, which is made with holes until then (`as_strided_scatter` into `empty`). Temporaries live one
    after the other, so that the room for one of them is enough. The weight is not copied: its first columns
    are a view.

    `names`, `reasons` and `saved_us` say what was done.
    """

    def __init__(self, graph: torch.fx.Graph, mode: AbstractContextManager[object], room: int) -> None:
        self.graph = graph
        self.mode = mode
        self.room = room
        self.names: list[str] = []
        self.saved_us = 0.0

    def judge(self, product: Product, why: str) -> str:
        """Compute `product` by rows if that is possible and worth it; a sentence on what was done.

        Args:
            product: one whose columns are no whole vectors.
            why: it cannot be padded.
        """
        name = product.node.name
        planned = self._plan_cut(product)
        if isinstance(planned, str):
            return f"{name} as captured: {why}; by rows: {planned}"
        lost_us = product.lost_by_sizes_us
        cost_us = planned.blocks_us - product.enlarged_us
        what = f"sizes of no whole vectors lose {lost_us:.1f} us, blocks cost {cost_us:.1f} us"
        figures = product.figures
        if lost_us - cost_us < max(figures.least_gain_us, figures.least_gain_share * lost_us):
            return f"{name} as captured: {why}; by rows: {what}"
        total = product.node.meta["val"].shape[0]
        self._apply(product, planned)
        self.names.append(name)
        self.saved_us += lost_us - cost_us
        return f"{name} by {ceil(total / planned.rows)} blocks of {planned.rows} rows: {what}; {why}"

    def _plan_cut(self, product: Product) -> _Plan | str:
        """Return how to cut `product`, or what stands in the way."""
        left, right = product.tensors[:2]
        shape = product.node.meta["val"].shape
        inner = left.meta["val"].shape[-1]
        if len(shape) != 2:
            return "batches of products"
        if any(type(size) is not int for size in (*shape, inner)):
            return "sizes are symbolic"
        if product.padding[0]:
            return "the inner size is no whole vectors"
        total, wide = int(shape[0]), int(shape[1])
        figures = product.figures
        columns = wide - wide % figures.halves_per_vector
        itemsize = product.node.meta["val"].element_size()
        most = self.room // max(columns * itemsize, 1)
        if not columns or most < min(total, figures.row_tile):
            return "a block has no room"
        rows = total if most >= total else _rows_of_block(total, most, figures.row_tile)
        for part in (
            self._slice(left.meta["val"], 0, 0, rows),
            self._slice(right.meta["val"], 1, 0, columns),
            self._slice(right.meta["val"], 1, columns, wide),
        ):
            if is_unaligned(part, figures.vector_bytes):
                return "an operand has unaligned rows"
            if 1 not in part.stride()[-2:]:
                return "an operand is copied for each product"
        return _Plan(rows=rows, columns=columns, blocks_us=_model_us(product, rows, columns))

    def _slice(self, value: torch.Tensor, dim: int, start: int, end: int) -> torch.Tensor:
        with self.mode:
            part: torch.Tensor = _aten.slice.Tensor(value, dim, start, end)
        return part

    # doing it

    def _apply(self, product: Product, plan: _Plan) -> None:
        node, value = product.node, product.node.meta["val"]
        total, wide = (int(size) for size in value.shape)
        where = {"dtype": value.dtype, "device": value.device}
        result = self._insert(node, _aten.empty.memory_format, ([total, wide],), value, where)
        left, right = product.places
        first, last = (
            self._cut(node, node.args[right], 1, *ends) for ends in ((0, plan.columns), (plan.columns, wide))
        )
        bias = node.args[0] if left else None
        for start in range(0, total, plan.rows):
            end = min(start + plan.rows, total)
            args = [self._cut(node, node.args[left], 0, start, end), first]
            if left:
                args.insert(0, self._part_of(node, bias, (start, end), (0, plan.columns)))
            result = self._place_product(node, result, tuple(args), start * wide)
        args = [node.args[left], last]
        if left:
            args.insert(0, self._part_of(node, bias, (0, total), (plan.columns, wide)))
        result = self._place_product(node, result, tuple(args), plan.columns)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _place_product(
        self, node: torch.fx.Node, result: torch.fx.Node, args: tuple[Any, ...], offset: int
    ) -> torch.fx.Node:
        """`result` with the product of `args` at `offset` in it."""
        call: Any = node.target
        with self.mode:
            value = call(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **node.kwargs)
        part = self._insert(node, call, args, value, dict(node.kwargs))
        whole = result.meta["val"]
        layout = (list(value.shape), list(whole.stride()), offset)
        return self._insert(node, _aten.as_strided_scatter.default, (result, part, *layout), whole)

    def _cut(self, node: torch.fx.Node, tensor: Any, dim: int, start: int, end: int) -> Any:
        value = tensor.meta["val"]
        if (start, end) == (0, value.shape[dim]):
            return tensor
        part = self._slice(value, dim, start, end)
        return self._insert(node, _aten.slice.Tensor, (tensor, dim, start, end), part)

    def _part_of(
        self, node: torch.fx.Node, bias: Any, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Any:
        """Return the part of a bias that is added to these rows and columns of the result."""
        rank = bias.meta["val"].dim()
        for dim, ends in ((rank - 1, columns), (rank - 2, rows)):
            if dim >= 0 and bias.meta["val"].shape[dim] != 1:
                bias = self._cut(node, bias, dim, *ends)
        return bias

    def _insert(
        self,
        node: torch.fx.Node,
        target: Any,
        args: tuple[Any, ...],
        value: torch.Tensor,
        kwargs: dict[str, Any] | None = None,
    ) -> torch.fx.Node:
        return insert_call(self.graph, node, node, target, args, value, kwargs)


def _rows_of_block(total: int, most: int, tile: int) -> int:
    """Rows of as few blocks as there can be, about alike, of `most` rows each."""
    blocks = ceil(total / (most // tile * tile))
    return ceil(total / blocks / tile) * tile


def _model_us(product: Product, rows: int, columns: int) -> float:
    """Time of the products and copies of all blocks, and of the columns that are left."""
    left, result = (product.tensors[k].meta["val"] for k in (0, 2))
    (total, wide), inner, itemsize = (
        (int(n) for n in result.shape),
        int(left.shape[-1]),
        result.element_size(),
    )
    figures = product.figures
    total_us = 0.0
    for start in range(0, total, rows):
        count = min(rows, total - start)
        block = count * columns * itemsize
        moved = (count * inner + inner * columns) * itemsize + block
        total_us += model_aligned_us(2 * count * inner * columns, moved, figures) + figures.copy_us
        total_us += 2 * block / figures.copied_bytes_per_us + figures.copy_us
    few = wide - columns
    flops = 2 * total * inner * figures.least_columns
    total_us += model_unaligned_us(flops, few, estimate_bytes(left), figures) + figures.copy_us
    # each row's end is a sector of its own
    total_us += (
        total * 2 * product.machine.memory.fetched_bytes / figures.copied_bytes_per_us + figures.copy_us
    )
    return total_us
