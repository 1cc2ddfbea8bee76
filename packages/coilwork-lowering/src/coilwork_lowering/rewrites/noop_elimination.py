"""Rewrites that eliminate calls whose result is one of their operands."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from coilwork_ir.operators import OpInfo, list_operators
from coilwork_ir.scalar import is_lossless
from coilwork_lowering.building.values import get_dtype
from coilwork_lowering.facts.alias_analysis import is_returned, view_source
from coilwork_lowering.rewrites.rewrite import (
    Condition,
    Match,
    Pattern,
    Rewrite,
    call,
    either,
    equals,
    like_result,
    tensor,
    value,
)
from coilwork_lowering.torch_compat.sizes import is_surely

aten = torch.ops.aten
_X: Final = tensor("x")
_LIKE: Final = like_result("x")


def _x(x: Any, **rest: Any) -> Any:
    return x


def _drops_nothing(match: Match) -> bool:
    """Tell if adding the number changes no bit: -0.0 + 0 is 0.0, but x + -0.0 is x."""
    number = match.captures["number"]
    if type(number) not in (int, float) or number != 0:
        return False
    if not match.result.dtype.is_floating_point and not match.result.dtype.is_complex:
        return True
    adds = match.vocabulary.read(match.root)
    is_sum = adds is not None and adds.op == "aten.add.Tensor"
    return (math.copysign(1.0, number) < 0) is is_sum and not match.result.dtype.is_complex


def _widens(match: Match) -> bool:
    narrow, wide = match.value("x").dtype, match.captures["wide"]
    return is_lossless(get_dtype(narrow), get_dtype(wide))


def _sign_is_kept(match: Match) -> bool:
    """Tell whether the operand is no conjugate or negative view, which memory does not hold; or nobody views
    the copy, to read its memory, or is handed it.
    """
    operand, copy = match.value("x"), match.result
    alike = (operand.is_conj(), operand.is_neg()) == (copy.is_conj(), copy.is_neg())
    return alike or all(user.op != "output" and view_source(user) is None for user in match.root.users)


def _keeps_no_more_memory(match: Match) -> bool:
    """Tell if nobody is handed the result, or its operand fills the memory that it is in: whoever has a part
    of larger memory keeps all of it.
    """
    operand = match.value("x")
    if operand.layout != torch.strided or not is_returned(match.root):
        return True
    return is_surely(operand.untyped_storage().nbytes() <= operand.numel() * operand.element_size())


_KEEPS_NO_MORE_MEMORY: Final = Condition(name="nobody is handed a part", holds=_keeps_no_more_memory)

# Views that step through all of their operand's memory or part of it from the same start: such a view that
# has the shape and strides of the operand is the operand.
_VIEWS: Final[tuple[Pattern, ...]] = (
    call("aten.view.default aten._unsafe_view.default", self=_X, size=value("size")),
    call("aten.permute.default", self=_X, dims=value("dims")),
    call("aten.expand.default", self=_X, size=value("size"), implicit=value("implicit")),
    call("aten.transpose.int", self=_X, dim0=value("dim0"), dim1=value("dim1")),
    call("aten.squeeze.dim aten.squeeze.dims", self=_X, dim=value("dim")),
    call("aten.squeeze.default", self=_X),
    call(
        "aten.slice.Tensor",
        self=_X,
        dim=value("dim"),
        start=value("start"),
        end=value("end"),
        step=value("step"),
    ),
)


def _match_views(inner: Pattern) -> tuple[Pattern, ...]:
    """Views of `inner` that lose nothing."""
    return (
        call("aten.view.default", self=inner, size=value("outer_size")),
        call("aten.permute.default", self=inner, dims=value("outer_dims")),
        call("aten.transpose.int", self=inner, dim0=value("outer_dim0"), dim1=value("outer_dim1")),
        call("aten.t.default", self=inner),
        call("aten.unsqueeze.default", self=inner, dim=value("outer_dim")),
        call("aten.squeeze.dim aten.squeeze.dims", self=inner, dim=value("outer_dim")),
    )


_INNER: Final = (
    call("aten.view.default", self=_X, size=value("size"), shared=True),
    call("aten.permute.default", self=_X, dims=value("dims"), shared=True),
    call("aten.transpose.int", self=_X, dim0=value("dim0"), dim1=value("dim1"), shared=True),
    call("aten.t.default", self=_X, shared=True),
    call("aten.unsqueeze.default", self=_X, dim=value("dim"), shared=True),
    call("aten.squeeze.dim aten.squeeze.dims", self=_X, dim=value("dim"), shared=True),
)

TIMES_ONE: Final = Rewrite(
    name="times-one",
    doc=(
        "A product with, or a quotient by, 1 that changes neither type nor strides is its operand, NaN and "
        "-0.0 included."
    ),
    pattern=either(
        call("aten.mul.Tensor", self=_X, other=value("number")),
        call("aten.div.Tensor", self=_X, other=value("number")),
        call("aten.pow.Tensor_Scalar", self=_X, exponent=value("number")),
    ),
    replacement=_x,
    conditions=(equals("number", 1), _LIKE, _KEEPS_NO_MORE_MEMORY),
)

PLUS_ZERO: Final = Rewrite(
    name="plus-zero",
    doc=(
        "A sum with 0 is its operand for integers; of floats x - 0.0 and x + -0.0 are, while x + 0.0 is not "
        "for x = -0.0."
    ),
    pattern=either(
        call("aten.add.Tensor", self=_X, other=value("number")),
        call("aten.sub.Tensor", self=_X, other=value("number")),
    ),
    replacement=_x,
    conditions=(Condition(name="number is neutral", holds=_drops_nothing), _LIKE, _KEEPS_NO_MORE_MEMORY),
)

SAME_TYPE: Final = Rewrite(
    name="same-type",
    doc="A conversion to the type that its operand has.",
    pattern=call("prims.convert_element_type.default", a=_X, dtype=value("dtype")),
    replacement=_x,
    conditions=(_LIKE,),
)

WIDER_AND_BACK: Final = Rewrite(
    name="wider-and-back",
    doc="A conversion to a type that holds every value, and back.",
    pattern=call(
        "prims.convert_element_type.default",
        a=call("prims.convert_element_type.default", a=_X, dtype=value("wide"), shared=True),
        dtype=value("narrow"),
    ),
    replacement=_x,
    conditions=(Condition(name="wide holds every x", holds=_widens), _LIKE, _KEEPS_NO_MORE_MEMORY),
)

CLONE: Final = Rewrite(
    name="clone",
    doc=(
        "A copy with the strides of its operand that nobody writes into. If it is returned, its operand "
        "fills the memory that it is in."
    ),
    pattern=call("aten.clone.default", self=_X, memory_format=value("memory_format")),
    replacement=_x,
    conditions=(
        Condition(name="nobody views a conjugate", holds=_sign_is_kept),
        _LIKE,
        _KEEPS_NO_MORE_MEMORY,
    ),
)

SAME_VIEW: Final = Rewrite(
    name="same-view",
    doc="A view with the shape and strides of its operand, and the same start.",
    pattern=either(*_VIEWS),
    replacement=_x,
    conditions=(_LIKE,),
)

VIEW_AND_BACK: Final = Rewrite(
    name="view-and-back",
    doc="A transposition, permutation or view, and another that undoes it.",
    pattern=either(*_match_views(either(*_INNER))),
    replacement=_x,
    conditions=(_LIKE,),
)

PERMUTED_TWICE: Final = Rewrite(
    name="permuted-twice",
    doc="One permutation for two.",
    pattern=call(
        "aten.permute.default",
        self=call("aten.permute.default", self=_X, dims=value("inner")),
        dims=value("outer"),
    ),
    replacement=lambda x, inner, outer: aten.permute.default(x, [inner[k] for k in outer]),
)


def _is_idempotent(info: OpInfo) -> bool:
    return info.is_idempotent


def _calls_same_target(match: Match) -> bool:
    return match.captures["x"].target is match.root.target


TWICE_IS_ONCE: Final = Rewrite(
    name="twice-is-once",
    doc="The absolute value of an absolute value, a ReLU of a ReLU: the inner one.",
    pattern=call(" ".join(f"aten.{name}.default" for name in list_operators(_is_idempotent)), self=_X),
    replacement=_x,
    conditions=(Condition(name="x is a call of the same", holds=_calls_same_target), _LIKE),
)

TWICE_IS_NEVER: Final = Rewrite(
    name="twice-is-never",
    doc="The negative of a negative; the complement of a complement.",
    pattern=either(
        *(
            call(f"aten.{op}.default", self=call(f"aten.{op}.default", self=_X, shared=True))
            for op in ("neg", "bitwise_not")
        )
    ),
    replacement=_x,
    conditions=(_LIKE, _KEEPS_NO_MORE_MEMORY),
)


NOOPS: Final = (
    TIMES_ONE,
    PLUS_ZERO,
    SAME_TYPE,
    WIDER_AND_BACK,
    CLONE,
    SAME_VIEW,
    VIEW_AND_BACK,
    PERMUTED_TWICE,
    TWICE_IS_ONCE,
    TWICE_IS_NEVER,
)
