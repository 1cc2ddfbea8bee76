"""Which sums of products are contractions, what they multiply, and what a contracted kernel means."""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels.interpret import interpret_kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import Scalar, cast, contraction_in, contraction_of, load, op, reduce

B, M, N, K = (symbol(name, extent=size) for name, size in (("b", 3), ("m", 5), ("n", 7), ("k", 11)))
ONE = symbol("one", extent=1)
F32, F16, BF16, I8 = DType.F32, DType.F16, DType.BF16, DType.I8

INT8 = """
kernel @int8 fast {
  range x0: `3` parallel x 0.0
  range x1: `5` parallel x 0.0
  range r0: `8` reduction r 1.0
  arg in0: bf16 in span `24`
  arg in1: i8 in span `40`
  arg in2: bf16 in span `5`
  arg out0: bf16 out span `15`
  body {
    t0 = load %in0[r0 + 8*x0] : bf16
    t1 = cast(t0) : f32
    t2 = load %in1[r0 + 8*x1] : i8
    t3 = cast(t2) : bf16
    t4 = cast(t3) : f32
    t5 = mul(t1, t4)
    t6 = reduce sum 0 (t5) over (r0)
    t7 = load %in2[x1] : bf16
    t8 = cast(t7) : f32
    t9 = mul(t6, t8)
    t10 = cast(t9) : bf16
    store %out0[5*x0 + x1] = t10
  }
}
"""


def wide(name: str, index: Expr, dtype: DType) -> Scalar:
    return cast(load(name, [index], dtype), F32)


def product(left: DType = F32, right: DType = F32) -> Scalar:
    return op("mul", wide("a", B * 55 + M * 11 + K, left), wide("c", B * 77 + K * 7 + N, right))


def test_ranges_are_told_apart_by_what_varies_along_them() -> None:
    found = contraction_of("sum", product(), (B, M, ONE, N), (K,))
    assert found is not None
    assert (found.batch, found.rows, found.columns, found.axes) == ((B,), (M,), (N,), (K,))
    left, right = product().operands
    assert (found.left, found.right) == (left, right)


def test_the_outermost_range_decides_which_factor_is_left() -> None:
    found = contraction_of("sum", product(), (B, N, M), (K,))
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
    found = contraction_of("sum", product(left, right), (B, M, N), (K,))
    assert found is not None and found.dtype is multiplied
    assert {found.left.dtype, found.right.dtype} == {multiplied}


def test_other_sums_are_no_contractions() -> None:
    vector = op("mul", wide("a", M * 11 + K, F32), wide("v", K + 0, F32))
    assert contraction_of("sum", vector, (M,), (K,)) is None
    assert contraction_of("sum", product(), (B, M, N, symbol("z", extent=4)), (K,)) is None
    assert contraction_of("max", product(), (B, M, N), (K,)) is None
    assert contraction_of("sum", op("add", *product().operands), (B, M, N), (K,)) is None
    loose = op("mul", wide("a", M * 11 + K, F32), wide("c", N + 0, F32))
    assert contraction_of("sum", loose, (M, N), (K,)) is None
    double = op("mul", load("a", [M * 11 + K], DType.F64), load("c", [K * 7 + N], DType.F64))
    assert contraction_of("sum", double, (M, N), (K,)) is None


def test_a_second_reduction_makes_it_none() -> None:
    total = reduce("sum", [product()], [K])
    found = contraction_in([op("exp", total)], (B, M, N))
    assert found is not None and found[0] is total
    largest = reduce("max", [wide("a", M * 11 + K, F32)], [K])
    assert contraction_in([op("sub", total, largest)], (B, M, N)) is None


def test_a_contracted_kernel_reads_back_and_is_a_product() -> None:
    kernel = parse_kernel(INT8)
    verify_kernel(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, generator=generator).bfloat16()
    weight = torch.randint(-100, 100, (5, 8), generator=generator, dtype=torch.int8)
    scale = torch.randn(5, generator=generator).bfloat16()
    out = torch.empty(15, dtype=torch.bfloat16)
    args = {"in0": x.flatten(), "in1": weight.flatten(), "in2": scale, "out0": out}
    interpret_kernel(kernel, args, ())
    expected = (x.float() @ weight.float().t() * scale.float()).bfloat16()
    torch.testing.assert_close(out.view(3, 5), expected)
