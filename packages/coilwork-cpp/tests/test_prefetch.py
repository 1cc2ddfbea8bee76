"""Passes over what an earlier pass has read ask for the lines that come next."""

from __future__ import annotations

import pytest
import torch
from cpp_fixtures import LoadKernel

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import const, load, op, reduce
from coilwork_ir.target import get_target

F32 = DType.F32


def normalised(rows: int, length: Expr | int) -> Kernel:
    """Rows without their mean, times the inverse of the sum of their squares."""
    x, r = symbol("x0", extent=rows), symbol("r0", extent=length)
    value = load("in0", [x * length + r], F32)
    centred = op("sub", value, op("div", reduce("sum", [value], [r]), const(700, F32)))
    result = op("div", centred, reduce("sum", [op("mul", centred, centred)], [r]))
    return Kernel(
        name="normalised",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=as_expr(rows) * length),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(rows) * length),
        ),
        sizes=() if isinstance(length, int) else (length,),
        stores=(Store(buffer="out0", index=x * length + r, value=result),),
    )


def text(kernel: Kernel) -> str:
    return CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text


def test_the_middle_pass_asks_for_the_next_row_and_for_the_result() -> None:
    found = text(normalised(50, 768))
    assert found.count("__builtin_prefetch") == 2
    assert "__builtin_prefetch(in0 + (r0_first + p + x0 * 768 + 768));" in found
    assert "__builtin_prefetch(out0 + (r0_first + p + x0 * 768), 1);" in found
    assert found.index("sum_1_lanes[l] = 0.0f") < found.index("__builtin_prefetch")


@pytest.mark.parametrize("length", [100, 8192, symbol("n0", lo=0)], ids=["short", "long", "unknown"])
def test_short_and_long_rows_do_not(length: Expr | int) -> None:
    assert "__builtin_prefetch" not in text(normalised(50, length))


def test_prefetching_changes_no_results(load_kernel: LoadKernel) -> None:
    for length in (700, 768, 1024):
        x, out = torch.randn(9, length), torch.empty(9, length)
        load_kernel(normalised(9, length))(x, out)
        wide = x.double()
        centred = wide - wide.sum(1, keepdim=True) / 700
        assert torch.allclose(out.double(), centred / centred.square().sum(1, keepdim=True), atol=1e-6)
