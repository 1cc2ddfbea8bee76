"""Facts about one ATen operator, which every package reads, and no package states a second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Decision = Literal["", "selects", "moves", "compares"]
Decomposition = Literal["core", "torch", "none"]
ScalarTypes = Literal["promoted", "float", "bool"]
IndexFault = Literal["IndexError", "RuntimeError"]
Norm = Literal["", "batch", "batch gradient", "group", "layer"]
TypeClass = Literal[
    "float", "wide_float", "integer", "complex", "wide_complex", "bool", "uint8", "int32", "int64"
]
"""Types of elements: `float` are those of 16 to 64 bits, `wide_float` those of 32 and 64, `integer` those of
which 8 bits at most are unsigned, `wide_complex` those of two wide floats.
"""
Relation = Literal["ne", "ge", "gt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerLimits:
    """Operands that eager's kernels of one operator take. A compiled program refuses others with eager's
    own error.

    Attributes:
        types: of the first tensor among the arguments, or of the result, if it is made from no tensor; empty
            if all are taken.
        types_on_cpus: likewise, of the kernels for CPUs.
        types_everywhere: of every tensor.
        same_types: the arguments that have one type.
        index_types: an argument that holds positions, or a list of such, and their types.
        rejects_wide_unsigned: kernels for CPUs take no unsigned integers of more than 8 bits, some of them
            only in part.
        makes_no_wide_unsigned: kernels for CPUs give no unsigned integers of more than 8 bits, though they
            may take some.
        is_typed_by_result: numbers between others, which may be tensors: the result's type alone counts.
        needs_alike_float8: floats of 8 bits are taken beside their own type only, as they are promoted to
            none.
        rejects_float8_powers: takes no powers of two of 8 bits, which have no zero and no sign.
        takes_integer_gradients: a gradient that is computed of integers, too.
        takes_other_gradients: a gradient whose incoming one may have another float type than the operand; the
            result has the operand's.
        stored_numbers: arguments that are converted to the result's type, whatever the numbers are.
        computed_numbers: those that are converted to the type that it is computed in, `f32` for 16 bits.
        promoted_numbers: those that are converted to a type that they take part in finding.
        scaling_numbers: those that scale an operand: fractions do not scale integers.
        required_number: what else is asked of a number: `("beta", "ge", 0)`.
    """

    types: tuple[TypeClass, ...] = ()
    types_on_cpus: tuple[TypeClass, ...] = ()
    types_everywhere: tuple[TypeClass, ...] = ()
    same_types: tuple[str, ...] = ()
    index_types: tuple[str, tuple[TypeClass, ...]] | None = None
    rejects_wide_unsigned: bool = False
    makes_no_wide_unsigned: bool = False
    is_typed_by_result: bool = False
    needs_alike_float8: bool = False
    rejects_float8_powers: bool = False
    takes_integer_gradients: bool = False
    takes_other_gradients: bool = False
    stored_numbers: tuple[str, ...] = ()
    computed_numbers: tuple[str, ...] = ()
    promoted_numbers: tuple[str, ...] = ()
    scaling_numbers: tuple[str, ...] = ()
    required_number: tuple[str, Relation, int] | None = None

    @property
    def concern_types(self) -> bool:
        """True if kernels refuse some types of 16 bits or more."""
        return (
            any((self.types, self.types_on_cpus, self.types_everywhere, self.same_types, self.index_types))
            or self.rejects_wide_unsigned
            or self.makes_no_wide_unsigned
        )

    @property
    def converted_numbers(self) -> tuple[str, ...]:
        """The arguments that are converted."""
        return (*self.stored_numbers, *self.computed_numbers, *self.promoted_numbers)


NO_LIMITS: Final = EagerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRoles:
    """The arguments of an operator that multiplies by the part that they play, and what it does besides.

    Attributes:
        left, right: the factors.
        added: what is added to the product, weighted by `alpha`, times `beta`; empty if nothing is.
        factors: the types of the factors: the result's, signed bytes, or floats of 8 bits.
        is_of_vector: the right factor is a vector, and the operands' strides decide how the result lies.
        has_activation: `use_gelu` says what is done to the sums.
        has_scales: `scale_a` and `scale_b` scale the sums.
        ends: where groups of rows, columns or terms end, each of which is multiplied by itself; empty if
            there are none.
    """

    left: str = "self"
    right: str = "mat2"
    added: str = ""
    factors: Literal["result", "bytes", "float8"] = "result"
    is_of_vector: bool = False
    has_activation: bool = False
    has_scales: bool = False
    ends: str = ""

    @property
    def is_plain(self) -> bool:
        """True for a product of matrices of the result's type, which weighted summands are added
        to at most.
        """
        return self == ProductRoles(left=self.left, right=self.right, added=self.added)


@dataclass(frozen=True, slots=True)
class OpInfo:
    """The facts about one operator. A fact that is left out does not hold.

    torch says for itself which operators are pointwise, random or in place (`torch.Tag`, schemas). Only what
    it does not say stands here.

    Attributes:
        name: `"add"` for ATen's operator and for that of the same name among prims; `"add.Tensor"` for one
            overload of which other facts hold, whose row stands in the operator's stead; `"mkldnn.add"` for
            another library's operator.
        scalar_op: the scalar op (`coilwork_ir.ops`) that makes every element of the result of one of each
            operand. The row is then the operator's lowering, too.
        scalar_types: the type that it computes in. `promoted`: the operands' common one; `float`: that, and a
            float for integers; `bool`: operands have their common one, and the result is a truth value.
        overloads: the overloads that do so.
        is_view: the result is the first operand's memory under another layout.
        is_identity: the result has the operand's elements in the same places.
        is_reshape: the result has the operand's elements in the same order, under another shape.
        is_permutation: the result has the operand's dimensions in another order, and nothing else of it
            changes.
        is_uninitialized: the result may hold anything.
        is_elementwise: every element is computed from a few of the operands' elements, though no tag says so.
        is_reduction: a reduction, or a choice of elements, that generated code computes where its operands
            lie.
        is_filled: the result is filled with one number, and of the operand only the shape counts.
        is_cheap: generated code computes an element by the way, so it may do so twice.
        is_exact: nothing is rounded.
        is_rounded_once: every element is rounded once, and in one way only.
        is_foldable: the result is the same on every device, so it may be computed at compile time.
        is_comparison: compares two operands, element by element.
        is_conversion: the result has the operand's elements in another type.
        is_idempotent: done to its own result, it changes nothing.
        is_extreme: an extreme or a median of the operand's elements, whose gradient compares them with it.
        is_contraction: a product, a convolution or an attention, which libraries compute, or a gradient of
            one: its calls write into given memory where they can.
        product: the parts of its arguments, if it is a product that becomes a contraction.
        is_attention: an attention, fused, or its gradient.
        has_fresh_result: the results of the overload `default` share no memory with anything. Attention is
            left out: its gradients may be woven into one tensor, its generator states views of another.
        counts_from_storage: an offset counts from where the storage of the operand begins, not the operand.
        reads_strides: the operands' strides are part of what is computed, or decide which kernel can run.
        replaces_part: the result is the first operand but for a part, which is the second.
        has_racing_stores: stores at positions from data; accelerators leave open which store wins where
            positions are equal.
        counts_from_start: negative positions do not count from the end.
        index_error: what eager's kernels raise for a position out of range.
        rejects_zero_divisor: eager's kernels for CPUs refuse to divide integers by 0.
        makes_quantized: the result is quantized, while torch captures it as one of `float32`.
        is_size_query: the result is a size, a stride or an offset of the operand.
        is_no_op: compiled programs leave the call out: a promise about sizes, whose bounds our symbols
            already carry, or what orders calls with effects in torch's graphs, which ours keep in order by
            themselves.
        is_plumbing: moves data about, so it names a kernel only if that does nothing else.
        is_batch_invariant: moves, selects, orders or draws elements, and adds or multiplies none: what a row
            gives is the same in every batch. Sums, products and all that is built from them are not: kernels
            choose blocks by sizes.
        decision: what the operands' order decides, so that rounding them would show. `selects`: the results
            are elements that their order has selected, or where those lie. `moves`: they are elements from
            where the call is told. `compares`: elements are compared with each other or with another
            operand's, or quantized.
        decomposition: who takes the operator apart before lowering. `core`: torch's core table does, if the
            operator is in it. `torch`: torch does, in a decomposition that the core table lacks. `none`:
            nobody, because the fused kernel beats what it would become, or because the operator has a
            lowering of its own.
        norm: what is normalized: the channels of a batch, groups of them, or rows. `batch gradient` is the
            gradient of `batch`.
        takes_float8: eager has kernels for floats of 8 bits, which it moves, fills, compares or converts, and
            of which it multiplies scaled matrices only.
        packed_argument: position of an argument that lies in blocks of the library's own, and has no strides.
        limits: what eager's kernels take.
    """

    name: str
    scalar_op: str = ""
    scalar_types: ScalarTypes = "promoted"
    overloads: tuple[str, ...] = ("default",)
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
    is_conversion: bool = False
    is_idempotent: bool = False
    is_extreme: bool = False
    is_contraction: bool = False
    product: ProductRoles | None = None
    is_attention: bool = False
    has_fresh_result: bool = False
    counts_from_storage: bool = False
    reads_strides: bool = False
    replaces_part: bool = False
    has_racing_stores: bool = False
    counts_from_start: bool = False
    index_error: IndexFault = "IndexError"
    rejects_zero_divisor: bool = False
    makes_quantized: bool = False
    is_size_query: bool = False
    is_no_op: bool = False
    is_plumbing: bool = False
    is_batch_invariant: bool = False
    decision: Decision = ""
    decomposition: Decomposition = "core"
    norm: Norm = ""
    takes_float8: bool = False
    packed_argument: int | None = None
    limits: EagerLimits = NO_LIMITS
