"""The running log of a sum of exponentials: whatever is large or small, infinite or not a number, and in
pieces; scans of rows that are alike.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import load, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.text.device_library import read_device_functions

F32 = DType.F32
LENGTH = 70


def kernel_for(rows: int, length: int, numerics: Numerics, reverse: bool) -> Kernel:
    x, r = along("x0", rows), along("r0", length, "reduction")
    flat = x.symbol * length + r.symbol
    value = scan("logcumsumexp", load("in0", [flat], F32), r.symbol, reverse=reverse)
    return Kernel(
        name="running",
        ranges=(x, r),
        args=(arg("in0", F32, rows * length), arg("out0", F32, rows * length)),
        stores=(Store(buffer="out0", index=flat, value=value),),
        numerics=numerics,
    )


def running(
    engine: TritonProcess,
    data: torch.Tensor,
    hint: str,
    *,
    numerics: Numerics = "fast",
    reverse: bool = False,
) -> torch.Tensor:
    rows, length = data.shape
    kernel = kernel_for(rows, length, numerics, reverse)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    found = run_source(engine, source, [data.reshape(-1), torch.zeros(data.numel())])[1]
    return found.cpu().view(data.shape)


def special() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    inf, nan = math.inf, math.nan
    rows = {
        "ordinary": torch.randn(LENGTH),
        "far from 0": torch.randn(LENGTH) - 1000,
        "falling": -3.0 * torch.arange(LENGTH),
        "rising": 3.0 * torch.arange(LENGTH) - 100,
        "wild": torch.randn(LENGTH) * 200,
        "equal": torch.full((LENGTH,), 5.0),
        "nothing": torch.full((LENGTH,), -inf),
        "nothing at first": torch.randn(LENGTH).index_fill(0, torch.arange(9), -inf),
        "nothing between": torch.randn(LENGTH).index_fill(0, torch.arange(1, 70, 2), -inf),
        "infinite at first": torch.randn(LENGTH).index_fill(0, torch.tensor([0]), inf),
        "infinite": torch.randn(LENGTH).index_fill(0, torch.tensor([33]), inf),
        "infinite both ways": torch.randn(LENGTH).index_fill(0, torch.tensor([33]), inf),
        "no number": torch.randn(LENGTH).index_fill(0, torch.tensor([20]), nan),
        "no number at first": torch.randn(LENGTH).index_fill(0, torch.tensor([0]), nan),
        "no number at last": torch.randn(LENGTH).index_fill(0, torch.tensor([LENGTH - 1]), nan),
    }
    rows["infinite both ways"][10:40:3] = -inf
    return rows


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
def test_rows_side_by_side_do_not_touch(engine: TritonProcess, hint: str, reverse: bool) -> None:
    data = torch.stack(list(special().values()))
    wide = data.double()
    wanted = (wide.flip(-1).logcumsumexp(-1).flip(-1) if reverse else wide.logcumsumexp(-1)).float()
    found = running(engine, data, hint, reverse=reverse)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", list(special()))
def test_each_row_alone(engine: TritonProcess, name: str) -> None:
    data = special()[name][None]
    wanted = data.double().logcumsumexp(-1).float()
    for numerics in ("fast", "strict"):
        found = running(engine, data, "persistent", numerics=numerics)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 8.0, 60.0])
def test_what_is_carried_to_the_next_block(engine: TritonProcess, scale: float) -> None:
    data = torch.randn(2, 9000, generator=torch.Generator().manual_seed(3)) * scale
    data[1] += torch.arange(9000) * 0.02
    found = running(engine, data, "looped")
    torch.testing.assert_close(found, data.double().logcumsumexp(-1).float(), rtol=2e-6, atol=2e-5)


def test_one_logarithm_per_point() -> None:
    for hint in ("persistent", "looped"):
        text = TritonCodegen().emit(kernel_for(4, 9000, "fast", False), get_target("sm_90"), WALKS[hint]).text
        body = text[text.index("def running(") :]
        assert body.count("log_of_normal(") == 1
    for name in ("combine_logsumexp", "running_logsumexp"):
        assert "tl.log" not in read_device_functions()[name].source


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "logcumsumexp"])
def test_rows_that_are_alike(
    engine: TritonProcess, kind: ScanKind, hint: Literal["persistent", "looped"]
) -> None:
    # Of a block of one row, threads for further rows have copies. Triton's scans mix these up.
    x, r = along("x0", 5), along("r0", 5, "reduction")
    kernel = Kernel(
        name="running",
        ranges=(x, r),
        args=(arg("in0", F32, 5), arg("out0", F32, 25)),
        stores=(
            Store(
                buffer="out0",
                index=r.symbol * 5 + x.symbol,
                value=scan(kind, load("in0", [r.symbol], F32), r.symbol, reverse=False),
            ),
        ),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    assert "(1, R0_BLOCK)" not in source.text
    given = torch.tensor([-1.5, -0.25, 1.75, -1.25, 1.5])
    eager = {"sum": torch.cumsum, "prod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}
    wanted = given.cummax(0).values if kind == "max" else eager[kind](given, 0)
    found = run_source(engine, source, [given, torch.zeros(25)])[1].cpu().view(5, 5)
    torch.testing.assert_close(found, wanted[:, None].expand(5, 5))


def down_columns(
    kind: ScanKind,
    rows: int,
    columns: int,
    *,
    reverse: bool = False,
    output: int = 0,
    dtype: DType = F32,
) -> Kernel:
    """A scan along rows, whose neighbours in memory are those of other columns, in place of what
    is scanned.
    """
    x, r = along("x0", columns), along("r0", rows, "reduction")
    at = r.symbol * columns + x.symbol
    value = scan(kind, load("in0", [at], dtype), r.symbol, output=output, reverse=reverse)
    return Kernel(
        name="running",
        ranges=(x, r),
        args=(arg("in0", dtype, rows * columns), arg("out0", value.dtype, rows * columns)),
        stores=(Store(buffer="out0", index=at, value=value),),
        aliasing=(("out0", "in0"),) if value.dtype is dtype else (),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max", "logcumsumexp"])
def test_columns_are_scanned_in_runs(
    engine: TritonProcess, kind: ScanKind, hint: Literal["persistent", "looped"], reverse: bool
) -> None:
    rows, columns = 300, 40
    data = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    if kind == "prod":
        data = 1 + data / 100
    data[5, 3], data[200, 4] = math.nan, -math.inf
    data[:, 6] = math.inf if kind == "min" else -math.inf
    data[:, 7] = 2.0
    eager = {
        "sum": lambda v: v.cumsum(0),
        "prod": lambda v: v.cumprod(0),
        "min": lambda v: v.cummin(0).values,
        "max": lambda v: v.cummax(0).values,
        "logcumsumexp": lambda v: v.logcumsumexp(0),
    }[kind]
    wide = data.double()
    wanted = (eager(wide.flip(0)).flip(0) if reverse else eager(wide)).float()
    source = TritonCodegen().emit(
        down_columns(kind, rows, columns, reverse=reverse), get_target("sm_90"), WALKS[hint]
    )
    for number, config in enumerate(source.configs):
        assert dict(config.meta)["RUN"] > 1
        memory = data.reshape(-1).clone()
        found = run_source(engine, source, [memory, memory], (), number)[1].cpu().view(rows, columns)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [3, 8, 20, 64])
@pytest.mark.parametrize("columns", [2, 3, 8, 16])
def test_few_columns_are_scanned(engine: TritonProcess, rows: int, columns: int) -> None:
    """Where there would be fewer runs than threads, points are not dealt out in runs."""
    data = torch.arange(1.0, rows * columns + 1).view(rows, columns)
    source = TritonCodegen().emit(down_columns("sum", rows, columns), get_target("sm_90"), {})
    memory = data.reshape(-1).clone()
    found = run_source(engine, source, [memory, memory])[1].cpu().view(rows, columns)
    assert torch.equal(found, data.cumsum(0))


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("kind", ["argmin", "argmax"])
def test_positions_along_columns(
    engine: TritonProcess, kind: ScanKind, hint: Literal["persistent", "looped"]
) -> None:
    rows, columns = 300, 40
    data = torch.randint(0, 9, (rows, columns), generator=torch.Generator().manual_seed(1)).float()
    data[:, 6] = math.inf if kind == "argmin" else -math.inf
    data[40, 7] = math.nan
    wanted = data.cummin(0).indices if kind == "argmin" else data.cummax(0).indices
    source = TritonCodegen().emit(down_columns(kind, rows, columns), get_target("sm_90"), WALKS[hint])
    assert "dealt_in_runs(" in source.text
    given = [data.reshape(-1), torch.zeros(rows * columns, dtype=torch.int64)]
    assert torch.equal(run_source(engine, source, given)[1].cpu().view(rows, columns), wanted)


def test_later_rows_are_loaded_before_earlier_ones_are_overwritten() -> None:
    source = TritonCodegen().emit(down_columns("sum", 8192, 8192), get_target("sm_90"), {})
    assert "num_stages=STAGES" in source.text and "debug_barrier" not in source.text
    assert dict(source.configs[0].meta)["STAGES"] > 1
    assert dict(source.space.values)["STAGES"] == (1, 2, 3, 4)


def test_rows_that_other_points_store_are_not_loaded_ahead() -> None:
    x, r = along("x0", 8192), along("r0", 8191, "reduction")
    at = r.symbol * 8192 + x.symbol
    kernel = Kernel(
        name="running",
        ranges=(x, r),
        args=(arg("io0", F32, 8192 * 8192),),
        stores=(Store(buffer="io0", index=at + 8192, value=scan("sum", load("io0", [at], F32), r.symbol)),),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert {dict(config.meta)["STAGES"] for config in source.configs} == {1}
    assert "STAGES" not in dict(source.space.values)
    assert "debug_barrier" in source.text
