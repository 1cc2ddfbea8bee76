"""Kernels that reduce rows and columns of one matrix: what they mean, whatever is reduced, and how many rows
there are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import ArgRole
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.ops import REDUCE_OPS, SELF_COMBINING, ReduceKind
from coilwork_ir.scalar import Scalar, const, index_value, load, op, reduce, where

F32 = DType.F32

TORCH: dict[ReduceKind, Callable[..., Tensor]] = {
    "sum": torch.Tensor.sum,
    "prod": torch.Tensor.prod,
    "min": torch.Tensor.amin,
    "max": torch.Tensor.amax,
}
FILL = {"sum": 0.0, "prod": 1.0, "min": float("inf"), "max": float("-inf")}


def arg(name: str, role: ArgRole, span: int) -> TensorArg:
    return TensorArg(name=name, dtype=F32, role=role, span=as_expr(span))


def centred(rows: int, columns: int, groups: int, row_kind: ReduceKind, column_kind: ReduceKind) -> Kernel:
    """Rows minus their reduction, and per group of rows the columns of that reduced."""
    length = -(-rows // groups)
    x0, w0 = symbol("x0", extent=groups), symbol("w0", extent=length)
    r0 = symbol("r0", extent=columns)
    row = x0 * length + w0
    inside = op("lt", index_value(row), const(rows, DType.I64))
    value = load("in0", [row * columns + r0], F32, mask=inside, other=0.0)
    apart: Scalar = op("sub", value, reduce(row_kind, [value], [r0]))
    kept = where(inside, apart, const(FILL[column_kind], F32))
    return Kernel(
        name="centred",
        ranges=(
            Range(symbol=x0, kind="parallel"),
            Range(symbol=w0, kind="sequential"),
            Range(symbol=r0, kind="reduction"),
        ),
        args=(
            arg("in0", "in", rows * columns),
            arg("out0", "out", rows * columns),
            arg("out1", "out", groups * columns),
        ),
        stores=(
            Store(buffer="out0", index=row * columns + r0, value=apart, mask=inside),
            Store(buffer="out1", index=x0 * columns + r0, value=reduce(column_kind, [kept], [w0])),
        ),
    )


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 13),
    columns=st.integers(1, 7),
    groups=st.integers(1, 5),
    kinds=st.tuples(st.sampled_from(sorted(TORCH)), st.sampled_from(sorted(TORCH))),
    seed=st.integers(0, 1000),
)
def test_rows_and_columns_are_those_of_the_matrix(
    rows: int, columns: int, groups: int, kinds: tuple[ReduceKind, ReduceKind], seed: int
) -> None:
    kernel = centred(rows, columns, groups, *kinds)
    verify_kernel(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    args = {
        "in0": x.flatten(),
        "out0": torch.full((rows * columns,), float("nan")),
        "out1": torch.full((groups * columns,), float("nan")),
    }
    interpret_kernel(kernel, args, {})
    apart = x - TORCH[kinds[0]](x, -1, keepdim=True)
    torch.testing.assert_close(args["out0"].reshape(rows, columns), apart)
    length = -(-rows // groups)
    padded = torch.full((groups * length, columns), FILL[kinds[1]])
    padded[:rows] = apart
    torch.testing.assert_close(
        args["out1"].reshape(groups, columns), TORCH[kinds[1]](padded.reshape(groups, length, columns), 1)
    )


def test_no_rows_leave_what_a_reduction_of_nothing_gives() -> None:
    x0, w0, r0 = symbol("x0", extent=2), symbol("w0", extent=0), symbol("r0", extent=3)
    value = load("in0", [w0 * 3 + r0], F32)
    kernel = Kernel(
        name="none",
        ranges=(
            Range(symbol=x0, kind="parallel"),
            Range(symbol=w0, kind="sequential"),
            Range(symbol=r0, kind="reduction"),
        ),
        args=(arg("in0", "in", 0), arg("out0", "out", 6)),
        stores=(Store(buffer="out0", index=x0 * 3 + r0, value=reduce("sum", [value], [w0])),),
    )
    verify_kernel(kernel)
    args = {"in0": torch.zeros(0), "out0": torch.ones(6)}
    interpret_kernel(kernel, args, {})
    assert args["out0"].tolist() == [0.0] * 6


@pytest.mark.parametrize("kind", sorted(REDUCE_OPS))
def test_kinds_that_need_more_than_one_value_are_not_sequential(kind: ReduceKind) -> None:
    x0, w0, r0 = symbol("x0", extent=2), symbol("w0", extent=5), symbol("r0", extent=3)
    value: Scalar = load("in0", [x0 * 15 + w0 * 3 + r0], F32)
    if kind in ("any", "all"):
        value = op("lt", value, const(0.0, F32))
    if kind == "xor_sum":
        value = index_value(w0)
    result = reduce(kind, [value], [w0])
    loaded = reduce("sum", [load("in0", [x0 * 15 + w0 * 3 + r0], F32)], [w0])
    stored = where(op("eq", result, result), loaded, loaded) if result.dtype is not F32 else result
    stored = op("add", loaded, stored)
    kernel = Kernel(
        name="one",
        ranges=(
            Range(symbol=x0, kind="parallel"),
            Range(symbol=w0, kind="sequential"),
            Range(symbol=r0, kind="reduction"),
        ),
        args=(arg("in0", "in", 30), arg("out0", "out", 6)),
        stores=(Store(buffer="out0", index=x0 * 3 + r0, value=stored),),
    )
    if kind in SELF_COMBINING:
        verify_kernel(kernel)
        return
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel)
    assert caught.value.code == "sequential"
