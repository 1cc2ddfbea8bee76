"""Running combinations along a row and along a column."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, TorchDType

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import Combine, Load, Scalar, combine, const, load, op, parameter, reduce, scan
from coilwork_ir.target import get_target


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
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(TensorArg(name="in0", dtype=dtype, role="in", span=as_expr(n * m)), *outputs),
        stores=tuple(Store(buffer=f"out{k}", index=at, value=v) for k, v in enumerate(results)),
    )


def test_long_sums_of_exponentials_are_as_exact_as_their_type(load_kernel: LoadKernel) -> None:
    kernel = scan_kernel(lambda v, r: [scan("logcumsumexp", v, r)], DType.F32, columns=False, n=2, m=20000)
    x = torch.randn(2, 20000, generator=torch.Generator().manual_seed(1))
    found = torch.empty(2, 20000)
    load_kernel(kernel)(x, found)
    torch.testing.assert_close(found.double(), x.double().logcumsumexp(1), rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_float_scans_are_torchs(load_kernel: LoadKernel, columns: bool, reverse: bool) -> None:
    kinds: tuple[ScanKind, ...] = ("sum", "prod", "min", "max", "logcumsumexp")
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
def test_positions_of_extremes(load_kernel: LoadKernel, columns: bool) -> None:
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
def test_integer_scans_wrap(load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType) -> None:
    kernel = scan_kernel(
        lambda v, r: [scan("sum", v, r), scan("prod", v, r)], dtype, columns=False, n=3, m=100
    )
    x = torch.randint(1, 100, (3, 100)).to(torch_dtype(dtype))
    outputs = [torch.empty_like(x), torch.empty_like(x)]
    load_kernel(kernel)(x, *outputs)
    assert torch.equal(outputs[0], x.cumsum(1, dtype=x.dtype))
    assert torch.equal(outputs[1], x.cumprod(1, dtype=x.dtype))


def test_scan_then_reduction_then_scan_again(load_kernel: LoadKernel) -> None:
    """The share of each running sum in the largest one."""

    def values(v: Load, r: Expr) -> list[Scalar]:
        running = scan("sum", v, r)
        return [op("div", running, reduce("max", [running], [r]))]

    for columns in (False, True):
        x, out = torch.rand(20, 30), torch.empty(20, 30)
        load_kernel(scan_kernel(values, DType.F32, columns=columns, n=20, m=30))(x, out)
        running = x.double().cumsum(0 if columns else 1)
        assert torch.allclose(
            out.double(), running / running.amax(0 if columns else 1, keepdim=True), rtol=1e-5
        )


def test_both_directions_in_one_pass_are_refused() -> None:
    kernel = scan_kernel(
        lambda v, r: [op("add", scan("sum", v, r), scan("sum", v, r, reverse=True))],
        DType.F32,
        columns=False,
        n=2,
        m=3,
    )
    with pytest.raises(EmitError, match="from the front"):
        CppCodegen().emit(kernel, get_target("x86-64-avx2"), {})


def recurrence(dtype: DType) -> Combine:
    """Two steps of `h = a * h + b` as one."""
    a, b, later_a, later_b = (parameter(k, dtype) for k in range(4))
    return combine([op("mul", a, later_a), op("add", op("mul", later_a, b), later_b)])


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.BF16])
def test_scans_by_a_function(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, columns: bool, reverse: bool
) -> None:
    def values(v: Load, r: Expr) -> list[Scalar]:
        more = op("add", v, const(1, dtype))
        function = recurrence(dtype)
        return [scan(function, v, r, others=[more], output=k, reverse=reverse) for k in (1, 0)]

    kernel = scan_kernel(values, dtype, columns=columns, n=20, m=20)
    x = torch.randn(20, 20).mul(0.9 if dtype.is_float else 3).to(torch_dtype(dtype))
    found = [torch.empty_like(x) for _ in range(2)]
    load_kernel(kernel)(x, *found)
    rows = x.t() if columns else x
    rows = rows.flip(1) if reverse else rows
    a, b = rows, rows + 1
    steps = [(a[:, 0], b[:, 0])]
    for k in range(1, 20):
        before, h = steps[-1]
        steps.append((before * a[:, k], a[:, k] * h + b[:, k]))
    for result, wanted in zip(found, (1, 0), strict=True):
        stacked = torch.stack([step[wanted] for step in steps], 1)
        stacked = stacked.flip(1) if reverse else stacked
        torch.testing.assert_close(result, stacked.t() if columns else stacked)


@pytest.mark.parametrize("columns", [False, True])
def test_scans_by_a_function_of_truth_values(load_kernel: LoadKernel, columns: bool) -> None:
    # the parity of what came since the last point above 1
    def values(v: Load, r: Expr) -> list[Scalar]:
        starts, odd, later_starts, later_odd = (parameter(k, DType.BOOL) for k in range(4))
        function = combine(
            [
                op("bitwise_or", starts, later_starts),
                op("where", later_starts, later_odd, op("ne", odd, later_odd)),
            ]
        )
        start, own = op("gt", v, const(1.0, DType.F32)), op("gt", v, const(0.0, DType.F32))
        return [scan(function, start, r, others=[own], output=1)]

    kernel = scan_kernel(values, DType.F32, columns=columns, n=17, m=17)
    x = torch.randn(17, 17)
    found = torch.empty(17, 17, dtype=torch.bool)
    load_kernel(kernel)(x, found)
    rows = x.t() if columns else x
    wanted, odd = [], torch.zeros(17, dtype=torch.bool)
    for k in range(17):
        odd = torch.where(rows[:, k] > 1, rows[:, k] > 0, odd != (rows[:, k] > 0))
        wanted.append(odd)
    torch.testing.assert_close(found.t() if columns else found, torch.stack(wanted, 1))


def test_results_of_one_function_are_computed_at_once() -> None:
    def values(v: Load, r: Expr) -> list[Scalar]:
        function = recurrence(DType.F32)
        return [scan(function, v, r, others=[v], output=k) for k in (0, 1)]

    kernel = scan_kernel(values, DType.F32, columns=False, n=4, m=5)
    text = CppCodegen().emit(kernel, get_target("x86-64-avx2"), {}).text
    assert text.count("float running_") == 2


def test_what_no_result_needs_is_not_carried() -> None:
    # of what came before, the recurrence's second result needs the second value alone
    def values(v: Load, r: Expr) -> list[Scalar]:
        return [scan(recurrence(DType.F32), v, r, others=[v], output=1)]

    for columns in (False, True):
        kernel = scan_kernel(values, DType.F32, columns=columns, n=40, m=40)
        text = CppCodegen().emit(kernel, get_target("x86-64-avx2"), {}).text
        assert text.count("float running_") == 1
