"""Padding of matrix products for fast kernels; `pad_products` is the entry.

Sizes are padded first (`size_padding.py`), then the rows of values that nothing requires to be dense
(`row_padding.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coilwork_lowering.aten_layouts.products import Product, find_products, match_product
from coilwork_lowering.aten_layouts.row_padding import RowPadding, has_unaligned_rows
from coilwork_lowering.aten_layouts.size_padding import SizePadding, can_pad_sizes
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode


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
    """Return `gm` with padding where that gives matrix products fast kernels; else `gm` itself.

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
    mode = find_fake_mode(gm) if slow and options.pad_products else None
    if mode is None:
        return gm, PaddingDecision(products=len(slow))
    graph = copy_graph(gm.graph)
    named = {node.name: node for node in graph.nodes}
    sizes = SizePadding(
        graph, mode, by_rows=options.by_rows and not joint, stores_odd_rows=not options.by_rows
    )
    rows = RowPadding(mode)
    for name in slow:
        product = match_product(named[name], options.devices, options.find_model)
        if product is not None and can_pad_sizes(product):
            sizes.judge(product)
    cut = () if sizes.by_rows is None else tuple(sizes.by_rows.names)
    for name in slow:
        if name in cut:
            continue
        # sizes that are no whole vectors make aligned rows useless
        product = match_product(named[name], options.devices, options.find_model)
        if product is not None and not any(product.padding) and has_unaligned_rows(product):
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
    return any(product.padding) or has_unaligned_rows(product)
