"""Rows of what matrix products read and write, padded to 16 bytes where nothing holds them to be dense."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_lowering.generated import is_computed, operator, owner_of, readers_of, reads_anywhere, views_of
from coilwork_lowering.layout.captured import written_operands
from coilwork_lowering.layout.formats import Size, hinted_bytes, is_dense_in_order
from coilwork_lowering.layout.products import ALIGNMENT, Product, find_products, is_product, is_unaligned
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat import copied_graph, fake_mode_of

UNPADDED: Final = "unpadded_strides"
"""Metadata of a node with padded rows: that its operator, left to allocate its result, makes it dense."""

# Padding is read and written with the rows, about this often, at this many bytes per microsecond.
_TOUCHES: Final = 3
_BYTES_PER_US: Final = 4.0e6
# What a product must save: kernels over padded rows cannot take rows as one long dimension.
_WORTHWHILE_US: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingDecision:
    """What was decided for a graph, and why.

    Attributes:
        padded: names of the nodes whose results have padded rows.
        products: products that read or write unaligned rows as captured.
        aligned: how many of them no longer do.
        saved_us: what these take less, as modelled.
        padding_bytes: what padding adds to the results' sizes.
        reasons: one sentence per product for a reader of traces.
    """

    padded: tuple[str, ...] = ()
    products: int = 0
    aligned: int = 0
    saved_us: float = 0.0
    padding_bytes: int = 0
    reasons: tuple[str, ...] = ()


def pad_products(
    gm: torch.fx.GraphModule, options: LayoutOptions
) -> tuple[torch.fx.GraphModule, PaddingDecision]:
    """`gm` with padded rows where that gives matrix products aligned kernels; else `gm` itself.

    A row of 50257 numbers of 16 bits starts at a multiple of 2 bytes, and the matrix units' kernels want 16. A value that
    is made in the graph, by a product or by generated code, and that only products and generated code read, need not be
    dense: its metadata gets a longer stride, and nothing is copied. Inputs and outputs of the graph stay as
    captured. In a joint graph that holds for the user's: what is saved between forward and backward is padded.

    `gm` is never changed. Nodes keep their names and metadata except `val` (and `tensor_meta`, which is dropped
    where `val` changed).
    """
    slow = [
        p for p in find_products(gm, options.devices) if any(is_unaligned(t.meta["val"]) for t in p.tensors)
    ]
    mode = fake_mode_of(gm) if slow and options.pad_products else None
    if mode is None:
        return gm, PaddingDecision(products=len(slow))
    padding = _Padding(mode)
    for product in slow:
        padding.judge(product)
    if not padding.made:
        return gm, padding.decision(slow)
    graph = copied_graph(gm.graph)
    made = {node.name: value for values in padding.made.values() for node, value in values.items()}
    owners = {owner.name for owner in padding.made}
    for node in graph.nodes:
        if node.name in made:
            node.meta["val"] = made[node.name]
            node.meta.pop("tensor_meta", None)
        if node.name in owners:
            node.meta[UNPADDED] = True
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, padding.decision(slow)


class _Padding:
    """What has been padded so far: per owner of memory, its new value and its views'."""

    def __init__(self, mode: AbstractContextManager[object]) -> None:
        self.mode = mode
        self.made: dict[torch.fx.Node, Mapping[torch.fx.Node, torch.Tensor]] = {}
        self.reasons: list[str] = []
        self.saved_us = 0.0
        self.aligned = 0
        self.padding_bytes = 0

    def decision(self, slow: list[Product]) -> PaddingDecision:
        return PaddingDecision(
            padded=tuple(owner.name for owner in self.made),
            products=len(slow),
            aligned=self.aligned,
            saved_us=self.saved_us,
            padding_bytes=self.padding_bytes,
            reasons=tuple(self.reasons),
        )

    def judge(self, product: Product) -> None:
        """Pad what `product` needs padded, if all of it can be and that is worth it."""
        wanted: dict[torch.fx.Node, Mapping[torch.fx.Node, torch.Tensor]] = {}
        for tensor in product.tensors:
            owner = owner_of(tensor)
            known = self.made.get(owner) or wanted.get(owner)
            if not is_unaligned(tensor.meta["val"] if known is None else known[tensor]):
                continue
            obstacle = "rows stay unaligned" if known is not None else _obstacle(owner)
            if not obstacle:
                values = self.padded(owner)
                obstacle = "a view needs dense rows" if values is None else ""
                if values is not None:
                    wanted[owner] = values
                    if is_unaligned(values[tensor]):
                        obstacle = "a view starts or steps between vectors"
            if obstacle:
                self.reasons.append(f"{product.node.name} as captured: {owner.name}: {obstacle}")
                return
        more = sum(_padding_bytes(values[owner]) for owner, values in wanted.items())
        cost_us = _TOUCHES * more / _BYTES_PER_US + _bias_us(product, wanted)
        saved_us = product.lost_us - cost_us
        what = (
            f"unaligned kernels lose {product.lost_us:.1f} us, padding by {more} bytes costs {cost_us:.1f} us"
        )
        if saved_us < _WORTHWHILE_US:
            self.reasons.append(f"{product.node.name} as captured: {what}")
            return
        self.made.update(wanted)
        self.aligned += 1
        self.saved_us += saved_us
        self.padding_bytes += more
        self.reasons.append(f"{product.node.name} with padded rows: {what}")

    def padded(self, owner: torch.fx.Node) -> Mapping[torch.fx.Node, torch.Tensor] | None:
        """Fake tensors of `owner` with padded rows and of all its views; None if a view has no strides then."""
        old = owner.meta["val"]
        with self.mode:
            values = {
                owner: torch.empty_strided(
                    old.shape, _padded_strides(old), dtype=old.dtype, device=old.device
                )
            }
            for view in views_of(owner):
                given = torch.fx.map_arg(view.args, lambda n: values.get(n, n.meta.get("val")))
                named = torch.fx.map_arg(view.kwargs, lambda n: values.get(n, n.meta.get("val")))
                call: Any = view.target
                try:
                    values[view] = call(*given, **named)
                except (RuntimeError, ValueError):
                    # this view cannot be had without a copy; which error says so depends on torch's version
                    return None
        return values


def _obstacle(owner: torch.fx.Node) -> str:
    """Why the memory of `owner` cannot have other strides; empty if it can."""
    value = owner.meta["val"]
    if not is_product(owner) and not is_computed(owner):
        return "an input" if owner.op == "placeholder" else "made by an operator that chooses its strides"
    if (
        value.dim() < 2
        or type(value.shape[-1]) is not int
        or not is_dense_in_order(value, range(value.dim()))
    ):
        return "no dense rows of a known length"
    for reader in readers_of(owner):
        if reader.op == "output":
            return "returned to the caller"
        if any(owner_of(written) is owner for written in written_operands(reader)):
            return "written to"
        if not (reads_anywhere(reader) or is_product(reader)):
            return f"read by {reader.name}, which depends on strides"
    return ""


def _bias_us(product: Product, wanted: Mapping[torch.fx.Node, object]) -> float:
    """A bias is added in the product's own kernel to dense results; else it is copied into the result before."""
    if product.node not in wanted or operator(product.node.target) not in ("addmm", "baddbmm"):
        return 0.0
    return 2 * hinted_bytes(product.node.meta["val"]) / _BYTES_PER_US


def _padded_strides(tensor: torch.Tensor) -> tuple[Size, ...]:
    """Row-major strides, rows padded to the alignment."""
    per = ALIGNMENT // tensor.element_size()
    below: Size = -(-tensor.shape[-1] // per) * per
    strides: list[Size] = [1]
    for size in reversed(tensor.shape[1:-1]):
        strides.append(below)
        below = size * below
    strides.append(below)
    return tuple(reversed(strides))


def _padding_bytes(tensor: torch.Tensor) -> int:
    length = int(tensor.shape[-1])
    per = ALIGNMENT // tensor.element_size()
    return hinted_bytes(tensor) // max(length, 1) * (-length % per)
