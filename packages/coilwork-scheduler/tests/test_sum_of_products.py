"""Which sums of products are contractions, and what they multiply."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.scalar import Scalar, cast, load, op, reduce
from coilwork_scheduler.contractions.sum_of_products import contractions_in, match_contraction

B, M, N, K = (symbol(name, extent=size) for name, size in (("b", 3), ("m", 5), ("n", 7), ("k", 11)))
ONE = symbol("one", extent=1)
F32, F16, BF16, I8 = DType.F32, DType.F16, DType.BF16, DType.I8


def wide(name: str, index: Expr, dtype: DType) -> Scalar:
    return cast(load(name, [index], dtype), F32)


def product(left: DType = F32, right: DType = F32) -> Scalar:
    return op("mul", wide("a", B * 55 + M * 11 + K, left), wide("c", B * 77 + K * 7 + N, right))


def test_ranges_are_told_apart_by_what_varies_along_them() -> None:
    found = match_contraction("sum", product(), (B, M, ONE, N), (K,))
    assert found is not None
    assert (found.rows, found.columns, found.axes) == ((M,), (N,), (K,))
    left, right = product().operands
    assert (found.left, found.right) == (left, right)


def test_the_outermost_range_decides_which_factor_is_left() -> None:
    found = match_contraction("sum", product(), (B, N, M), (K,))
    assert found is not None and found.rows == (N,) and found.left is product().operands[1]


@pytest.mark.parametrize(
    ("left", "right", "multiplied"),
    [
        (F32, F32, F32),
        (BF16, BF16, BF16),
        (F16, I8, F16),
        (DType.U8, BF16, BF16),
        # neither has all values of the other
        (F16, BF16, F32),
        (BF16, F32, F32),
        (I8, I8, F32),
        (BF16, DType.I16, F32),
    ],
)
def test_what_units_multiply_is_exact(left: DType, right: DType, multiplied: DType) -> None:
    found = match_contraction("sum", product(left, right), (B, M, N), (K,))
    assert found is not None and found.node.dtype is F32
    assert {factor.dtype for factor in found.node.operands} == {multiplied}


def test_other_sums_are_no_contractions() -> None:
    vector = op("mul", wide("a", M * 11 + K, F32), wide("v", K + 0, F32))
    assert match_contraction("sum", vector, (M,), (K,)) is None
    assert match_contraction("sum", product(), (B, M, N, symbol("z", extent=4)), (K,)) is None
    assert match_contraction("max", product(), (B, M, N), (K,)) is None
    assert match_contraction("sum", op("add", *product().operands), (B, M, N), (K,)) is None
    loose = op("mul", wide("a", M * 11 + K, F32), wide("c", N + 0, F32))
    assert match_contraction("sum", loose, (M, N), (K,)) is None
    double = op("mul", load("a", [M * 11 + K], DType.F64), load("c", [K * 7 + N], DType.F64))
    assert match_contraction("sum", double, (M, N), (K,)) is None


def test_another_reduction_makes_it_none() -> None:
    total = reduce("sum", [product()], [K])
    assert list(contractions_in([op("exp", total)], (B, M, N))) == [total]
    largest = reduce("max", [wide("a", M * 11 + K, F32)], [K])
    assert contractions_in([op("sub", total, largest)], (B, M, N)) == {}


def test_two_products_share_a_kernel_if_they_share_a_factor() -> None:
    left, right = product().operands
    second = wide("d", B * 77 + K * 7 + N, F32)
    total, gate = reduce("sum", [product()], [K]), reduce("sum", [op("mul", left, second)], [K])
    assert list(contractions_in([op("mul", total, gate)], (B, M, N))) == [total, gate]
    for other in (op("mul", second, wide("e", B * 55 + M * 11 + K, F32)), op("mul", right, second)):
        apart = reduce("sum", [other], [K])
        assert contractions_in([op("mul", total, apart)], (B, M, N)) == {}
