"""Padding of matrix products for fast kernels; `pad_products` is the entry.

Sizes are padded first (`size_padding.py`), then the rows of values that nothing requires to be dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.graph_marks import OWN_PADDING
from coilwork_lowering.facts.fx_nodes import is_pointwise, view_base
from coilwork_lowering.layout.formats import Size, bytes_hint, is_dense_in_order
from coilwork_lowering.layout.products import (
    Product,
    dependence_on_strides,
    find_products,
    is_product,
    is_unaligned,
    product_of,
    set_value,
    views_over,
)
from coilwork_lowering.layout.size_padding import SizePadding, can_pad_sizes
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, fake_mode_of

UNPADDED: Final = "unpadded_strides"
"""Metadata of a node with padded rows: that its operator, left to allocate its result, makes it dense."""

# Padding is read and written with the rows, about this often.
_TOUCHES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingDecision:
    """The decision for a graph's products, and why.

    Attributes:
        padded: names of the nodes that have padding in their memory.
        by_rows: names that products had which are computed by blocks of rows.
        products: products that no fast kernel can compute as captured.
        aligned: how many of them one can now.
        saved_us: what these take less, as modelled.
        padding_bytes: what padding adds to the results' sizes; a padded copy counts as a whole.
        reasons: one sentence per product for a reader of traces.
    """

    padded: tuple[str, ...] = ()
    by_rows: tuple[str, ...] = ()
    products: int = 0
    aligned: int = 0
    saved_us: float = 0.0
    padding_bytes: int = 0
    reasons: tuple[str, ...] = ()


def pad_products(
    gm: torch.fx.GraphModule, options: LayoutOptions, *, joint: bool = False
) -> tuple[torch.fx.GraphModule, PaddingDecision]:
    """`gm` with padding where that gives matrix products fast kernels; else `gm` itself.

    Fast kernels of matrix units read vectors of 16 bytes. They want sizes that are whole vectors, and rows
    that start at whole vectors. A vocabulary of 50257 numbers of 16 bits fails both.

    Sizes (`size_padding.py`): operands get zeros at the end, the result gets columns that nobody reads.
    Generated code that makes an operand writes the zeros with it; other operands are copied, if that costs
    less than it saves. A result that the caller gets is copied to dense memory where there is room for it.
    Where there is none it is computed by blocks of rows (`row_blocking.py`), but not in a `joint` graph,
    which is yet to be partitioned.

    Rows: a value that is made in the graph, by a product or by generated code, and that only products and
    generated code read, need not be dense: its metadata gets a longer stride, and nothing is copied.

    Inputs and outputs of the graph stay as captured. In a joint graph that holds for the user's: what is
    saved between forward and backward is padded. Results are those of other kernels, whose sums may be in
    another order.

    `gm` is never changed. Nodes keep their names and metadata except `val` (and `tensor_meta`, which is
    dropped where `val` changed).
    """
    slow = tuple(p.node.name for p in find_products(gm, options.devices, options.find_model) if _is_slow(p))
    mode = fake_mode_of(gm) if slow and options.pad_products else None
    if mode is None:
        return gm, PaddingDecision(products=len(slow))
    graph = copy_graph(gm.graph)
    named = {node.name: node for node in graph.nodes}
    sizes, rows = SizePadding(graph, mode, by_rows=options.by_rows and not joint), _RowPadding(mode)
    for name in slow:
        product = product_of(named[name], options.devices, options.find_model)
        if product is not None and can_pad_sizes(product):
            sizes.judge(product)
    cut = () if sizes.by_rows is None else tuple(sizes.by_rows.names)
    for name in slow:
        if name in cut:
            continue
        # sizes that are no whole vectors make aligned rows useless
        product = product_of(named[name], options.devices, options.find_model)
        if product is not None and not any(product.padding) and _has_unaligned_rows(product):
            rows.judge(product)
    rows.apply()
    decision = PaddingDecision(
        padded=(*sizes.names, *(owner.name for owner in rows.made)),
        by_rows=cut,
        products=len(slow),
        aligned=sizes.aligned + rows.aligned + len(cut),
        saved_us=sizes.saved_us
        + rows.saved_us
        + (sizes.by_rows.saved_us if sizes.by_rows is not None else 0.0),
        padding_bytes=sizes.padding_bytes + rows.padding_bytes,
        reasons=(*sizes.reasons, *rows.reasons),
    )
    if not (decision.padded or decision.by_rows):
        return gm, decision
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, decision


def _is_slow(product: Product) -> bool:
    return any(product.padding) or _has_unaligned_rows(product)


def _has_unaligned_rows(product: Product) -> bool:
    return any(is_unaligned(t.meta["val"], product.figures.vector_bytes) for t in product.tensors)


class _RowPadding:
    """The values padded so far: per owner of memory, its new value and those of its views."""

    def __init__(self, mode: AbstractContextManager[object]) -> None:
        self.mode = mode
        self.made: dict[torch.fx.Node, Mapping[torch.fx.Node, torch.Tensor]] = {}
        self.reasons: list[str] = []
        self.saved_us = 0.0
        self.aligned = 0
        self.padding_bytes = 0

    def apply(self) -> None:
        """Let the metadata of what was padded say so."""
        for owner, values in self.made.items():
            owner.meta[UNPADDED] = True
            for node, value in values.items():
                set_value(node, value)
                node.meta[OWN_PADDING] = True

    def judge(self, product: Product) -> None:
        """Pad what `product` needs padded, if all of it can be and that is worth it."""
        wanted: dict[torch.fx.Node, Mapping[torch.fx.Node, torch.Tensor]] = {}
        figures = product.figures
        vector = figures.vector_bytes
        for tensor in product.tensors:
            owner = view_base(tensor)
            padding = self.made.get(owner) or wanted.get(owner)
            if not is_unaligned(tensor.meta["val"] if padding is None else padding[tensor], vector):
                continue
            obstacle = "rows stay unaligned" if padding is not None else _obstacle(owner)
            if not obstacle:
                values = self.pad_rows(owner, vector)
                obstacle = "a view needs dense rows" if values is None else ""
                if values is not None:
                    wanted[owner] = values
                    if is_unaligned(values[tensor], vector):
                        obstacle = "a view starts or steps between vectors"
            if obstacle:
                self.reasons.append(f"{product.node.name} as captured: {owner.name}: {obstacle}")
                return
        more = sum(_count_padding_bytes(values[owner], vector) for owner, values in wanted.items())
        cost_us = _TOUCHES * more / figures.copied_bytes_per_us + _bias_us(product, wanted)
        saved_us = product.lost_us - cost_us
        what = (
            f"unaligned kernels lose {product.lost_us:.1f} us, padding by {more} bytes costs {cost_us:.1f} us"
        )
        # kernels over padded rows cannot take rows as one long dimension
        if saved_us < figures.least_gain_us:
            self.reasons.append(f"{product.node.name} as captured: {what}")
            return
        self.made.update(wanted)
        self.aligned += 1
        self.saved_us += saved_us
        self.padding_bytes += more
        self.reasons.append(f"{product.node.name} with padded rows: {what}")

    def pad_rows(
        self, owner: torch.fx.Node, vector_bytes: int
    ) -> Mapping[torch.fx.Node, torch.Tensor] | None:
        """Fake tensors of `owner` with padded rows and of all its views; None if a view has no
        strides then.
        """
        old = owner.meta["val"]
        with self.mode:
            value = torch.empty_strided(
                old.shape, _pad_strides(old, vector_bytes), dtype=old.dtype, device=old.device
            )
        return views_over(owner, value, self.mode)


def _obstacle(owner: torch.fx.Node) -> str:
    """Why the memory of `owner` cannot have other strides; empty if it can."""
    value = owner.meta["val"]
    if not is_product(owner) and not is_pointwise(owner):
        return "an input" if owner.op == "placeholder" else "made by an operator that chooses its strides"
    if (
        value.dim() < 2
        or type(value.shape[-1]) is not int
        or not is_dense_in_order(value, range(value.dim()))
    ):
        return "no dense rows of a known length"
    return dependence_on_strides(owner)


def _bias_us(product: Product, wanted: Mapping[torch.fx.Node, object]) -> float:
    """A bias is added in the product's own kernel to dense results; else it is copied into the
    result before.
    """
    if product.node not in wanted or product.added is None:
        return 0.0
    return 2 * bytes_hint(product.node.meta["val"]) / product.figures.copied_bytes_per_us


def _pad_strides(tensor: torch.Tensor, vector_bytes: int) -> tuple[Size, ...]:
    """Row-major strides, rows padded to the alignment."""
    per = vector_bytes // tensor.element_size()
    below: Size = -(-tensor.shape[-1] // per) * per
    strides: list[Size] = [1]
    for size in reversed(tensor.shape[1:-1]):
        strides.append(below)
        below = size * below
    strides.append(below)
    return tuple(reversed(strides))


def _count_padding_bytes(tensor: torch.Tensor, vector_bytes: int) -> int:
    length = int(tensor.shape[-1])
    per = vector_bytes // tensor.element_size()
    return bytes_hint(tensor) // max(length, 1) * (-length % per)
