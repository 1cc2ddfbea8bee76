"""Which positions are written in 32 bits."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.scalar import IndexValue, Scalar, cast, const, index_value, iterate_postorder, load, op
from coilwork_triton.facts.kernel_analysis import index_users
from coilwork_triton.facts.precision_analysis import (
    find_narrow_positions,
    find_redundant_bounds,
    find_short_casts,
)

I64 = DType.I64
AT = symbol("x0", extent=100)


def narrow(*roots: Scalar) -> bool:
    found = find_narrow_positions(tuple(iterate_postorder(roots)), roots)
    assert found <= {node for node in iterate_postorder(roots) if isinstance(node, IndexValue)}
    return index_value(AT) in found


@pytest.mark.parametrize("comparison", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_constants_and_positions(comparison: str) -> None:
    assert narrow(op(comparison, index_value(AT), const(3, I64)))
    assert narrow(op(comparison, const(3, I64), index_value(AT)))
    assert narrow(op(comparison, index_value(AT), index_value(AT + 1)))


def test_positions_become_f32_but_no_narrower_float() -> None:
    assert narrow(cast(index_value(AT), DType.F32))
    assert not narrow(cast(index_value(AT), DType.BF16))


def test_what_wants_the_whole_number() -> None:
    position = index_value(AT)
    assert not narrow(position)
    assert not narrow(op("mul", position, const(1 << 40, I64)))
    assert not narrow(op("lt", op("add", position, const(1, I64)), const(3, I64)))
    # one use is enough
    assert not narrow(op("lt", position, const(3, I64)), op("add", position, const(1, I64)))


def short(*roots: Scalar) -> frozenset[Scalar]:
    order = tuple(iterate_postorder(roots))
    return find_short_casts(order, roots, index_users(order))


def source(extent: int | None, scale: float = 0.5) -> Scalar:
    """The coordinate that an upsampling reads at."""
    position = cast(index_value(symbol("x1", extent=extent)), DType.F32)
    half = const(0.5, DType.F32)
    centre = op("sub", op("mul", op("add", position, half), const(scale, DType.F32)), half)
    return op("maximum", centre, const(0.0, DType.F32))


def test_whole_parts_of_positions() -> None:
    whole = cast(source(256), I64)
    assert short(op("sub", source(256), cast(whole, DType.F32))) == {whole}
    assert not short(whole)
    assert not short(cast(whole, DType.F32), op("add", whole, whole))


def test_numbers_of_unknown_or_great_size_keep_64_bits() -> None:
    for number in (source(1 << 31), source(256, scale=1e8), load("in0", [AT], DType.F32)):
        assert not short(cast(cast(number, I64), DType.F32))
    unknown = symbol("s0")
    assert not short(cast(cast(cast(index_value(unknown), DType.F32), I64), DType.F32))


def test_fractions_of_positions_need_no_bounds() -> None:
    fraction = op("sub", source(256), cast(cast(source(256), I64), DType.F32))
    low = op("maximum", fraction, const(0.0, DType.F32))
    both = op("minimum", low, const(1.0, DType.F32))
    assert find_redundant_bounds(tuple(iterate_postorder((both,)))) == {low: fraction, both: fraction}
    for used in (
        op("minimum", fraction, const(0.5, DType.F32)),
        op("maximum", fraction, const(0.5, DType.F32)),
        op("minimum", source(256), const(1.0, DType.F32)),
    ):
        assert not find_redundant_bounds(tuple(iterate_postorder((used,))))


def test_fractions_of_what_may_be_negative_or_infinite_keep_bounds() -> None:
    loaded = op("maximum", load("in0", [AT], DType.F32), const(0.0, DType.F32))
    negative = op("maximum", cast(index_value(AT), DType.F32), const(-1.0, DType.F32))
    for number in (loaded, negative):
        fraction = op("sub", number, cast(cast(number, I64), DType.F32))
        assert not find_redundant_bounds(
            tuple(iterate_postorder((op("minimum", fraction, const(1.0, DType.F32)),)))
        )
