"""Matrix products and an activation of their sums, as one call, where a GPU's library computes it before sums
leave the chip.

`aten._addmm_activation` is that call: ReLU, or GELU by its tanh form, which on NVIDIA GPUs is an epilogue of
cuBLASLt. (On a CPU its GELU is the exact one, so it stands for the tanh form on GPUs alone.) A kernel for the
activation would read and write the whole result again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CUDA, has_trait
from coilwork_lowering.facts.generated import is_computed
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
    same_dtype,
    same_sizes,
    tensor,
    value,
)
from coilwork_lowering.torch_compat.sizes import hint_of, surely

aten = torch.ops.aten

WHOLE_VECTOR: Final = 8
"""Numbers of which rows have a multiple: operands and results of others are padded first, where that pays
(layout/padding.py).
"""

_PRODUCT: Final = either(
    call("aten.addmm.default", self=tensor("bias"), mat1=tensor("left"), mat2=tensor("right")),
    call("aten.mm.default", self=tensor("left"), mat2=tensor("right")),
)


def _match_product(named: str = "") -> tuple[Pattern, ...]:
    """The product's result, perhaps under another shape."""
    viewed = call("aten.view.default", self=_PRODUCT, size=value("size"), named=named)
    return (viewed, *(_name_product(option, named) for option in _PRODUCT.options))


def _name_product(product: Pattern, named: str) -> Call:
    assert isinstance(product, Call)
    return Call(ops=product.ops, arguments=product.arguments, named=named)


def _times(left: Pattern, right: Pattern) -> Call:
    return call("aten.mul.Tensor", self=left, other=right, commutes=("self", "other"))


def _plus(left: Pattern, right: Pattern) -> Call:
    return call("aten.add.Tensor", self=left, other=right, commutes=("self", "other"))


def _tanh_form(x: Pattern) -> Call:
    """`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`, as torch and Hugging Face's `gelu_new`
    and `gelu_fast` spell it.
    """
    again, kappa, root = tensor("x"), value("kappa"), value("root")
    cube = either(
        call("aten.pow.Tensor_Scalar", self=again, exponent=value("three")),
        _times(_times(again, again), again),
    )
    inside = either(
        _times(_plus(again, _times(cube, kappa)), root),
        _times(_times(again, root), _plus(_times(_times(again, kappa), again), value("one"))),
    )
    return _times(_times(x, value("half")), _plus(call("aten.tanh.default", self=inside), value("one_more")))


def _wide(x: Pattern) -> Call:
    return call("prims.convert_element_type.default", a=x, dtype=value("wide"), named="x")


def _close(name: str, wanted: float) -> Condition:
    def holds(match: Match) -> bool:
        found = match.captures[name]
        return type(found) is float and math.isclose(found, wanted, rel_tol=1e-6)

    return Condition(name=f"{name} is {wanted:.6f}", holds=holds)


def _is_stored(match: Match) -> bool:
    return not all(is_computed(user) for user in match.root.users)


def _one_per_column(match: Match) -> bool:
    if "bias" not in match.captures:
        return True
    return same_sizes(match.value("bias").shape, match.value("right").shape[1:])


def _has_whole_vectors(match: Match) -> bool:
    return all(bool(surely(size % WHOLE_VECTOR == 0)) for size in match.value("right").shape)


def _is_large(match: Match) -> bool:
    """Sizes that are not known count as large."""
    sizes = [hint_of(size) for size in match.result.shape]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return True
    size = math.prod(known) * match.result.element_size()
    return bool(size >= match.machine("left").libraries.epilogue_bytes)


def _back_in_its_type(match: Match) -> bool:
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
LARGE: Final = Condition(name="the result is large", holds=_is_large)
_CONDITIONS: Final = (
    ON_NVIDIA,
    LARGE,
    same_dtype("left", "right", "bias"),
    Condition(name="bias has one number per column", holds=_one_per_column),
    Condition(name="rows of whole vectors", holds=_has_whole_vectors),
    Condition(name="the activation is needed in memory", holds=_is_stored),
)


def _into_product(*, gelu: bool) -> Callable[..., Any]:
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
    replacement=_into_product(gelu=False),
    conditions=(*_CONDITIONS, dtype_among("left", torch.float32, torch.bfloat16, torch.float16)),
    inexact=True,
)

_GELUS: Final = tuple(_tanh_form(x) for x in _match_product("x"))
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
            a=either(*(_tanh_form(_wide(x)) for x in _match_product())),
            dtype=value("narrow"),
        ),
    ),
    replacement=_into_product(gelu=True),
    conditions=(
        *_CONDITIONS,
        dtype_among("left", torch.bfloat16, torch.float16),
        equals("half", 0.5),
        equals("one_more", 1),
        _close("kappa", 0.044715),
        _close("root", math.sqrt(2 / math.pi)),
        Condition(name="a third power", holds=_is_cube),
        Condition(name="one is added", holds=_is_one),
        Condition(name="in the product's type", holds=_back_in_its_type),
    ),
    inexact=True,
)

ACTIVATIONS: Final = (RELU_INTO_PRODUCT, GELU_INTO_PRODUCT)
