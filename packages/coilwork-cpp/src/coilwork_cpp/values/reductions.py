"""Reductions in several lanes: start values, updates, and the fold of the lanes.

A reduction's *state* is one variable per component: the value, and for `argmin` and `argmax` its position
too. While a loop runs, each component is an array of lanes; lane `l` takes every L-th element. At the end of
a block the lanes are folded, always in the same order, into the total, so results depend on neither threads
nor vector width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.values.element_types import compute_type, convert, make_literal
from coilwork_cpp.values.ops import apply
from coilwork_ir.dtypes import DType
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Reduce
from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Element,
    For,
    Literal,
    Name,
    Select,
    Statement,
)

_SIMPLE: Final[Mapping[str, str]] = {
    "sum": "add",
    "prod": "mul",
    "min": "minimum",
    "max": "maximum",
    "any": "bitwise_or",
    "all": "bitwise_and",
    "xor_sum": "bitwise_xor",
}
SUPPORTED: Final = frozenset({*_SIMPLE, "argmin", "argmax"})
# What makes the minimum of booleans.
_CONJUNCTIONS: Final = ("all", "min", "prod")
_NO_POSITION: Final = Literal("9223372036854775807ll")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One variable of a reduction's state: its C++ type and start value, in the lanes and in the total."""

    suffix: str
    type: str
    total_type: str
    start: Code
    total_start: Code


def is_rounded(reduce: Reduce) -> bool:
    """Tell if the order of combination changes the result: for sums and products of floats."""
    return reduce.kind in ("sum", "prod") and reduce.operands[0].dtype.is_float


def is_positional(reduce: Reduce) -> bool:
    """True for argmin and argmax."""
    return reduce.kind in ("argmin", "argmax")


def start_value(kind: ReduceKind, dtype: DType) -> Code:
    """Return the neutral element of `kind` on `dtype` (a compute type)."""
    match kind:
        case "sum" | "xor_sum" | "any":
            return make_literal(0, dtype)
        case "prod" | "all":
            return make_literal(1, dtype)
        case "max" | "argmax":
            return _limit_value(dtype, largest=False)
        case "min" | "argmin":
            return _limit_value(dtype, largest=True)
        case _:
            raise ValueError(f"{kind} has no neutral element; expand it first")


def _limit_value(dtype: DType, *, largest: bool) -> Code:
    if dtype.is_float:
        return make_literal(float("inf") if largest else float("-inf"), dtype)
    if dtype.is_bool:
        return make_literal(largest, dtype)
    bits = 8 * dtype.itemsize
    if dtype.is_signed_integer:
        return make_literal((1 << (bits - 1)) - 1 if largest else -(1 << (bits - 1)), dtype)
    return make_literal((1 << bits) - 1 if largest else 0, dtype)


def list_components(reduce: Reduce) -> tuple[Component, ...]:
    """Return the state of `reduce`, value first.

    Totals of f32 sums and products are f64: blocks are short, so that the error does not grow with the
    length.
    """
    dtype = reduce.operands[0].dtype.compute
    lane = "u8" if dtype.is_bool else compute_type(dtype)
    total = "double" if is_rounded(reduce) else lane
    start = start_value(reduce.kind, dtype)
    total_start = start_value(reduce.kind, DType.F64) if is_rounded(reduce) else start
    value = Component(suffix="", type=lane, total_type=total, start=start, total_start=total_start)
    if not is_positional(reduce):
        return (value,)
    return value, Component(
        suffix="_at", type="i64", total_type="i64", start=_NO_POSITION, total_start=_NO_POSITION
    )


def update_state(
    reduce: Reduce, state: tuple[Code, ...], element: Code, position: Code
) -> tuple[Statement, ...]:
    """Combine `element` (of the compute type; a name or literal), at flat `position`, into `state`.

    In a loop positions ascend, so that a first extreme stays without comparing positions. Where all elements
    equal the start value no update happens: `finish` then answers position 0, which is right.
    """
    dtype = reduce.operands[0].dtype.compute
    if not is_positional(reduce):
        return (Assign(state[0], _combine(reduce, dtype, state[0], element)),)
    better = Name("better")
    masked = len(reduce.operands) > 1
    if masked:
        test: Code = Call(_precedes_function(reduce), (element, position, *state))
    else:
        order = Binary(">" if reduce.kind == "argmax" else "<", element, state[0])
        test = order
        if dtype.is_float:
            first_nan = Binary("&", Binary("!=", element, element), Binary("==", state[0], state[0]))
            test = Binary("|", order, first_nan)
    return (
        Declare("const bool", "better", test),
        Assign(state[0], Select(better, element, state[0])),
        Assign(state[1], Select(better, position, state[1])),
    )


def merge_lanes(
    reduce: Reduce, total: tuple[Name, ...], lanes: tuple[Name, ...], count: int, *, alone: bool = False
) -> tuple[Statement, ...]:
    """Fold `count` lanes (arrays) into `total`; `alone`: nothing else is combined with that."""
    dtype = reduce.operands[0].dtype.compute
    if is_rounded(reduce):
        return (Assign(total[0], Call(f"fold_{reduce.kind}<{count}>", (lanes[0],)), _operator(reduce)),)
    lane = tuple(Element(name, Name("l")) for name in lanes)
    if is_positional(reduce):
        better = Name("better")
        body: tuple[Statement, ...] = (
            Declare("const bool", "better", Call(_precedes_function(reduce), (*lane, *total))),
            Assign(total[0], Select(better, lane[0], total[0])),
            Assign(total[1], Select(better, lane[1], total[1])),
        )
        return (For("l", Literal("0"), Literal(str(count)), body),)
    folded = Call(f"fold_{_fold_name(reduce, dtype)}<{count}>", (lanes[0],))
    return (Assign(total[0], folded if alone else _combine(reduce, dtype, total[0], folded)),)


def fold_pair(reduce: Reduce, low: Code, high: Code) -> tuple[Statement, ...]:
    """Combine lane `high` into lane `low`, as the functions `fold_*` of the prelude do; no argmin
    or argmax.
    """
    dtype = reduce.operands[0].dtype.compute
    if reduce.kind not in ("min", "max") or not dtype.is_float:
        return (Assign(low, _combine(reduce, dtype, low, high)),)
    return (Assign(low, Call(f"ordered_{reduce.kind}", (low, high))),)


def fold_total(reduce: Reduce, total: Code, folded: Code) -> Statement:
    """Combine the folded lanes of a block into `total`, as `merge` does; no argmin or argmax."""
    if is_rounded(reduce):
        return add_block(reduce, total, folded)
    return Assign(total, _combine(reduce, reduce.operands[0].dtype.compute, total, folded))


def _fold_name(reduce: Reduce, dtype: DType) -> str:
    if not dtype.is_bool:
        return reduce.kind
    return "all" if reduce.kind in _CONJUNCTIONS else "any"


def add_block(reduce: Reduce, total: Code, block: Code) -> Statement:
    """Combine a block's partial result into the total of a rounded reduction."""
    return Assign(total, block, _operator(reduce))


def finish_reduction(reduce: Reduce, total: tuple[Code, ...]) -> Code:
    """Return the result, of `reduce.dtype`, from the folded state."""
    if is_positional(reduce):
        return Select(Binary("==", total[1], _NO_POSITION), Literal("0"), total[1])
    dtype = reduce.operands[0].dtype.compute
    if dtype.is_bool:
        return Binary("!=", total[0], Literal("0"))
    value = Call("float", (total[0],)) if is_rounded(reduce) and dtype is DType.F32 else total[0]
    return convert(value, dtype, reduce.dtype)


def mask_element(reduce: Reduce, element: Code, mask: Code | None) -> Code:
    """`element`, or the neutral element where `mask` is false."""
    if mask is None:
        return element
    return Select(mask, element, start_value(reduce.kind, reduce.operands[0].dtype.compute))


def mask_position(position: Code, mask: Code) -> Code:
    """`position`, or one that no element has where `mask` is false: a masked element never comes first."""
    return Select(mask, position, _NO_POSITION)


def _operator(reduce: Reduce) -> str:
    return "+=" if reduce.kind == "sum" else "*="


def _precedes_function(reduce: Reduce) -> str:
    kind = "max" if reduce.kind == "argmax" else "min"
    dtype = reduce.operands[0].dtype.compute
    return f"precedes_{kind}<{'u8' if dtype.is_bool else compute_type(dtype)}>"


def _combine(reduce: Reduce, dtype: DType, a: Code, b: Code) -> Code:
    name = _SIMPLE[reduce.kind]
    if dtype.is_bool:
        return Binary("&" if reduce.kind in _CONJUNCTIONS else "|", a, Call("u8", (b,)))
    return apply(name, (dtype, dtype), dtype, (b, a))
