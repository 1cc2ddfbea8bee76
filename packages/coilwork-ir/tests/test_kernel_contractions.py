"""Contractions of kernels: their parts, what they mean, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import (
    Scalar,
    cast,
    contract,
    find_contraction,
    find_parts,
    load,
    op,
    rewrite,
    substitute_ranges,
)

B, M, N, K = (symbol(name, extent=size) for name, size in (("b", 3), ("m", 5), ("n", 7), ("k", 11)))
ONE = symbol("one", extent=1)
F32, F16, BF16, I8 = DType.F32, DType.F16, DType.BF16, DType.I8

INT8 = """
kernel @int8 fast {
  range x0: `3` parallel
  range x1: `5` parallel
  range r0: `8` reduction
  arg in0: bf16 in span `24`
  arg in1: i8 in span `40`
  arg in2: bf16 in span `5`
  arg out0: bf16 out span `15`
  body {
    t0 = load %in0[r0 + 8*x0] : bf16
    t1 = load %in1[r0 + 8*x1] : i8
    t2 = cast(t1) : bf16
    t3 = contract (t0, t2) over (r0) : f32
    t4 = load %in2[x1] : bf16
    t5 = cast(t4) : f32
    t6 = mul(t3, t5)
    t7 = cast(t6) : bf16
    store %out0[5*x0 + x1] = t7
  }
}
"""


def factor(name: str, *symbols: Expr, dtype: DType = F32) -> Scalar:
    index = symbols[0] + 0
    for one in symbols[1:]:
        index = index * 13 + one
    return load(name, [index], dtype)


def test_ranges_are_told_apart_by_what_varies_along_them() -> None:
    found = find_parts(factor("a", B, M, K), factor("c", B, K, N), (B, M, ONE, N), (K,))
    assert found is not None and (found.batch, found.rows, found.columns) == ((B,), (M,), (N,))


@pytest.mark.parametrize(
    ("left", "right", "ranges"),
    [
        # the product with a vector, a range of neither, an axis of one factor only, rows of both
        ((M, K), (K,), (M,)),
        ((M, K), (K, N), (M, N, B)),
        ((M, K), (N,), (M, N)),
        ((M, N, K), (M, N, K), (M, N)),
    ],
)
def test_other_sums_are_no_contractions(
    left: tuple[Expr, ...], right: tuple[Expr, ...], ranges: tuple[Expr, ...]
) -> None:
    assert find_parts(factor("a", *left), factor("c", *right), ranges, (K,)) is None


def test_factors_have_one_type_of_floats_and_sums_are_as_wide() -> None:
    half, wide = factor("a", M, K, dtype=F16), factor("c", K, N)
    for left, right, dtype in ((half, wide, F32), (wide, wide, F16), (wide, wide, DType.I64)):
        with pytest.raises(VerifyError):
            contract(left, right, [K], dtype)
    narrow = factor("w", K, N, dtype=I8)
    with pytest.raises(VerifyError):
        contract(narrow, narrow, [K], F32)


def test_it_is_rewritten_like_other_values() -> None:
    node = contract(factor("a", M, K), factor("c", K, N), [K], F32)
    other = symbol("k2", extent=11)
    (moved,) = substitute_ranges((op("exp", node),), {K: other})
    found = find_contraction((moved,))
    assert found is contract(factor("a", M, other), factor("c", other, N), [other], F32)
    (doubled,) = rewrite((node,), lambda v: op("add", v, v) if v is node.left else v)
    assert find_contraction((doubled,)) is contract(op("add", node.left, node.left), node.right, [K], F32)
    assert find_contraction((cast(node.left, F16),)) is None


def test_a_contraction_takes_two_factors() -> None:
    text = INT8.replace("contract (t0, t2)", "contract (t0, t2, t2)")
    with pytest.raises(ParseError, match="3 factors"):
        parse_kernel(text)


def test_a_kernel_with_a_contraction_reads_back_and_is_a_product() -> None:
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


GATED = INT8.replace(
    "    t6 = mul(t3, t5)\n",
    "    t8 = load %in3[LEFT] : bf16\n    t9 = load %in4[RIGHT] : bf16\n"
    "    t10 = contract (t8, t9) over (r0) : f32\n    t6 = mul(t3, t10)\n    t11 = mul(t6, t5)\n",
)
GATED = GATED.replace("cast(t6) : bf16", "cast(t11) : bf16").replace(
    "  arg out0", "  arg in3: bf16 in span `40`\n  arg in4: bf16 in span `40`\n  arg out0"
)


def test_two_contractions_of_one_kernel_have_the_same_rows_and_columns() -> None:
    kernel = parse_kernel(GATED.replace("LEFT", "r0 + 8*x0").replace("RIGHT", "r0 + 8*x1"))
    verify_kernel(kernel)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 8, generator=generator).bfloat16() for _ in range(2))
    weight = torch.randint(-100, 100, (5, 8), generator=generator, dtype=torch.int8)
    scale, gate = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((5,), (5, 8)))
    out = torch.empty(15, dtype=torch.bfloat16)
    args = {"in0": x.flatten(), "in1": weight.flatten(), "in2": scale, "in3": y.flatten()}
    interpret_kernel(kernel, {**args, "in4": gate.flatten(), "out0": out}, ())
    expected = x.float() @ weight.float().t() * (y.float() @ gate.float().t()) * scale.float()
    torch.testing.assert_close(out.view(3, 5), expected.bfloat16())
    turned = parse_kernel(GATED.replace("LEFT", "r0 + 8*x1").replace("RIGHT", "r0 + 8*x0"))
    with pytest.raises(VerifyError, match="different rows and columns"):
        verify_kernel(turned)
