"""Rows that stand in a power of two of lanes: which, what they give, and that threads stay beside
each other.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, corners, run_source
from triton_sample_kernels import reflected

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, maximum, minimum, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import load
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.vectorization import Access, count_padded_lanes

F32, BF16 = DType.F32, DType.BF16
TYPES = {F32: torch.float32, BF16: torch.bfloat16}


def emitted(kernel: Kernel) -> KernelSource:
    verify_kernel(kernel)
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


def space(*extents: Expr | int) -> tuple[Range, ...]:
    return tuple(along(f"x{k}", extent) for k, extent in enumerate(extents))


def stored(ranges: tuple[Range, ...], pitch: Expr | int, itemsize: int = 2) -> Access:
    return Access(index=ranges[0].symbol * pitch + ranges[-1].symbol, itemsize=itemsize, store=True)


def lanes(ranges: tuple[Range, ...], *touched: Access) -> int:
    args = tuple(arg(f"in{k}", BF16, 1 << 30) for k in range(2))
    kernel = Kernel(
        name="k",
        ranges=ranges,
        args=args,
        stores=(Store(buffer="in1", index=as_expr(0), value=load("in0", [as_expr(0)], BF16)),),
    )
    return count_padded_lanes(kernel, touched, get_target("sm_90").machine.grids)


def clamped(ranges: tuple[Range, ...]) -> Access:
    return Access(index=ranges[0].symbol * 4096 + maximum(ranges[-1].symbol - 3, 0), itemsize=2)


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        (118, 128),
        (112, 128),
        (110, 0),
        (117, 128),
        (128, 0),
        (58, 64),
        (28, 32),
        (14, 0),
        (500, 512),
        (1000, 0),
        (symbol("n0", lo=1), 0),
    ],
)
def test_rows_that_nearly_fill_lanes(length: Expr | int, wanted: int) -> None:
    rows = space(4096, length)
    assert lanes(rows, clamped(rows), stored(rows, length)) == wanted


def test_rows_of_which_there_is_one_or_an_unknown_number_stay_flat() -> None:
    for outer in ((1,), (symbol("n1", lo=1),)):
        rows = space(*outer, 118)
        assert not lanes(rows, clamped(rows), stored(rows, 118))


def test_only_what_is_read_in_an_order_of_its_own_or_in_reverse() -> None:
    rows = space(4096, 118)
    row, column = (r.symbol for r in rows)
    for index, wanted in (
        (row * 118 + column, 0),
        (row * 256 + column * 2, 0),
        (row * 118 - column + 117, 128),
        (row * 59 + floordiv(column, 2), 128),
    ):
        assert lanes(rows, Access(index=index, itemsize=2), stored(rows, 118)) == wanted


def test_windows_stay_flat() -> None:
    rows = space(4096, 118)
    moved = [
        Access(index=rows[0].symbol * 4096 + minimum(rows[-1].symbol + k, 117), itemsize=2)
        for k in range(1, 4)
    ]
    assert lanes(rows, *moved[:1], stored(rows, 118)) and not lanes(rows, *moved, stored(rows, 118))


def test_loads_wider_than_what_is_stored_would_leave_gaps() -> None:
    rows = space(4096, 118)
    beside = Access(index=rows[0].symbol * 128 + rows[-1].symbol, itemsize=2)
    assert not lanes(rows, clamped(rows), beside, stored(rows, 118))
    narrow = Access(index=rows[0].symbol * 118 + rows[-1].symbol, itemsize=2)
    assert lanes(rows, narrow, stored(rows, 118)) == 0
    assert lanes(rows, clamped(rows), stored(rows, 118)) == 128


def test_few_points_stay_flat() -> None:
    assert "% 128" in emitted(reflected((64, 58, 118), BF16)).text
    assert "% 128" not in emitted(reflected((4, 58, 118), BF16)).text


def test_reflections_are_distances() -> None:
    for columns in (118, 130):
        text = emitted(reflected((64, 58, columns), BF16)).text
        code = text[text.index("@triton.jit") :]
        assert f"tl.abs(tl.abs(x2 - 3) - {columns - 7})" in code and "maximum" not in code


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((45, 57, 118), BF16),
        ((45, 58, 117), F32),
        ((3000, 1, 120), BF16),
        ((1, 3001, 126), F32),
        ((37, 58, 130), BF16),
    ],
)
def test_reflected_rows_are_right_in_every_candidate(
    engine: TritonProcess, shape: tuple[int, int, int], dtype: DType
) -> None:
    kernel = reflected(shape, dtype)
    source = emitted(kernel)
    tensors = [torch.randn(as_int(a.span) or 0).to(TYPES[dtype]) for a in kernel.args]
    wanted = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, wanted, {})
    for number in range(len(source.configs)):
        *_, got = run_source(engine, source, tensors, config=number)
        assert torch.equal(got.cpu(), wanted["out0"])


@pytest.mark.slow
def test_two_neighbours_are_stored_at_once_and_nothing_is_exchanged(compiler: TritonProcess) -> None:
    source = emitted(reflected((64, 58, 118), BF16))
    for number in range(len(source.configs)):
        text = compile_source(compiler, source, "sm_90", number)
        assert "st.global.b32" in text or "st.global.v2.b16" in text
        assert "st.shared" not in text


@pytest.mark.slow
def test_all_that_may_be_tried_compiles(compiler: TritonProcess) -> None:
    source = emitted(reflected((64, 58, 118), BF16))
    tried = tuple(corners(source))
    for number in range(len(tried)):
        assert compile_source(compiler, replace(source, configs=tried), "sm_90", number)
