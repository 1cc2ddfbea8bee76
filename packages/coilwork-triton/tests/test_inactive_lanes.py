"""Lanes that are no points keep no block in a loop, and choose no other way for it, whatever lies behind a
tensor.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_bench import TARGETS, TritonProcess, along, arg, compile_source, run_source
from triton_sample_kernels import sorted_rows

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import load, op, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.text.device_library import has_lane_loop, read_device_functions

FLOATS = ("zeta", "igamma", "igammac", "hermite_h", "hermite_he", "laguerre", "legendre")
# Three elements from the end of a vector; the rest of which holds these.
POINTS = 705
# So many that a program has several.
ROWS = 4097
BEHIND = torch.tensor([1e17, 0.5, float("nan")])


def of_lines(name: str, dtype: DType, points: int = POINTS) -> Kernel:
    """The function `name` of two lines."""
    x = along("x0", points)
    value = op(name, load("in0", [x.symbol], dtype), load("in1", [x.symbol], dtype))
    args = tuple(arg(buffer, dtype, points) for buffer in ("in0", "in1", "out0"))
    return Kernel(
        name="function", ranges=(x,), args=args, stores=(Store(buffer="out0", index=x.symbol, value=value),)
    )


def text_of(kernel: Kernel) -> str:
    text = TritonCodegen().emit(kernel, get_target("sm_90"), {}).text
    # without the functions of the library
    return text[text.rindex("@triton.jit") :]


def test_scalar_ops_that_loop_are_those_of_the_library() -> None:
    looping = {name for name in SCALAR_OPS if name in read_device_functions() and has_lane_loop(name)}
    assert looping == {*FLOATS, "gcd"}


@pytest.mark.parametrize("name", [*FLOATS, "gcd"])
def test_functions_that_loop_get_zeros_in_lanes_that_are_no_points(name: str) -> None:
    dtype = DType.I64 if name == "gcd" else DType.F32
    assert f"{name}(tl.where(xmask, in0_0, 0), tl.where(xmask, in1_1, 0))" in text_of(of_lines(name, dtype))


def test_blocks_of_points_alone_and_functions_that_do_not_loop_get_none() -> None:
    assert "laguerre(in0_0, in1_1)" in text_of(of_lines("laguerre", DType.F32, points=1 << 20))
    assert "where" not in text_of(of_lines("hypot", DType.F32))


def surrounded(values: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, behind.to(values.dtype), torch.ones(60 - len(behind), dtype=values.dtype)])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("name", FLOATS)
def test_numbers_behind_lines_decide_no_loop(engine: TritonProcess, name: str, turn: int) -> None:
    source = TritonCodegen().emit(of_lines(name, DType.F32), get_target("sm_90"), {})
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(POINTS, generator=generator) * 0.75 + 0.125
    n = torch.randint(1, 4, (POINTS,), generator=generator).float()
    pair = (1 + n, x) if name == "zeta" else (x, n)

    def result(*behind: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(POINTS + 60)
        inputs = [surrounded(values, extra) for values, extra in zip(pair, behind, strict=True)]
        found: torch.Tensor = run_source(engine, source, [*inputs, out])[2]
        assert not found[POINTS:].any()
        return found[:POINTS]

    wanted = result(torch.ones(3), torch.ones(3))
    found = result(BEHIND.roll(turn), BEHIND.roll(turn + 1))
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def running(length: int, *, reverse: bool) -> Kernel:
    x, r = along("x0", ROWS), along("r0", length, "reduction")
    flat = x.symbol * length + r.symbol
    value = scan("logcumsumexp", load("in0", [flat], DType.F32), r.symbol, reverse=reverse)
    args = (arg("in0", DType.F32, ROWS * length), arg("out0", DType.F32, ROWS * length))
    stores = (Store(buffer="out0", index=flat, value=value),)
    return Kernel(name="logs", ranges=(x, r), args=args, stores=stores)


def test_only_points_decide_how_running_logarithms_are_added() -> None:
    """From the end, lanes behind it come first, and nothing so far: of them alone every row once went the
    slow way.
    """
    assert "(XBLOCK, R0_BLOCK)), xmask & rmask, 1, True)" in text_of(running(70, reverse=True))
    # lanes behind the end have all that came before
    assert "(XBLOCK, R0_BLOCK)), xmask, 1, False)" in text_of(running(70, reverse=False))


def test_only_rows_decide_how_the_first_of_rows_are_found() -> None:
    """A row that is none is full of ties, and once sent all rows of its block to be halved again
    and again.
    """
    several = TritonCodegen().emit(sorted_rows(ROWS, 40, DType.F32, first=8), get_target("sm_90"), {})
    assert dict(several.configs[0].meta)["XBLOCK"] > 1
    assert "rmask, tl.broadcast_to(xmask, (XBLOCK, 1)), sort_key_float" in several.text
    assert (
        "rmask, None, sort_key_float"
        in TritonCodegen().emit(sorted_rows(1, 40, DType.F32, first=8), get_target("sm_90"), {}).text
    )


def test_the_first_of_rows_beside_a_row_that_is_none(engine: TritonProcess) -> None:
    source = TritonCodegen().emit(
        sorted_rows(10_001, 512, DType.F32, first=8, descending=True), get_target("sm_90"), {}
    )
    meta = dict(source.configs[0].meta)
    assert meta["SORT_ROOM"] > 0 and meta["XBLOCK"] == 2 and source.text.count("x0 < 10001") == 1
    # as of many rows, of which few are left
    source = replace(source, text=source.text.replace("x0 < 10001", "x0 < 3"), grid=(as_expr(2),))
    rows = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    # of ties, too many for a first look
    rows[1] = rows[1].round()
    wide = torch.cat([rows.flatten(), torch.full((512,), float("nan"))])
    outs = torch.zeros(24), torch.zeros(24, dtype=torch.int64)
    _, values, positions = run_source(engine, source, [wide, *outs])
    wanted, at = torch.sort(rows, dim=-1, descending=True, stable=True)
    assert torch.equal(values.view(3, 8), wanted[:, :8]) and torch.equal(positions.view(3, 8), at[:, :8])


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "kernel",
    [
        of_lines("laguerre", DType.F64),
        of_lines("gcd", DType.I32),
        running(70, reverse=True),
        sorted_rows(10_001, 512, DType.F32, first=8),
    ],
    ids=lambda kernel: kernel.name,
)
def test_masked_lanes_compile(compiler: TritonProcess, kernel: Kernel, name: str) -> None:
    assert compile_source(compiler, TritonCodegen().emit(kernel, get_target(name), {}), name)
