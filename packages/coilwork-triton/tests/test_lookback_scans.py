"""Scans of rows that programs share: what they give, and that it is the same bits every time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source
from sharing_kernels import shared_rows

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import load, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F64: torch.float64,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I8: torch.int8,
}
SCANNED = (DType.F32, DType.F64, DType.I64, DType.I32, DType.F16, DType.I8)


def values(kind: str, rows: int, length: int, dtype: DType) -> torch.Tensor:
    made = torch.Generator().manual_seed(length)
    if kind == "prod":
        # no product of some leaves the range of small types
        signs = torch.randint(0, 2, (rows, length), generator=made) * 2 - 1
        if dtype.is_integer:
            return signs.to(TYPES[dtype])
        return (signs * (1 + torch.arange(length) % 2) / (1 + torch.arange(length) // 3 % 2)).to(TYPES[dtype])
    if dtype.is_float and dtype.itemsize > 2:
        return torch.randn(rows, length, generator=made, dtype=torch.float64).to(TYPES[dtype])
    return torch.randint(-2, 3, (rows, length), generator=made).to(TYPES[dtype])


def found(
    engine: TritonProcess,
    kind: ScanKind,
    x: torch.Tensor,
    piece: int,
    dtype: DType,
    *,
    reverse: bool = False,
    options: Mapping[str, object] = MappingProxyType({}),
) -> list[torch.Tensor]:
    """What the kernel gives for `x`, after a comparison with what it means."""
    rows, length = x.shape
    kernel = shared_rows(kind, rows, length, piece, dtype, reverse=reverse)
    return results(engine, kernel, x, options)


def results(
    engine: TritonProcess,
    kernel: Kernel,
    x: torch.Tensor,
    options: Mapping[str, object] = MappingProxyType({}),
) -> list[torch.Tensor]:
    """What `kernel` gives for `x`, after a comparison with what it means."""
    verify_kernel(kernel)
    args = {arg.name: torch.zeros(arg.span.value, dtype=TYPES[arg.dtype]) for arg in kernel.args}
    args["in0"] = x.reshape(-1).clone()
    source = TritonCodegen().emit(kernel, get_target("sm_90"), options)
    given = [value.clone() for value in args.values()]
    ran = run_source(engine, source, given)
    interpret_kernel(kernel, args, ())
    outs = []
    for (name, wanted), result in zip(args.items(), ran, strict=True):
        if name.startswith("out"):
            torch.testing.assert_close(result.cpu(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
            outs.append(result.cpu().view(x.shape))
    return outs


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(("sum", "prod", "max", "min"), SCANNED),
        # of narrower types it is computed in f32
        *itertools.product(("logcumsumexp",), (DType.F32, DType.F64)),
    ],
)
def test_pieces_come_after_each_other(
    engine: TritonProcess, kind: ScanKind, dtype: DType, reverse: bool
) -> None:
    for length in (512, 1025):
        x = values(kind, 2, length, dtype)
        if dtype.itemsize < 4:
            # sums that small types hold
            x[:, length // 4 : -length // 4] = 1 if kind == "prod" else 0
        found(engine, kind, x, 128, dtype, reverse=reverse)


@pytest.mark.parametrize("special", [float("inf"), float("nan"), float("-inf")])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logcumsumexp"])
def test_infinities_and_what_is_no_number(engine: TritonProcess, kind: ScanKind, special: float) -> None:
    x = values(kind, 3, 700, DType.F32)
    x[0, 300], x[1, 0], x[2, 699] = special, special, special
    x[1, 400] = float("-inf")
    found(engine, kind, x, 128, DType.F32)


def test_rows_of_equal_values_have_their_last_position(engine: TritonProcess) -> None:
    for value in (0.0, float("-inf")):
        _, at = found(engine, "max", torch.full((2, 600), value), 128, DType.F32)
        assert at.equal(torch.arange(600).expand(2, -1))


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_positions_of_64_bits(engine: TritonProcess, kind: ScanKind) -> None:
    for dtype in (DType.F32, DType.I64):
        found(engine, kind, values(kind, 2, 700, dtype), 128, dtype, options={"index_dtype": "i64"})


def test_rows_of_several_ranges(engine: TritonProcess) -> None:
    y, x, r = along("y0", 2), along("x0", 3), along("r0", 700, "reduction")
    value = scan("sum", load("in0", [y.symbol * 2100 + x.symbol * 700 + r.symbol], DType.F32), r.symbol)
    kernel = Kernel(
        name="running",
        ranges=(y, x, r),
        args=(arg("in0", DType.F32, 4200), arg("io0", DType.I64, 37), arg("out0", DType.F32, 4200)),
        stores=(Store(buffer="out0", index=x.symbol * 1400 + y.symbol * 700 + r.symbol, value=value),),
        workspace="io0",
    )
    results(engine, kernel, values("sum", 6, 700, DType.F32))


def test_rows_have_one_load_and_wait_only_for_those_before() -> None:
    text = TritonCodegen().emit(shared_rows("sum", 3, 5000, 1024, DType.F32), get_target("sm_90"), {}).text
    body = text[text.index("def running(") :]
    assert body.count("tl.load(in0") == 1 and "for " not in body
    assert body.index("tell(") < body.index("tl.cumsum(") < body.index("told(")


def test_products_are_scanned_by_as_many_lanes_as_a_program_has_threads() -> None:
    kernel, h200 = shared_rows("prod", 3, 5000, 1024, DType.F32), get_target("sm_90")
    narrow = replace(h200, max_threads_per_block=512)
    for device, lanes in ((h200, 1024), (narrow, 512)):
        assert f"= tl.arange(0, {lanes})\n" in TritonCodegen().emit(kernel, device, {}).text


def test_without_a_workspace_a_program_has_a_row() -> None:
    kernel = shared_rows("sum", 3, 20000, 4096, DType.F32)
    alone = replace(
        kernel,
        args=tuple(arg for arg in kernel.args if arg.name != "io0"),
        workspace="",
    )
    text = TritonCodegen().emit(alone, get_target("sm_90"), {}).text
    assert "ticket" not in text and "for r0_offset in" in text


@pytest.mark.slow
def test_what_is_told_passes_by_the_first_cache(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(shared_rows("sum", 3, 32768, 8192, DType.F32), get_target("sm_90"), {})
    text = compile_source(compiler, source, "sm_90")
    assert "ld.volatile.global" in text and "atom.global.gpu.relaxed.exch.b64" in text
    assert text.count("ld.global.v4.b32") == 8192 // (4 * 128)
