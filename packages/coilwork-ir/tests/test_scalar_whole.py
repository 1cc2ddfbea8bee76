"""Where the values of integer scalars lie, and the same values in 32 bits."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.scalar import (
    Scalar,
    cast,
    const,
    index_value,
    load,
    narrow_to_32_bits,
    op,
    postorder,
    where,
    whole_span,
)

I32, I64 = DType.I32, DType.I64
I = symbol("i0", extent=100)


def loaded(dtype: DType) -> Scalar:
    return load("x", (I,), dtype)


def wide(dtype: DType) -> Scalar:
    return cast(loaded(dtype), I64)


FIVE = const(5, I64)
SPANS: dict[str, tuple[Scalar, tuple[int, int] | None]] = {
    "truth": (wide(DType.BOOL), (0, 1)),
    "byte": (wide(DType.U8), (0, 255)),
    "signed": (wide(DType.I16), (-32768, 32767)),
    "words": (wide(I32), (-(2**31), 2**31 - 1)),
    "unknown": (loaded(I64), None),
    "of a float": (cast(loaded(DType.F32), I64), None),
    "of a float to a byte": (cast(cast(loaded(DType.F32), DType.I8), I64), (-128, 127)),
    "position": (index_value(I * 2 + 1), (1, 199)),
    "sum": (op("add", wide(DType.BOOL), FIVE), (5, 6)),
    "difference": (op("sub", wide(DType.U8), FIVE), (-5, 250)),
    "product": (op("mul", wide(DType.I8), wide(DType.I8)), (-128 * 127, 128 * 128)),
    "choice": (where(loaded(DType.BOOL), FIVE, wide(DType.BOOL)), (0, 5)),
    "extremes": (op("minimum", op("maximum", wide(DType.I8), const(0, I64)), FIVE), (0, 5)),
    "product of an unknown": (op("mul", loaded(I64), const(0, I64)), None),
    "wraps around": (op("mul", loaded(DType.I8), loaded(DType.I8)), (-128, 127)),
    "narrower": (cast(cast(loaded(DType.U8), DType.I8), I64), (-128, 127)),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans(name: str) -> None:
    scalar, expected = SPANS[name]
    assert whole_span(scalar) == expected


@pytest.mark.parametrize("name", ["truth", "byte", "sum", "difference", "product", "choice", "extremes"])
def test_nothing_is_computed_in_64_bits(name: str) -> None:
    narrow = narrow_to_32_bits(SPANS[name][0])
    assert narrow.dtype is I32 and whole_span(narrow) == SPANS[name][1]
    assert all(node.dtype is not I64 for node in postorder((narrow,)))


def test_what_is_on_the_way_may_be_wide() -> None:
    large = op("mul", wide(I32), const(4, I64))
    narrow = narrow_to_32_bits(op("minimum", op("maximum", large, const(0, I64)), FIVE))
    assert narrow.dtype is I32 and large in set(postorder((narrow,)))


@pytest.mark.parametrize(
    "wrapping",
    [
        op("sub", loaded(DType.U8), const(200, DType.U8)),
        op("add", loaded(DType.I8), loaded(DType.I8)),
        op("mul", loaded(DType.I16), loaded(DType.I16)),
        cast(loaded(DType.U8), DType.I8),
        cast(wide(DType.I16), DType.U8),
    ],
)
def test_what_wraps_around_is_computed_in_its_own_type(wrapping: Scalar) -> None:
    narrow = narrow_to_32_bits(cast(wrapping, I64))
    assert narrow.dtype is I32 and wrapping in set(postorder((narrow,)))
