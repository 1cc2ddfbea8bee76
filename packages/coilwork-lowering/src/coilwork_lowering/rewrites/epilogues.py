"""Rewrites that fold what follows a product or a gradient into the call that computes it.

A bias becomes part of `addmm`. ReLU, and GELU in its tanh form, become `aten._addmm_activation`, which on
NVIDIA GPUs is an epilogue of cuBLASLt; a kernel of its own would read and write the whole result again, or
take the time of a launch where that is small. (On CPUs that operator's GELU is the exact one, so it is used
on GPUs alone.) An embedding's gradient is accumulated into the gradient that it is added to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CUDA, PROCESSOR, has_trait
from coilwork_lowering.facts.fx_nodes import is_pointwise
from coilwork_lowering.rewrites.rewrite import (
    Call,
    Condition,
    Match,
    Pattern,
    Rewrite,
    call,
    dtype_among,
    either,
    equals,
    has_rank,
    same_dtype,
    same_sizes,
    tensor,
    value,
)
from coilwork_lowering.torch_compat.sizes import is_surely

# bias


aten = torch.ops.aten
_MM: Final = call("aten.mm.default", self=tensor("left"), mat2=tensor("right"))


def _is_stored(match: Match) -> bool:
    """Tell if the result is needed in memory: else its readers can fold the addition or activation."""
    return not all(is_pointwise(user) for user in match.root.users)


def _has_column_bias(match: Match) -> bool:
    """Tell if the bias, where there is one, has a number for each column of the product."""
    if "bias" not in match.captures:
        return True
    return same_sizes(match.value("bias").shape, match.value("right").shape[1:])


def _is_on_floats(match: Match) -> bool:
    return bool(match.result.dtype.is_floating_point)


def _call_addmm(left: Any, right: Any, bias: Any, size: Any = None) -> Any:
    product = aten.addmm.default(bias, left, right)
    return product if size is None else aten.view.default(product, size)


ADD_TO_ADDMM: Final = Rewrite(
    name="add-to-addmm",
    doc=(
        "A product and a bias per column, one call: kernels of products add it for free, where no generated "
        "kernel would."
    ),
    pattern=either(
        call("aten.add.Tensor", self=_MM, other=tensor("bias"), commutes=("self", "other")),
        call(
            "aten.add.Tensor",
            self=call("aten.view.default", self=_MM, size=value("size")),
            other=tensor("bias"),
            commutes=("self", "other"),
        ),
    ),
    replacement=_call_addmm,
    conditions=(
        has_rank("bias", 1),
        same_dtype("left", "right", "bias"),
        Condition(name="bias has one number per column", holds=_has_column_bias),
        Condition(name="floats", holds=_is_on_floats),
        Condition(name="the sum is needed in memory", holds=_is_stored),
    ),
    inexact=True,
)

NOTHING_TO_ADD: Final = Rewrite(
    name="nothing-to-add",
    doc=(
        "A product to which 0 times something is added, NaN or not: ATen reads nothing of that either, so "
        "nobody need make it."
    ),
    pattern=either(
        call(
            "aten.addmm.default",
            self=tensor("bias"),
            mat1=tensor("left"),
            mat2=tensor("right"),
            beta=value("beta"),
        ),
        call(
            "aten.baddbmm.default",
            self=tensor("bias"),
            batch1=tensor("lefts"),
            batch2=tensor("rights"),
            beta=value("beta"),
        ),
    ),
    replacement=lambda left=None, right=None, lefts=None, rights=None, **rest: (
        aten.bmm.default(lefts, rights) if left is None else aten.mm.default(left, right)
    ),
    conditions=(equals("beta", 0),),
)

PRODUCTS: Final = (ADD_TO_ADDMM, NOTHING_TO_ADD)


# activation


WHOLE_VECTOR: Final = 8
"""Numbers of which rows have a multiple: operands and results of others are padded first, where that pays
(aten_layouts/row_padding.py).
"""

_PRODUCT: Final = either(
    call("aten.addmm.default", self=tensor("bias"), mat1=tensor("left"), mat2=tensor("right")),
    call("aten.mm.default", self=tensor("left"), mat2=tensor("right")),
)


def _match_product(named: str = "") -> tuple[Pattern, ...]:
    """Return the product's result, perhaps under another shape."""
    viewed = call("aten.view.default", self=_PRODUCT, size=value("size"), named=named)
    return (viewed, *(_name_product(option, named) for option in _PRODUCT.options))


def _name_product(product: Pattern, named: str) -> Call:
    assert isinstance(product, Call)
    return Call(ops=product.ops, arguments=product.arguments, named=named)


def _match_times(left: Pattern, right: Pattern) -> Call:
    return call("aten.mul.Tensor", self=left, other=right, commutes=("self", "other"))


def _match_plus(left: Pattern, right: Pattern) -> Call:
    return call("aten.add.Tensor", self=left, other=right, commutes=("self", "other"))


def _match_tanh_gelu(x: Pattern) -> Call:
    """`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`, as torch and Hugging Face's `gelu_new`
    and `gelu_fast` spell it.
    """
    again, kappa, root = tensor("x"), value("kappa"), value("root")
    cube = either(
        call("aten.pow.Tensor_Scalar", self=again, exponent=value("three")),
        _match_times(_match_times(again, again), again),
    )
    inside = either(
        _match_times(_match_plus(again, _match_times(cube, kappa)), root),
        _match_times(
            _match_times(again, root),
            _match_plus(_match_times(_match_times(again, kappa), again), value("one")),
        ),
    )
    return _match_times(
        _match_times(x, value("half")), _match_plus(call("aten.tanh.default", self=inside), value("one_more"))
    )


def _match_widened(x: Pattern) -> Call:
    return call("prims.convert_element_type.default", a=x, dtype=value("wide"), named="x")


def _is_close(name: str, wanted: float) -> Condition:
    def holds(match: Match) -> bool:
        number = match.captures[name]
        return type(number) is float and math.isclose(number, wanted, rel_tol=1e-6)

    return Condition(name=f"{name} is {wanted:.6f}", holds=holds)


def _has_whole_vectors(match: Match) -> bool:
    return all(bool(is_surely(size % WHOLE_VECTOR == 0)) for size in match.value("right").shape)


def _has_operand_type(match: Match) -> bool:
    wide = match.captures.get("wide", torch.float32)
    return bool(wide is torch.float32 and match.result.dtype == match.value("left").dtype)


def _is_cube(match: Match) -> bool:
    return bool(match.captures.get("three", 3) == 3)


def _is_one(match: Match) -> bool:
    return bool(match.captures.get("one", 1) == 1)


ON_NVIDIA: Final = Condition(
    name="on an NVIDIA GPU",
    holds=lambda match: has_trait(match.value("left").device.type, ATEN_CUDA) and torch.version.hip is None,
)
_CONDITIONS: Final = (
    ON_NVIDIA,
    same_dtype("left", "right", "bias"),
    Condition(name="bias has one number per column", holds=_has_column_bias),
    Condition(name="rows of whole vectors", holds=_has_whole_vectors),
    Condition(name="the activation is needed in memory", holds=_is_stored),
)


def _make_activated_product(*, gelu: bool) -> Callable[..., Any]:
    def call_activated_product(left: Any, right: Any, bias: Any = None, size: Any = None, **rest: Any) -> Any:
        # of what is added 0 times nothing is read: any row does
        row = aten.select.int(right, 0, 0) if bias is None else bias
        product = aten._addmm_activation.default(row, left, right, beta=int(bias is not None), use_gelu=gelu)
        return product if size is None else aten.view.default(product, size)

    return call_activated_product


RELU_INTO_PRODUCT: Final = Rewrite(
    name="relu-into-product",
    doc="A ReLU of a product, on GPUs one call: the library does it before sums leave the chip.",
    pattern=call("aten.relu.default", self=either(*_match_product())),
    replacement=_make_activated_product(gelu=False),
    conditions=(*_CONDITIONS, dtype_among("left", torch.float32, torch.bfloat16, torch.float16)),
    inexact=True,
)

_GELUS: Final = tuple(_match_tanh_gelu(x) for x in _match_product("x"))
GELU_INTO_PRODUCT: Final = Rewrite(
    name="gelu-into-product",
    doc=(
        "The same with GELU's tanh form, where sums are kept in 16 bits: the library's tanh is not exact to "
        "32."
    ),
    pattern=either(
        *_GELUS,
        call(
            "prims.convert_element_type.default",
            a=either(*(_match_tanh_gelu(_match_widened(x)) for x in _match_product())),
            dtype=value("narrow"),
        ),
    ),
    replacement=_make_activated_product(gelu=True),
    conditions=(
        *_CONDITIONS,
        dtype_among("left", torch.bfloat16, torch.float16),
        equals("half", 0.5),
        equals("one_more", 1),
        _is_close("kappa", 0.044715),
        _is_close("root", math.sqrt(2 / math.pi)),
        Condition(name="a third power", holds=_is_cube),
        Condition(name="one is added", holds=_is_one),
        Condition(name="in the product's type", holds=_has_operand_type),
    ),
    inexact=True,
)

ACTIVATIONS: Final = (RELU_INTO_PRODUCT, GELU_INTO_PRODUCT)


# embedding gradient


def _is_on_cpu(match: Match) -> bool:
    # where rows are sorted first, one kernel sums them and adds the other gradient
    return bool(has_trait(match.result.device.type, PROCESSOR))


def _is_whole_table(match: Match) -> bool:
    width = match.value("gradient").shape[-1]
    return same_sizes(match.value("other").shape, (match.captures["rows"], width))


def _accumulate_into_other(other: Any, gradient: Any, indices: Any, **_: Any) -> Any:
    rows = aten.reshape.default(indices, [-1])
    return aten.index_add.default(
        other, 0, rows, aten.reshape.default(gradient, [-1, gradient.value.shape[-1]])
    )


GRADIENT_INTO_ANOTHER: Final = Rewrite(
    name="gradient-into-another",
    doc=(
        "The gradient of an embedding whose table is used elsewhere, too, is added to the other gradient, "
        "row by row as they occur: no table of zeros."
    ),
    pattern=call(
        "aten.add.Tensor",
        self=call(
            "aten.embedding_dense_backward.default",
            grad_output=tensor("gradient"),
            indices=tensor("indices"),
            num_weights=value("rows"),
            padding_idx=value("padding"),
            scale_grad_by_freq=value("scaled"),
        ),
        other=tensor("other"),
        commutes=("self", "other"),
    ),
    replacement=_accumulate_into_other,
    conditions=(
        equals("padding", -1),
        # sums in 16 bits would round after each row
        dtype_among("gradient", torch.float32, torch.float64),
        Condition(name="not scaled", holds=lambda match: match.captures["scaled"] is False),
        same_dtype("gradient", "other"),
        Condition(name="another gradient of the whole table", holds=_is_whole_table),
        Condition(name="on a CPU", holds=_is_on_cpu),
    ),
    inexact=True,
)

EMBEDDINGS: Final = (GRADIENT_INTO_ANOTHER,)
