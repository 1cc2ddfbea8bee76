"""Reductions across the contiguous range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, Threads, named_arg

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.scalar import Load, Scalar, cast, const, load, op, reduce

F32, F64, I64 = DType.F32, DType.F64, DType.I64


def column_kernel(
    values: Callable[[Load, Expr], list[tuple[str, Scalar]]],
    source: DType,
    n: Expr | int,
    m: Expr | int,
) -> Kernel:
    """Reduce `in0[n, m]` along its first dimension. Stores named `row` go to `[n, m]`, others to `[m]`."""
    x, r = symbol("x0", extent=m), symbol("r0", extent=n)
    at = r * m + x
    results = values(load("in0", [at], source), r)
    args = [named_arg("in0", source)]
    stores = []
    for number, (kind, value) in enumerate(results):
        args.append(named_arg(f"out{number}", value.dtype))
        stores.append(Store(buffer=f"out{number}", index=at if kind == "row" else x, value=value))
    return Kernel(
        name="columns",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=tuple(args),
        sizes=tuple(e for e in (n, m) if isinstance(e, Expr)),
        stores=tuple(stores),
    )


@pytest.mark.parametrize("split", [0, 16384])
def test_sums_of_columns_of_open_sizes_are_torchs(
    load_kernel: LoadKernel, threads: Threads, split: int
) -> None:
    n, m = symbol("n0", lo=0), symbol("n1", lo=0)
    k = column_kernel(
        lambda v, r: [("x", reduce("sum", [v], [r])), ("x", reduce("max", [v], [r]))], F32, n, m
    )
    run = load_kernel(k, split_elements=split)
    for rows, columns in ((1, 1), (5, 3), (1000, 77), (0, 9), (9, 0), (3, 5000), (70_000, 20)):
        x = torch.rand(rows, columns)
        out, top = torch.empty(columns), torch.empty(columns)

        def compute(
            x: torch.Tensor = x, out: torch.Tensor = out, top: torch.Tensor = top
        ) -> list[torch.Tensor]:
            run(x, out, top, *x.shape)
            return [out, top]

        threads(compute)
        assert torch.allclose(out.double(), x.double().sum(0), rtol=3e-7)
        if rows:
            assert torch.equal(top, x.amax(0))


def test_softmax_along_the_first_dimension(load_kernel: LoadKernel) -> None:
    def values(v: Load, r: Expr) -> list[tuple[str, Scalar]]:
        e = op("exp", op("sub", v, reduce("online_softmax", [v], [r])))
        return [("row", op("div", e, reduce("online_softmax", [v], [r], output=1)))]

    x, out = torch.randn(37, 150) * 5, torch.empty(37, 150)
    load_kernel(column_kernel(values, F32, 37, 150))(x, out)
    assert torch.allclose(out.double(), torch.softmax(x.double(), 0), rtol=2e-6)


def test_positions_of_extrema_are_the_first_ones(load_kernel: LoadKernel) -> None:
    x = torch.randint(0, 4, (50, 70))
    outputs = [torch.empty(70, dtype=torch.int64), torch.empty(70, dtype=torch.int64)]
    kernel = column_kernel(
        lambda v, r: [("x", reduce("argmax", [v], [r])), ("x", reduce("argmin", [v], [r]))], I64, 50, 70
    )
    load_kernel(kernel)(x, *outputs)
    assert torch.equal(outputs[0], (x == x.amax(0)).to(torch.uint8).argmax(0))
    assert torch.equal(outputs[1], (x == x.amin(0)).to(torch.uint8).argmax(0))


def test_truth_and_xor(load_kernel: LoadKernel) -> None:
    def values(v: Load, r: Expr) -> list[tuple[str, Scalar]]:
        positive = op("gt", v, const(0, I64))
        return [
            ("x", reduce("any", [positive], [r])),
            ("x", reduce("all", [positive], [r])),
            ("x", reduce("xor_sum", [v], [r])),
        ]

    x = torch.randint(-1, 20, (6, 90))
    outputs = [
        torch.empty(90, dtype=torch.bool),
        torch.empty(90, dtype=torch.bool),
        torch.empty(90, dtype=torch.int64),
    ]
    load_kernel(column_kernel(values, I64, 6, 90))(x, *outputs)
    assert torch.equal(outputs[0], (x > 0).any(0)) and torch.equal(outputs[1], (x > 0).all(0))
    xor = x[0].clone()
    for row in x[1:]:
        xor ^= row
    assert torch.equal(outputs[2], xor)


@pytest.mark.parametrize("split", [0, 4096])
def test_batch_norm_statistics(load_kernel: LoadKernel, threads: Threads, split: int) -> None:
    """Two reduction ranges around the channel: NCHW, reduced along N and HW."""
    n, c, hw = 6, 5, 3000
    x, r0, r1 = symbol("x0", extent=c), symbol("r0", extent=n), symbol("r1", extent=hw)
    at = r0 * (c * hw) + x * hw + r1
    v = load("in0", [at], F32)
    axes = [r0, r1]
    mean = reduce("welford", [v], axes)
    variance = op("div", reduce("welford", [v], axes, output=1), const(n * hw, F32))
    normal = op("mul", op("sub", v, mean), op("rsqrt", op("add", variance, const(1e-5, F32))))
    kernel = Kernel(
        name="batch_norm",
        ranges=(
            Range(symbol=x, kind="parallel"),
            *(Range(symbol=r, kind="reduction") for r in axes),
        ),
        args=(named_arg("in0", F32), named_arg("out0", F32), named_arg("out1", F32), named_arg("out2", F32)),
        stores=(
            Store(buffer="out0", index=at, value=normal),
            Store(buffer="out1", index=x, value=mean),
            Store(buffer="out2", index=x, value=variance),
        ),
    )
    run = load_kernel(kernel, split_elements=split)
    data = torch.randn(n, c, hw) * 2 + 100
    outputs = [torch.empty(n, c, hw), torch.empty(c), torch.empty(c)]

    def compute() -> list[torch.Tensor]:
        run(data, *outputs)
        return outputs

    threads(compute)
    want = torch.nn.functional.batch_norm(data.double(), None, None, training=True)
    assert torch.allclose(outputs[0].double(), want, atol=1e-4)
    assert torch.allclose(outputs[1].double(), data.double().mean((0, 2)), rtol=1e-6)
    assert torch.allclose(outputs[2].double(), data.double().var((0, 2), correction=0), rtol=1e-5)


def test_long_column_is_accurate(load_kernel: LoadKernel) -> None:
    x, out = torch.rand(300_000, 3), torch.empty(3)
    load_kernel(column_kernel(lambda v, r: [("x", reduce("sum", [v], [r]))], F32, 300_000, 3))(x, out)
    assert torch.allclose(out.double(), x.double().sum(0), rtol=2e-7)


def test_double_column_values_are_shared(load_kernel: LoadKernel) -> None:
    def values(v: Load, r: Expr) -> list[tuple[str, Scalar]]:
        norm = op("sqrt", reduce("sum", [op("mul", v, v)], [r]))
        return [("row", op("div", v, norm)), ("x", norm), ("x", cast(op("gt", norm, const(3, F64)), I64))]

    x = torch.randn(9, 40).double()
    outputs = [torch.empty_like(x), torch.empty(40).double(), torch.empty(40, dtype=torch.int64)]
    load_kernel(column_kernel(values, F64, 9, 40))(x, *outputs)
    norm = x.norm(dim=0)
    assert torch.allclose(outputs[0], x / norm) and torch.allclose(outputs[1], norm)
    assert torch.equal(outputs[2], (norm > 3).long())
