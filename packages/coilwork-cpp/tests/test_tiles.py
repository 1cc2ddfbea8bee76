"""Loops that read along one range and write along another: transposition in registers, straight to memory or
into tiles.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Scalar, load, op
from coilwork_ir.target import Target, target

N, M, B = symbol("n0", lo=0), symbol("n1", lo=0), symbol("n2", lo=0)
# around every size of squares, of blocks and of long blocks
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 129, 255, 256, 257, 300)
TYPES = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64, DType.I8, DType.BOOL, DType.F8E4M3)


def matrices(
    dtype: DType,
    value: Callable[[Scalar, Scalar], Scalar],
    n: Expr | int = N,
    m: Expr | int = M,
    batch: Expr | int = B,
) -> Kernel:
    """out[b, i, j] = value(in0[b, j, i], in1[b, i, j])"""
    b, i, j = symbol("x0", extent=batch), symbol("x1", extent=n), symbol("x2", extent=m)
    other, at = b * (n * m) + j * n + i, b * (n * m) + i * m + j
    result = value(load("in0", [other], dtype), load("in1", [at], dtype))
    return Kernel(
        name="matrices",
        ranges=tuple(Range(symbol=s, kind="parallel") for s in (b, i, j)),
        args=tuple(
            TensorArg(name=name, dtype=dtype, role="out" if name == "out0" else "in", span=as_expr(b * n * m))
            for name in ("in0", "in1", "out0")
        ),
        sizes=tuple(s for s in (B, N, M) if any(s is given for given in (batch, n, m))),
        stores=(Store(buffer="out0", index=at, value=result),),
    )


def moved(one: Scalar, other: Scalar) -> Scalar:
    return one


def both(one: Scalar, other: Scalar) -> Scalar:
    return op("where", op("eq", one, other), one, other)


def of_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bytes as elements: whatever numbers, infinities and NaNs these are."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    flat = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def targets(machine: Target) -> list[Target]:
    """What this machine runs: its own target, and the narrower one."""
    return [target(name) for name in sorted({machine.name, "x86-64-avx2"})]


@pytest.mark.parametrize("dtype", TYPES)
def test_moves_keep_every_bit(
    build_source: Callable, torch_dtype: Callable, machine: Target, dtype: DType
) -> None:
    own, chosen = torch_dtype(dtype), random.Random(str(dtype))
    for each in targets(machine):
        source = CppCodegen().emit(matrices(dtype, moved), each, {})
        assert "transpose_far(" in source.text and "simd" not in source.text.split("nest_0")[1]
        run = build_source(source)
        for n in SIZES:
            for m in chosen.sample(SIZES, 5):
                batch = chosen.randint(1, 2)
                x = of_bytes(own, batch, m, n)
                out = of_bytes(own, batch, n, m)
                run(x, x, out, batch, n, m)
                assert torch.equal(as_bytes(out), as_bytes(x.transpose(1, 2))), (each.name, n, m)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.BOOL])
def test_tiles_are_what_loops_read(
    build_source: Callable, torch_dtype: Callable, machine: Target, dtype: DType
) -> None:
    own, chosen = torch_dtype(dtype), random.Random(str(dtype))
    for each in targets(machine):
        source = CppCodegen().emit(matrices(dtype, both), each, {})
        assert "transpose(in0" in source.text
        run = build_source(source)
        for n in SIZES:
            for m in chosen.sample(SIZES, 5):
                x = torch.randint(0, 2, (2, m, n)).to(own)
                y = torch.randint(0, 2, (2, n, m)).to(own)
                out = torch.empty_like(y)
                run(x, y, out, 2, n, m)
                expected = torch.where(x.transpose(1, 2) == y, x.transpose(1, 2), y)
                assert torch.equal(out, expected), (each.name, n, m)


def test_nothing_is_written_beside(build_source: Callable, machine: Target) -> None:
    """Rows of the result that lie apart: what is between them stays."""
    n, m, apart = 77, 45, 48
    i, j = symbol("x0", extent=n), symbol("x1", extent=m)
    kernel = Kernel(
        name="apart",
        ranges=tuple(Range(symbol=s, kind="parallel") for s in (i, j)),
        args=(
            TensorArg(name="in0", dtype=DType.F32, role="in", span=as_expr(n * m)),
            TensorArg(name="out0", dtype=DType.F32, role="out", span=as_expr(n * apart)),
        ),
        stores=(Store(buffer="out0", index=i * apart + j, value=load("in0", [j * n + i], DType.F32)),),
    )
    for each in targets(machine):
        x, out = torch.randn(m, n), torch.full((n, apart), 7.0)
        build_source(CppCodegen().emit(kernel, each, {}))(x, out)
        assert torch.equal(out[:, :m], x.t())
        assert torch.equal(out[:, m:], torch.full((n, apart - m), 7.0))


def test_threads_share_tiles(load_kernel: Callable, threads: Callable) -> None:
    n, m = 600, 1000
    for value in (moved, both):
        run = load_kernel(matrices(DType.F32, value, n, m, 1))
        x, y = torch.randn(m, n), torch.randn(n, m)

        def compute(run: Callable = run, x: torch.Tensor = x, y: torch.Tensor = y) -> list[torch.Tensor]:
            out = torch.empty(n, m)
            run(x, y, out)
            return [out]

        threads(compute)
        assert torch.equal(compute()[0], x.t() if value is moved else y)


def test_what_is_converted_or_computed_goes_by_tiles() -> None:
    text = CppCodegen().emit(matrices(DType.F32, both), target("x86-64-avx512"), {}).text
    assert "alignas(64) float tile_0[4096];" in text and "transpose_far" not in text
