"""Which loads leave what is in the second-level cache there."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import load, reduce
from coilwork_ir.target import TARGETS
from coilwork_triton.codegen import TritonCodegen

H200 = TARGETS["sm_90"]
POLICY = 'eviction_policy="evict_first"'


def row_sums(rows: int, length: int, *, again: int = 1) -> str:
    """The text of sums of `rows` rows of f32; `again` results are made of each row."""
    repeat, x = symbol("x0", extent=again), symbol("x1", extent=rows)
    r = symbol("r0", extent=length)
    value = load("in0", (x * length + r,), DType.F32)
    kernel = Kernel(
        name="row_sums",
        ranges=(
            Range(symbol=repeat, kind="parallel"),
            Range(symbol=x, kind="parallel"),
            Range(symbol=r, kind="reduction"),
        ),
        args=(
            TensorArg(name="in0", dtype=DType.F32, role="in", span=as_expr(rows * length), aligned=True),
            TensorArg(name="out0", dtype=DType.F32, role="out", span=as_expr(rows * again), aligned=True),
        ),
        sizes=(),
        stores=(Store(buffer="out0", index=repeat * rows + x, value=reduce("sum", (value,), (r,))),),
        checks=(),
        numerics="fast",
        origins=(),
    )
    return TritonCodegen().emit(kernel, H200, {}).text


@pytest.mark.parametrize(
    ("rows", "streamed"),
    [(1 << 12, False), (1 << 15, True), (1 << 17, False)],
    ids=["fits the cache", "twice the cache", "many times the cache"],
)
def test_rows_that_pass_through_the_cache(rows: int, streamed: bool) -> None:
    assert (POLICY in row_sums(rows, 1000)) == streamed


def test_what_other_programs_read_again_stays() -> None:
    assert POLICY not in row_sums(1 << 15, 1000, again=2)


def test_what_is_written_counts() -> None:
    # rows of four: a quarter of what is read
    assert POLICY not in row_sums(1 << 23, 4)
    assert POLICY in row_sums(1 << 20, 32)
