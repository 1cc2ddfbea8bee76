"""Reductions along the contiguous range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, Threads, TorchDType, named_arg

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Load, Scalar, cast, const, load, op, reduce
from coilwork_ir.target import get_target

F32, F64, BF16, I64, BOOL = DType.F32, DType.F64, DType.BF16, DType.I64, DType.BOOL
ROWS, COLUMNS = symbol("n0", lo=0), symbol("n1", lo=0)


def rows(extent: Expr | int, length: Expr | int) -> tuple[Range, Range, Expr, Expr]:
    x = symbol("x0", extent=extent)
    r = symbol("r0", extent=length)
    return (
        Range(symbol=x, kind="parallel"),
        Range(symbol=r, kind="reduction"),
        x,
        r,
    )


def reduction_kernel(
    name: str,
    value: Callable[[Load, Expr], Scalar],
    source: DType,
    result: DType,
    extent: Expr | int,
    length: Expr | int,
) -> Kernel:
    """One output element per row, from rows of `in0`."""
    xr, rr, x, r = rows(extent, length)
    element = load("in0", [x * length + r], source)
    sizes = tuple(e for e in (extent, length) if isinstance(e, Expr))
    return Kernel(
        name=name,
        ranges=(xr, rr),
        args=(named_arg("in0", source, as_expr(extent) * length), named_arg("out0", result, extent)),
        sizes=sizes,
        stores=(Store(buffer="out0", index=x, value=value(element, r)),),
    )


def softmax_kernel(
    extent: Expr | int, length: Expr | int, *, online: bool = False, inplace: bool = False
) -> Kernel:
    xr, rr, x, r = rows(extent, length)
    element = load("in0", [x * length + r], F32)
    kind: ReduceKind = "online_softmax" if online else "max"
    top = reduce(kind, [element], [r])
    e = op("exp", op("sub", element, top))
    total = reduce(kind, [element], [r], output=1) if online else reduce("sum", [e], [r])
    return Kernel(
        name="softmax",
        ranges=(xr, rr),
        args=(
            named_arg("in0", F32, as_expr(extent) * length),
            named_arg("out0", F32, as_expr(extent) * length),
        ),
        sizes=tuple(s for s in (extent, length) if isinstance(s, Expr)),
        stores=(Store(buffer="out0", index=x * length + r, value=op("div", e, total)),),
        aliasing=(("out0", "in0"),) if inplace else (),
    )


@pytest.mark.parametrize("online", [False, True])
def test_softmax_of_open_sizes_is_torchs(load_kernel: LoadKernel, threads: Threads, online: bool) -> None:
    run = load_kernel(softmax_kernel(ROWS, COLUMNS, online=online))
    for n, m in ((1, 1), (3, 7), (5, 64), (17, 1000), (0, 5), (5, 0), (300, 129)):
        x = torch.randn(n, m) * 10
        out = torch.empty(n, m)

        def compute(
            x: torch.Tensor = x, out: torch.Tensor = out, n: int = n, m: int = m
        ) -> list[torch.Tensor]:
            run(x, out, n, m)
            return [out]

        threads(compute)
        expected = torch.softmax(x.double(), 1)
        assert torch.allclose(out.double(), expected, rtol=2e-6, atol=1e-9)


def test_softmax_in_place(load_kernel: LoadKernel) -> None:
    run = load_kernel(softmax_kernel(9, 768, inplace=True))
    x = torch.randn(9, 768)
    expected = torch.softmax(x.double(), 1)
    run(x, x)
    assert torch.allclose(x.double(), expected, rtol=2e-6, atol=1e-9)


KINDS: dict[ReduceKind, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "prod": torch.prod,
    "min": torch.amin,
    "max": torch.amax,
    "argmin": torch.argmin,
    "argmax": torch.argmax,
}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I32, DType.U8])
@pytest.mark.parametrize("length", [1, 5, 37, 256])
def test_all_kinds_are_reduced_in_one_kernel(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, length: int
) -> None:
    """All kinds in one kernel, as in a horizontally fused one."""
    xr, rr, x, r = rows(4, length)
    element = load("in0", [x * length + r], dtype)
    values = [reduce(kind, [element], [r]) for kind in KINDS]
    args = [named_arg("in0", dtype, 4 * length)]
    stores = []
    for number, value in enumerate(values):
        args.append(named_arg(f"out{number}", value.dtype, 4))
        stores.append(Store(buffer=f"out{number}", index=x, value=value))
    kernel = Kernel(name="kinds", ranges=(xr, rr), args=tuple(args), stores=tuple(stores))
    run = load_kernel(kernel)
    kind = torch_dtype(dtype)
    data = (
        torch.rand(4, length).to(kind) * 0.5 + 0.75
        if dtype.is_float
        else torch.randint(0, 9, (4, length)).to(kind)
    )
    data = data.to(kind)
    outputs = [torch.empty(4, dtype=torch_dtype(v.dtype)) for v in values]
    run(data, *outputs)
    for (name, function), out in zip(KINDS.items(), outputs, strict=True):
        expected = function(data, dim=1).to(out.dtype)
        if name in ("sum", "prod") and dtype.is_float:
            assert torch.allclose(out, expected, rtol=1e-5)
        else:
            assert torch.equal(out, expected), name


def test_nan_and_ties(load_kernel: LoadKernel) -> None:
    nan, inf = float("nan"), float("inf")
    width = 100
    data = torch.zeros(6, width)
    data[0, [40, 90]] = 5.0  # first of equals
    data[1, 70] = nan
    data[1, [80, 3]] = inf
    data[2, [99, 64]] = nan
    data[3] = -inf
    data[4] = inf
    data[5, [99, 98]] = -3.0
    xr, rr, x, r = rows(6, width)
    element = load("in0", [x * width + r], F32)
    kinds: tuple[ReduceKind, ...] = ("argmax", "argmin", "max", "min")
    values = [reduce(kind, [element], [r]) for kind in kinds]
    kernel = Kernel(
        name="extremes",
        ranges=(xr, rr),
        args=(named_arg("in0", F32, 600), *(named_arg(f"out{k}", v.dtype, 6) for k, v in enumerate(values))),
        stores=tuple(Store(buffer=f"out{k}", index=x, value=v) for k, v in enumerate(values)),
    )
    out = [
        torch.empty(6, dtype=torch.int64),
        torch.empty(6, dtype=torch.int64),
        torch.empty(6),
        torch.empty(6),
    ]
    load_kernel(kernel)(data, *out)
    # torch's own ties are checked by position: the first one
    assert out[0].tolist() == [40, 70, 64, 0, 0, 0]
    assert out[1].tolist() == [0, 70, 64, 0, 0, 98]
    assert torch.allclose(out[2], data.amax(1), equal_nan=True)
    assert torch.allclose(out[3], data.amin(1), equal_nan=True)


def test_layer_norm_bf16(load_kernel: LoadKernel) -> None:
    width = 300
    xr, rr, x, r = rows(ROWS, width)
    element = cast(load("in0", [x * width + r], BF16), F32)
    mean = reduce("welford", [element], [r])
    variance = op("div", reduce("welford", [element], [r], output=1), const(width, F32))
    scale = op("rsqrt", op("add", variance, const(1e-5, F32)))
    normal = op("mul", op("sub", element, mean), scale)
    kernel = Kernel(
        name="layer_norm",
        ranges=(xr, rr),
        args=(
            named_arg("in0", BF16, ROWS * width),
            named_arg("out0", BF16, ROWS * width),
            named_arg("out1", F32, ROWS),
        ),
        sizes=(ROWS,),
        stores=(
            Store(buffer="out0", index=x * width + r, value=cast(normal, BF16)),
            Store(buffer="out1", index=x, value=mean),
        ),
    )
    run = load_kernel(kernel)
    data = (torch.randn(40, width) * 3 + 50).bfloat16()
    out, means = torch.empty_like(data), torch.empty(40)
    run(data, out, means, 40)
    expected = torch.nn.functional.layer_norm(data.double(), (width,))
    assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()
    assert torch.allclose(means.double(), data.double().mean(1), rtol=1e-6)


def test_long_sum_is_accurate(load_kernel: LoadKernel, threads: Threads) -> None:
    n = 1_000_003
    run = load_kernel(
        reduction_kernel("total", lambda v, r: reduce("sum", [v], [r]), F32, F32, 1, symbol("n0", lo=0))
    )
    torch.manual_seed(0)
    for data in (torch.rand(n), torch.randn(n) + 0.1):
        out = torch.empty(1)

        def compute(data: torch.Tensor = data, out: torch.Tensor = out) -> list[torch.Tensor]:
            run(data, out, n)
            return [out]

        threads(compute)
        exact = data.double().sum().item()
        own, eager = abs(out.item() - exact), abs(data.sum().item() - exact)
        assert own <= max(2 * eager, abs(exact) * 2**-23)


def test_masked_and_truth(load_kernel: LoadKernel) -> None:
    length = 70
    xr, rr, x, r = rows(3, length)
    element = load("in0", [x * length + r], F32)
    positive = op("gt", element, const(0, F32))
    values = [
        reduce("sum", [element, positive], [r]),
        reduce("argmin", [element, positive], [r]),
        reduce("any", [positive], [r]),
        reduce("all", [positive], [r]),
        reduce("xor_sum", [cast(element, I64)], [r]),
        reduce("welford", [element, positive], [r], output=1),
    ]
    kernel = Kernel(
        name="masked",
        ranges=(xr, rr),
        args=(
            named_arg("in0", F32, 3 * length),
            *(named_arg(f"out{k}", v.dtype, 3) for k, v in enumerate(values)),
        ),
        stores=tuple(Store(buffer=f"out{k}", index=x, value=v) for k, v in enumerate(values)),
    )
    data = torch.randn(3, length) * 5
    data[1] = -1
    data[2] = data[2].abs() + 0.1
    dtypes = (torch.float32, torch.int64, torch.bool, torch.bool, torch.int64, torch.float32)
    out = [torch.empty(3, dtype=d) for d in dtypes]
    load_kernel(kernel)(data, *out)
    chosen = torch.where(data > 0, data, torch.inf)
    assert torch.allclose(out[0].double(), torch.where(data > 0, data, 0).double().sum(1), rtol=1e-6)
    assert out[1].tolist() == [chosen[0].argmin().item(), 0, chosen[2].argmin().item()]
    assert out[2].tolist() == [True, False, True]
    assert out[3].tolist() == [False, False, True]
    xor = [0, 0, 0]
    for row in range(3):
        for v in data[row].to(torch.int64).tolist():
            xor[row] ^= v
    assert out[4].tolist() == xor
    for row in (0, 2):
        kept = data[row][data[row] > 0].double()
        assert abs(out[5][row].item() - ((kept - kept.mean()) ** 2).sum().item()) < 1e-3


def test_store_over_an_input_waits_for_its_last_read(load_kernel: LoadKernel) -> None:
    """`out1` may be `in0`: the doubled row must not be what the softmax's later passes read."""
    xr, rr, x, r = rows(7, 500)
    at = x * 500 + r
    v = load("in0", [at], F32)
    shifted = op("sub", v, reduce("max", [v], [r]))
    total = reduce("sum", [op("mul", shifted, shifted)], [r])
    kernel = Kernel(
        name="in_place",
        ranges=(xr, rr),
        args=(named_arg("in0", F32, 3500), named_arg("out0", F32, 3500), named_arg("out1", F32, 3500)),
        stores=(
            Store(buffer="out1", index=at, value=op("add", v, v)),
            Store(buffer="out0", index=at, value=op("div", shifted, total)),
        ),
        aliasing=(("out1", "in0"),),
    )
    x_in, out = torch.randn(7, 500), torch.empty(7, 500)
    given = x_in.clone()
    load_kernel(kernel)(x_in, out, x_in)
    below = (given - given.amax(1, keepdim=True)).double()
    assert torch.allclose(out.double(), below / (below * below).sum(1, keepdim=True), rtol=1e-5)
    assert torch.equal(x_in, given + given)


def test_stores_that_wait_hold_back_others(load_kernel: LoadKernel) -> None:
    """`out1` may be `in0`, which the last pass reads; it reads `in1` there, so `in1` keeps its numbers until
    then.
    """
    xr, rr, x, r = rows(7, 500)
    at = x * 500 + r
    v, w = load("in0", [at], F32), load("in1", [at], F32)
    below = op("sub", v, reduce("max", [v], [r]))
    total = reduce("sum", [op("mul", below, below)], [r])
    names = ("in0", "in1", "out1", "out2")
    kernel = Kernel(
        name="in_turn",
        ranges=(xr, rr),
        args=(
            *(named_arg(name, F32, 3500) for name in names),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(7)),
        ),
        stores=(
            Store(buffer="out2", index=at, value=op("add", w, w)),
            Store(buffer="out1", index=at, value=op("mul", w, w)),
            Store(buffer="out0", index=x, value=total),
        ),
        aliasing=(("out1", "in0"), ("out2", "in1")),
    )
    first, second, sums = torch.randn(7, 500), torch.randn(7, 500), torch.empty(7)
    given = first.clone(), second.clone()
    load_kernel(kernel)(first, second, first, second, sums)
    assert torch.equal(first, given[1] * given[1])
    assert torch.equal(second, given[1] + given[1])
    squares = (given[0] - given[0].amax(1, keepdim=True)).double().square().sum(1)
    assert torch.allclose(sums.double(), squares, rtol=1e-5)


@pytest.mark.parametrize("source", [F32, F64, BF16, I64, BOOL])
@pytest.mark.parametrize("length", [8, 17, 49, 145, 197])
def test_rows_that_lanes_do_not_divide(
    load_kernel: LoadKernel, torch_dtype: TorchDType, source: DType, length: int
) -> None:
    kinds: tuple[ReduceKind, ...] = ("any", "all") if source.is_bool else ("sum", "max", "min")
    x, r = symbol("x0", extent=5), symbol("r0", extent=length)
    value = load("in0", [x * length + r], source)
    results = [reduce(kind, [value], [r]) for kind in kinds]
    kernel = Kernel(
        name="left",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=source, role="in", span=as_expr(5 * length)),
            *(
                TensorArg(name=f"out{i}", dtype=value.dtype, role="out", span=as_expr(5))
                for i, value in enumerate(results)
            ),
        ),
        stores=tuple(Store(buffer=f"out{i}", index=x, value=value) for i, value in enumerate(results)),
    )
    data = torch.randint(-9, 10, (5, length)).to(torch_dtype(source))
    if source.is_bool:
        data[:3] = torch.tensor([True, False, True])[:, None]
        data[2, -1] = False
    elif source.is_float:
        data[0, -1] = data[1, 0] = data[2, length // 2] = float("nan")
        data[3, -1], data[4, 0] = float("inf"), float("-inf")
    outs = [torch.empty(5, dtype=torch_dtype(value.dtype)) for value in results]
    load_kernel(kernel)(data, *outs)
    functions: dict[ReduceKind, Callable[[torch.Tensor, int], torch.Tensor]] = {
        "sum": torch.sum,
        "max": torch.amax,
        "min": torch.amin,
        "any": torch.any,
        "all": torch.all,
    }
    for kind, out in zip(kinds, outs, strict=True):
        torch.testing.assert_close(
            out, functions[kind](data, 1).to(out.dtype), rtol=0, atol=0, equal_nan=True
        )


def test_what_repeats_along_a_row_leaves_the_lanes_their_work(load_kernel: LoadKernel) -> None:
    """Nearest upsampling: two neighbours read one element, but are two lanes."""
    xr, rr, x, r = rows(12, 96)
    element = op("mul", load("in0", [x * 48 + r // 2], F32), load("in1", [x * 96 + r], F32))
    kernel = Kernel(
        name="repeated",
        ranges=(xr, rr),
        args=(named_arg("in0", F32, 12 * 48), named_arg("in1", F32, 12 * 96), named_arg("out0", F32, 12)),
        stores=(Store(buffer="out0", index=x, value=reduce("sum", [element], [r])),),
    )
    text = CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    assert "float sum_0_lanes[16];" in text and "r0 / 2" in text
    a, b, out = torch.randn(12, 48), torch.randn(12, 96), torch.empty(12)
    load_kernel(kernel)(a, b, out)
    exact = (a.double().repeat_interleave(2, 1) * b).sum(1)
    assert torch.allclose(out.double(), exact, rtol=1e-4, atol=1e-4)
