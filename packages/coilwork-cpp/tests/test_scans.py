"""Running combinations along a row and along a column."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Load, Scalar, load, op, reduce, scan
from coilwork_ir.target import target


def scan_kernel(
    values: Callable[[Load, Expr], list[Scalar]], dtype: DType, *, columns: bool, n: int, m: int
) -> Kernel:
    """Scan `in0[n, m]` along dimension 1, or with `columns` along dimension 0."""
    x, r = symbol("x0", extent=m if columns else n), symbol("r0", extent=n if columns else m)
    at = r * m + x if columns else x * m + r
    results = values(load("in0", [at], dtype), r)
    outputs = [
        TensorArg(name=f"out{k}", dtype=v.dtype, role="out", span=as_expr(n * m))
        for k, v in enumerate(results)
    ]
    return Kernel(
        name="scan",
        ranges=(Range(symbol=x, kind="parallel", tile="x"), Range(symbol=r, kind="reduction", tile="r")),
        args=(TensorArg(name="in0", dtype=dtype, role="in", span=as_expr(n * m)), *outputs),
        stores=tuple(Store(buffer=f"out{k}", index=at, value=v) for k, v in enumerate(results)),
    )


def test_long_sums_of_exponentials_are_as_exact_as_their_type(load_kernel: Callable) -> None:
    kernel = scan_kernel(lambda v, r: [scan("logcumsumexp", v, r)], DType.F32, columns=False, n=2, m=20000)
    x = torch.randn(2, 20000, generator=torch.Generator().manual_seed(1))
    found = torch.empty(2, 20000)
    load_kernel(kernel)(x, found)
    torch.testing.assert_close(found.double(), x.double().logcumsumexp(1), rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_float_scans(load_kernel: Callable, columns: bool, reverse: bool) -> None:
    kinds = ("sum", "prod", "min", "max", "logcumsumexp")
    kernel = scan_kernel(
        lambda v, r: [scan(kind, v, r, reverse=reverse) for kind in kinds],
        DType.F32,
        columns=columns,
        n=40,
        m=50,
    )
    x = torch.randn(40, 50)
    outputs = [torch.empty(40, 50) for _ in kinds]
    load_kernel(kernel)(x, *outputs)
    dim = 0 if columns else 1
    given = x.double().flip(dim) if reverse else x.double()
    wants = [
        given.cumsum(dim), given.cumprod(dim), given.cummin(dim).values, given.cummax(dim).values,
        given.logcumsumexp(dim),
    ]  # fmt: skip
    for kind, want, got in zip(kinds, wants, outputs, strict=True):
        want = want.flip(dim) if reverse else want
        assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-6), kind


@pytest.mark.parametrize("columns", [False, True])
def test_positions_of_extremes(load_kernel: Callable, columns: bool) -> None:
    def values(v: Load, r: Expr) -> list[Scalar]:
        return [scan("max", v, r), scan("max", v, r, output=1), scan("argmin", v, r), scan("min", v, r)]

    x = torch.randint(0, 5, (30, 20)).float()
    x[3, 4] = x[7, 9] = float("nan")
    x[0, :] = float("-inf")
    kernel = scan_kernel(values, DType.F32, columns=columns, n=30, m=20)
    outputs = [torch.empty(30, 20, dtype=d) for d in (torch.float32, torch.int64, torch.int64, torch.float32)]
    load_kernel(kernel)(x, *outputs)
    dim = 0 if columns else 1
    high, low = x.cummax(dim), x.cummin(dim)
    assert torch.allclose(outputs[0], high.values, equal_nan=True) and torch.equal(outputs[1], high.indices)
    assert torch.equal(outputs[2], low.indices) and torch.allclose(outputs[3], low.values, equal_nan=True)


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.U8])
def test_integer_scans_wrap(load_kernel: Callable, torch_dtype: Callable, dtype: DType) -> None:
    kernel = scan_kernel(
        lambda v, r: [scan("sum", v, r), scan("prod", v, r)], dtype, columns=False, n=3, m=100
    )
    x = torch.randint(1, 100, (3, 100)).to(torch_dtype(dtype))
    outputs = [torch.empty_like(x), torch.empty_like(x)]
    load_kernel(kernel)(x, *outputs)
    assert torch.equal(outputs[0], x.cumsum(1, dtype=x.dtype))
    assert torch.equal(outputs[1], x.cumprod(1, dtype=x.dtype))


def test_scan_then_reduction_then_scan_again(load_kernel: Callable) -> None:
    """The share of each running sum in the largest one."""

    def values(v: Load, r: Expr) -> list[Scalar]:
        running = scan("sum", v, r)
        return [op("div", running, reduce("max", [running], [r]))]

    for columns in (False, True):
        x, out = torch.rand(20, 30), torch.empty(20, 30)
        load_kernel(scan_kernel(values, DType.F32, columns=columns, n=20, m=30))(x, out)
        running = x.cumsum(0 if columns else 1)
        assert torch.allclose(out, running / running.amax(0 if columns else 1, keepdim=True), rtol=1e-5)


def test_both_directions_in_one_pass_are_refused() -> None:
    kernel = scan_kernel(
        lambda v, r: [op("add", scan("sum", v, r), scan("sum", v, r, reverse=True))],
        DType.F32,
        columns=False,
        n=2,
        m=3,
    )
    with pytest.raises(EmitError, match="from the front"):
        CppCodegen().emit(kernel, target("x86-64-avx2"), {})
