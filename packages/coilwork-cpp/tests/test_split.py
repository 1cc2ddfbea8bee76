"""Reductions with few results: pieces that threads share, combined in order."""

from __future__ import annotations

import pytest
import torch
from cpp_fixtures import LoadKernel, Runner, Threads, TorchDType

from coilwork_cpp import CppCodegen, CppOptions
from coilwork_cpp.rewrites.split import split_reductions
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.scalar import cast, load, op, reduce
from coilwork_ir.target import get_target

F32 = DType.F32


def whole(length: Expr | int, rows: int) -> Kernel:
    """Softmax, argmax, argmin, variance and product over rows that are few and long."""
    x, r = symbol("x0", extent=rows), symbol("r0", extent=length)
    at = x * length + r
    v = load("in0", [at], F32)
    e = op("exp", op("sub", v, reduce("online_softmax", [v], [r])))
    results = [
        reduce("argmax", [v], [r]),
        reduce("argmin", [v], [r]),
        reduce("welford", [v], [r], output=1),
        reduce("any", [op("isnan", v)], [r]),
    ]
    softmax = op("div", e, reduce("online_softmax", [v], [r], output=1))
    outputs = [
        TensorArg(name=f"out{k + 1}", dtype=q.dtype, role="out", span=as_expr(rows))
        for k, q in enumerate(results)
    ]
    return Kernel(
        name="whole",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=as_expr(length) * rows),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(length) * rows),
            *outputs,
        ),
        sizes=(length,) if isinstance(length, Expr) else (),
        stores=(
            Store(buffer="out0", index=at, value=softmax),
            *(Store(buffer=f"out{k + 1}", index=x, value=q) for k, q in enumerate(results)),
        ),
    )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_everything_about_long_rows(
    load_kernel: LoadKernel, threads: Threads, rows: int, dynamic: bool
) -> None:
    lengths = (1, 100, 16384, 100_001) if dynamic else (100_001,)
    run = load_kernel(whole(symbol("n0", lo=0) if dynamic else 100_001, rows))
    for length in lengths:
        torch.manual_seed(length)
        x = torch.randn(rows, length)
        if length > 20_000:
            x[:, [17_000, 90_000]] = 9.0
            x[:, [99_000, 50_000]] = -9.0
        outputs = [
            torch.empty(rows, length),
            torch.empty(rows, dtype=torch.int64),
            torch.empty(rows, dtype=torch.int64),
        ]
        outputs += [torch.empty(rows), torch.empty(rows, dtype=torch.bool)]

        def compute(
            x: torch.Tensor = x, outputs: list[torch.Tensor] = outputs, length: int = length
        ) -> list[torch.Tensor]:
            run(x, *outputs, *([length] if dynamic else []))
            return outputs

        threads(compute)
        assert torch.allclose(outputs[0].double(), torch.softmax(x.double(), 1), rtol=5e-6, atol=0)
        first = 17_000 if length > 20_000 else None
        assert outputs[1].tolist() == ([first] * rows if first else x.argmax(1).tolist())
        assert outputs[2].tolist() == ([50_000] * rows if first else x.argmin(1).tolist())
        assert torch.allclose(outputs[3].double(), x.double().var(1, correction=0) * length, rtol=1e-5)
        assert not outputs[4].any()


def test_nan_wins_in_every_piece(load_kernel: LoadKernel) -> None:
    x = torch.zeros(1, 100_001)
    x[0, [70_000, 30_000]] = float("nan")
    x[0, 5] = float("inf")
    outputs = [torch.empty_like(x), torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64)]
    outputs += [torch.empty(1), torch.empty(1, dtype=torch.bool)]
    load_kernel(whole(100_001, 1))(x, *outputs)
    assert outputs[1].item() == 30_000 and outputs[2].item() == 30_000 and outputs[4].item()


def test_scratch_memory_is_declared() -> None:
    source = CppCodegen().emit(whole(100_000, 1), get_target("x86-64-avx512"), {})
    scratch = [a for a in source.args if a.role == "scratch"]
    assert scratch and all(a.elements is not None for a in scratch)
    assert not [
        a
        for a in CppCodegen().emit(whole(1000, 1), get_target("x86-64-avx512"), {}).args
        if a.role == "scratch"
    ]


BATCH_NORM_TRAINING = """
kernel @norm fast {
  range x0: `32` parallel
  range r0: `8192` reduction
  arg in0: f32 in span `262144`
  arg io0: f32 inout span `32`
  arg out0: f32 out span `262144`
  aliasing (out0 of in0)
  body {
    t0 = load %in0[32*r0 + x0] : f32
    t1 = reduce welford 0 (t0) over (r0)
    t2 = load %io0[x0] : f32
    t3 = sub(t0, t1)
    t4 = add(t3, t2)
    t5 = const 0.1 : f32
    t6 = mul(t1, t5)
    t7 = const 0.9 : f32
    t8 = mul(t2, t7)
    t9 = add(t6, t8)
    store %io0[x0] = t9
    store %out0[32*r0 + x0] = t4
  }
}
"""


def test_updates_in_place_happen_once_and_after_every_read(load_kernel: LoadKernel, threads: Threads) -> None:
    """A running statistic is one element per column: its old value serves all points, its new one is written
    once.
    """
    kernel = parse_kernel(BATCH_NORM_TRAINING)
    assert len(split_reductions(kernel, CppOptions(), get_target("x86-64-avx2").machine.loops)) > 1, (
        "the kernel should have been split for this test to mean anything"
    )
    run = load_kernel(kernel)
    torch.manual_seed(0)
    x, running = torch.randn(8192, 32), torch.randn(32)

    def compute() -> list[torch.Tensor]:
        statistic, result = running.clone(), torch.empty_like(x)
        run(x, statistic, result)
        return [statistic, result]

    threads(compute)
    statistic, result = compute()
    mean = x.double().mean(0)
    assert torch.allclose(statistic.double(), 0.1 * mean + 0.9 * running, atol=1e-6)
    assert torch.allclose(result.double(), x - mean + running, atol=1e-5)


def grouped(images: Expr | int, groups: int, pixels: Expr | int, size: int, dtype: DType) -> Kernel:
    """Mean, sum of squared differences and maximum of every group of `size` channels of
    channels-last images.
    """
    n, g = symbol("x0", extent=images), symbol("x1", extent=groups)
    p, c = symbol("r0", extent=pixels), symbol("r1", extent=size)
    value = cast(load("in0", [((n * pixels + p) * groups + g) * size + c], dtype), F32)
    scaled = op("mul", value, load("in1", [g * size + c], F32))
    results = (
        reduce("welford", [scaled], [p, c]),
        reduce("welford", [scaled], [p, c], output=1),
        reduce("max", [scaled], [p, c]),
    )
    count = as_expr(images) * groups
    return Kernel(
        name="grouped",
        ranges=(
            Range(symbol=n, kind="parallel"),
            Range(symbol=g, kind="parallel"),
            Range(symbol=p, kind="reduction"),
            Range(symbol=c, kind="reduction"),
        ),
        args=(
            TensorArg(name="in0", dtype=dtype, role="in", span=count * pixels * size),
            TensorArg(name="in1", dtype=F32, role="in", span=as_expr(groups * size)),
            *(TensorArg(name=f"out{k}", dtype=F32, role="out", span=count) for k in range(3)),
        ),
        sizes=tuple(e for e in (images, pixels) if isinstance(e, Expr)),
        stores=tuple(Store(buffer=f"out{k}", index=n * groups + g, value=v) for k, v in enumerate(results)),
    )


def check_groups(run: Runner, threads: Threads, x: torch.Tensor, groups: int, size: int, *sizes: int) -> None:
    images, pixels = x.shape[0], x.shape[1]
    scale = torch.rand(groups * size) + 0.5
    outputs = [torch.empty(images, groups) for _ in range(3)]

    def compute() -> list[torch.Tensor]:
        run(x, scale, *outputs, *sizes)
        return outputs

    threads(compute)
    values = (x.float() * scale).double().view(images, pixels, groups, size).transpose(1, 2).flatten(2)
    torch.testing.assert_close(outputs[0].double(), values.mean(2), rtol=1e-5, atol=1e-5)
    squares = values.var(2, unbiased=False) * pixels * size
    torch.testing.assert_close(outputs[1].double(), squares, rtol=1e-5, atol=1e-4)
    assert torch.equal(outputs[2], values.float().amax(2))


@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize(
    "images, groups, pixels, size", [(9, 8, 256, 4), (1, 32, 5000, 10), (2, 3, 4099, 15), (3, 2, 70, 2)]
)
def test_short_groups_of_channels_are_columns(
    load_kernel: LoadKernel,
    threads: Threads,
    torch_dtype: TorchDType,
    images: int,
    groups: int,
    pixels: int,
    size: int,
    dtype: DType,
) -> None:
    kernel = grouped(images, groups, pixels, size, dtype)
    assert "x1r1" in CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    x = torch.randn(images, pixels, groups * size).to(torch_dtype(dtype))
    check_groups(load_kernel(kernel), threads, x, groups, size)


def test_short_groups_of_any_number_of_images_and_pixels(load_kernel: LoadKernel, threads: Threads) -> None:
    images, pixels = symbol("n0", lo=0), symbol("n1", lo=0)
    run = load_kernel(grouped(images, 4, pixels, 6, F32))
    for n, m in ((1, 1), (2, 63), (3, 1000), (17, 64)):
        check_groups(run, threads, torch.randn(n, m, 24), 4, 6, n, m)
