"""Values of 16 bits as they were before they were rounded: what `fast` numerics go on with."""

from __future__ import annotations

from collections.abc import Iterator

from coilwork_ir.dtypes import DType, round_to_dtype
from coilwork_ir.scalar import Const, Op, Scalar, cast, const, where


def selected(value: Scalar) -> Iterator[Scalar]:
    """Return what `value` may be: itself, and, where it is a select, what that chooses from."""
    seen: set[Scalar] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one not in seen:
            seen.add(one)
            yield one
            stack += _choices(one)


def unrounded(value: Scalar, dtype: DType) -> Scalar:
    """`value` as it was before it was rounded to bf16 or f16, where that had the type `dtype`.

    Of selects, what was rounded is taken as it was, and the rest converted. 8-bit floats are kept: a program
    rounds to them to see the effect.
    """
    if not value.dtype.is_low_precision or value.dtype.itemsize < 2:
        return value
    wide: dict[Scalar, Scalar | None] = {}
    stack = [value]
    while stack:
        one = stack[-1]
        waiting = [choice for choice in _choices(one) if choice not in wide]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        wide[one] = _wider(one, dtype, [wide[choice] for choice in _choices(one)])
    found = wide[value]
    return value if found is None else found


def _choices(value: Scalar) -> tuple[Scalar, ...]:
    return value.operands[1:] if isinstance(value, Op) and value.op == "where" else ()


def _wider(value: Scalar, dtype: DType, choices: list[Scalar | None]) -> Scalar | None:
    """`value` in `dtype`, if something was rounded for it; `choices` are its own."""
    match value:
        case Op(op="cast", operands=(inner,)) if inner.dtype is dtype:
            return inner
        case Op(op="where", operands=(condition, *rounded)) if any(one is not None for one in choices):
            then, otherwise = (
                _converted(one, dtype) if wide is None else wide
                for one, wide in zip(rounded, choices, strict=True)
            )
            return where(condition, then, otherwise)
        case _:
            return None


def _converted(value: Scalar, dtype: DType) -> Scalar:
    if isinstance(value, Const):
        return const(round_to_dtype(float(value.value), value.dtype), dtype)
    return cast(value, dtype)
