"""Columns that are cut in pieces, of rows whose length no vector divides: threads side by side have
neighbours.
"""

from __future__ import annotations

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import cast, const, index_value, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, BF16 = DType.F32, DType.BF16
PIECE, PIECES = 96, 3


def column_sums(columns: int, rows: int, dtype: DType = BF16) -> Kernel:
    p, x = along("x0", PIECES), along("x1", columns)
    r = along("r0", PIECE, "reduction")
    row = p.symbol * PIECE + r.symbol
    inside = op("lt", index_value(row), const(rows, DType.I64))
    element = cast(load("in0", [row * columns + x.symbol], dtype, mask=inside, other=0), F32)
    return Kernel(
        name="tested",
        ranges=(p, x, r),
        args=(arg("in0", dtype, rows * columns), arg("out0", F32, PIECES * columns)),
        stores=(
            Store(
                buffer="out0",
                index=x.symbol * PIECES + p.symbol,
                value=reduce("sum", [element], [r.symbol]),
            ),
        ),
    )


def emitted(kernel: Kernel, **options: object) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), {**WALKS["looped"], **options})


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("columns", [257, 1021])
def test_sums_of_columns_in_pieces_are_right(engine: TritonProcess, columns: int, dtype: DType) -> None:
    rows = PIECE * PIECES - 7
    kernel = column_sums(columns, rows, dtype)
    source = emitted(kernel)
    assert "program_id(1)" in source.text and f"% {columns}" not in source.text
    data = torch.randn(rows, columns).to({F32: torch.float32, BF16: torch.bfloat16}[dtype])
    whole = torch.zeros(PIECE * PIECES, columns)
    whole[:rows] = data.float()
    wanted = whole.view(PIECES, PIECE, columns).sum(1).t()
    for k in range(len(source.configs)):
        got = run_source(engine, source, [data.clone(), torch.zeros(columns, PIECES)], (), k)[-1]
        torch.testing.assert_close(got.view(columns, PIECES), wanted, rtol=1e-4, atol=1e-3)


def test_rows_are_part_of_the_instructions_and_numbers_of_32_bits() -> None:
    text = emitted(column_sums(1021, 280)).text
    assert "x1 + r0_offset * 1021) + tl.arange(0, R0_BLOCK)[None, :] * 1021" in text
    assert "< 280" in text and "int64" not in text.split("def tested(")[1]


@pytest.mark.parametrize("columns", [1024, 33])
def test_others_are_one_line(columns: int) -> None:
    """Rows of whole vectors, in which Triton sees neighbours, and rows too short for a block."""
    assert "program_id(1)" not in emitted(column_sums(columns, 280)).text


def test_one_kernel_sums_columns_of_every_length(engine: TritonProcess) -> None:
    n = symbol("n0", lo=2)
    p, x = along("x0", PIECES), along("x1", n)
    r = along("r0", PIECE, "reduction")
    row = p.symbol * PIECE + r.symbol
    element = load("in0", [row * n + x.symbol], F32)
    kernel = Kernel(
        name="tested",
        ranges=(p, x, r),
        sizes=(n,),
        args=(arg("in0", F32, n * PIECE * PIECES), arg("out0", F32, n * PIECES)),
        stores=(
            Store(
                buffer="out0",
                index=p.symbol * n + x.symbol,
                value=reduce("sum", [element], [r.symbol]),
            ),
        ),
    )
    source = emitted(kernel, likely=(1024,))
    assert "def tested_likely(" in source.text and "def tested_any(" in source.text
    for columns in (1024, 1021, 5, 3000):
        data = torch.randn(PIECES * PIECE, columns)
        for k in range(len(source.configs)):
            if dict(source.configs[k].meta).get("VERSION", 0) > 0 and columns % 16:
                continue
            out = run_source(engine, source, [data.clone(), torch.zeros(PIECES, columns)], (columns,), k)[-1]
            wanted = data.view(PIECES, PIECE, columns).sum(1)
            torch.testing.assert_close(out.view(PIECES, columns), wanted, rtol=1e-4, atol=1e-3)
