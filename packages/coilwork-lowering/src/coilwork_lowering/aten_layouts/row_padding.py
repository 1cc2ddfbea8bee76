"""Pad the rows of values that matrix products read and write, where nothing requires dense rows.

Only metadata changes: a value gets a longer stride, and its views follow. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

import torch

from coilwork_ir.fx_metadata import OWN_PADDING
from coilwork_lowering.aten_layouts.formats import Size, estimate_bytes, is_dense_in_order
from coilwork_lowering.aten_layouts.products import (
    Product,
    explain_stride_dependence,
    is_product,
    is_unaligned,
    restride_views,
    set_value,
)
from coilwork_lowering.facts.fx_nodes import is_pointwise, view_base

UNPADDED: Final = "unpadded_strides"
"""Metadata of a node with padded rows: that its operator, left to allocate its result, makes it dense."""

# Padding is read and written with the rows, about this often.
_TOUCHES: Final = 3


def has_unaligned_rows(product: Product) -> bool:
    """Tell if rows of a tensor of `product` start between the vectors that its fast kernel reads."""
    return any(is_unaligned(t.meta["val"], product.figures.vector_bytes) for t in product.tensors)


class RowPadding:
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
        return restride_views(owner, value, self.mode)


def _obstacle(owner: torch.fx.Node) -> str:
    """Return why the memory of `owner` cannot have other strides; empty if it can."""
    value = owner.meta["val"]
    if not is_product(owner) and not is_pointwise(owner):
        return "an input" if owner.op == "placeholder" else "made by an operator that chooses its strides"
    if (
        value.dim() < 2
        or type(value.shape[-1]) is not int
        or not is_dense_in_order(value, range(value.dim()))
    ):
        return "no dense rows of a known length"
    return explain_stride_dependence(owner)


def _bias_us(product: Product, wanted: Mapping[torch.fx.Node, object]) -> float:
    """A bias is added in the product's own kernel to dense results; else it is copied into the
    result before.
    """
    if product.node not in wanted or product.added is None:
        return 0.0
    return 2 * estimate_bytes(product.node.meta["val"]) / product.figures.copied_bytes_per_us


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
    return estimate_bytes(tensor) // max(length, 1) * (-length % per)
