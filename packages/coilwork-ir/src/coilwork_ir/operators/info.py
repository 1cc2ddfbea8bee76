"""What one ATen operator is: the facts that every package reads, and no package states a second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["", "selects", "moves", "compares"]
Decomposition = Literal["core", "torch", "none"]
Norm = Literal["", "batch", "batch gradient", "group", "layer"]


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The facts about one operator. A fact that is left out does not hold.

    torch says for itself which operators are pointwise, random or in place (`torch.Tag`, schemas). Only what it does not say stands here.

    Attributes:
        name: `"add"` for ATen's operator and for that of the same name among prims; `"add.Tensor"` for one overload of which other facts
            hold, whose row stands in the operator's stead.
        is_view: the result is the first operand's memory under another layout.
        is_identity: the result has the operand's elements in the same places.
        is_reshape: the result has the operand's elements in the same order, under another shape.
        is_permutation: the result has the operand's dimensions in another order, and nothing else of it changes.
        is_uninitialized: the result may hold anything.
        is_elementwise: every element is computed from a few of the operands' elements, though no tag says so.
        is_reduction: a reduction, or a choice of elements, that generated code computes where its operands lie.
        is_filled: the result is filled with one number, and of the operand only the shape counts.
        is_cheap: generated code computes an element by the way, so it may do so twice.
        is_exact: nothing is rounded.
        is_rounded_once: every element is rounded once, and in one way only.
        is_foldable: the result is the same on every device, so it may be computed at compile time.
        is_comparison: compares two operands, element by element.
        is_extreme: an extreme or a median of the operand's elements, whose gradient compares them with it.
        counts_from_storage: an offset counts from where the storage of the operand begins, not the operand.
        reads_strides: the operands' strides are part of what is computed, or decide which kernel can run.
        replaces_part: the result is the first operand but for a part, which is the second.
        has_racing_stores: stores at positions from data; accelerators leave open which store wins where positions are equal.
        is_size_query: the result is a size, a stride or an offset of the operand.
        is_no_op: compiled programs leave the call out: a promise about sizes, whose bounds our symbols already carry, or what orders
            calls with effects in torch's graphs, which ours keep in order by themselves.
        decision: what the operands' order decides, so that rounding them would show. `selects`: the results are elements that their order
            has selected, or where those lie. `moves`: they are elements from where the call is told. `compares`: elements are compared
            with each other or with another operand's, or quantized.
        is_plumbing: moves data about, so it names a kernel only if that does nothing else.
        is_batch_invariant: moves, selects, orders or draws elements, and adds or multiplies none: what a row gives is the same in every
            batch. Sums, products and all that is built from them are not: kernels choose blocks by sizes.
        decomposition: who takes the operator apart before lowering. `core`: torch's core table does, if the operator is in it.
            `torch`: torch does, in a decomposition that the core table lacks. `none`: nobody, because the fused kernel beats what
            it would become, or because the operator has a lowering of its own.
        norm: what is normalized: the channels of a batch, groups of them, or rows. `batch gradient` is the gradient of `batch`.
    """

    name: str
    is_view: bool = False
    is_identity: bool = False
    is_reshape: bool = False
    is_permutation: bool = False
    is_uninitialized: bool = False
    is_elementwise: bool = False
    is_reduction: bool = False
    is_filled: bool = False
    is_cheap: bool = False
    is_exact: bool = False
    is_rounded_once: bool = False
    is_foldable: bool = False
    is_comparison: bool = False
    is_extreme: bool = False
    counts_from_storage: bool = False
    reads_strides: bool = False
    replaces_part: bool = False
    has_racing_stores: bool = False
    is_size_query: bool = False
    is_no_op: bool = False
    decision: Decision = ""
    decomposition: Decomposition = "core"
    norm: Norm = ""
    is_plumbing: bool = False
    is_batch_invariant: bool = False
