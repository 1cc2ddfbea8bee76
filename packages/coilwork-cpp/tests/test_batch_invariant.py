"""`batch_invariant`: one order of combination, whether a loop's lanes lie along a row or across rows."""

from __future__ import annotations

import pytest
import torch
from cpp_fixtures import LoadKernel

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import load, op, reduce
from coilwork_ir.target import get_target

F32 = DType.F32
ROWS, LENGTH = symbol("n0", lo=0), symbol("n1", lo=0)


def kernel(kind: ReduceKind, rows: Expr | int, length: Expr | int, *, across: bool) -> Kernel:
    """One result per row; `across` rows lie beside each other in memory."""
    x, r = symbol("x0", extent=rows), symbol("r0", extent=length)
    index = r * as_expr(rows) + x if across else x * as_expr(length) + r
    sizes = tuple(e for e in (rows, length) if isinstance(e, Expr))
    return Kernel(
        name="rows",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=as_expr(rows) * length),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(rows)),
        ),
        sizes=sizes,
        stores=(Store(buffer="out0", index=x, value=reduce(kind, [load("in0", [index], F32)], [r])),),
    )


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("length", [1, 3, 16, 37, 4096, 9001])
def test_rows_along_and_across_memory_agree(load_kernel: LoadKernel, kind: ReduceKind, length: int) -> None:
    rows = 70
    x = 1 + torch.randn(rows, length, generator=torch.Generator().manual_seed(length)) * 1e-3
    x[5, 0], x[6, length // 2] = -0.0, float("nan")
    results = []
    for across in (False, True):
        run = load_kernel(kernel(kind, rows, length, across=across), batch_invariant=True)
        out = torch.empty(rows)
        run(x.t().contiguous() if across else x, out)
        results.append(out)
    one = torch.empty(1)
    run = load_kernel(kernel(kind, 1, length, across=False), batch_invariant=True)
    run(x[11:12].contiguous(), one)
    sized = torch.empty(rows)
    load_kernel(kernel(kind, ROWS, LENGTH, across=False), batch_invariant=True)(x, sized, rows, length)
    wanted = results[0].view(torch.int32)
    assert torch.equal(results[1].view(torch.int32), wanted)
    assert torch.equal(one.view(torch.int32), wanted[11:12]) and torch.equal(sized.view(torch.int32), wanted)
    exact = {"sum": x.double().sum(1), "prod": x.double().prod(1), "max": x.amax(1), "min": x.amin(1)}[kind]
    torch.testing.assert_close(results[0].double(), exact.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_functions_are_the_same_at_the_end_of_a_row() -> None:
    x = symbol("x0", extent=37)
    value = op("tanh", load("in0", [x], F32))
    one = Kernel(
        name="f",
        ranges=(Range(symbol=x, kind="parallel"),),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=as_expr(37)),
            TensorArg(name="out0", dtype=F32, role="out", span=as_expr(37)),
        ),
        stores=(Store(buffer="out0", index=x, value=value),),
    )
    cpu = get_target("x86-64-avx512")
    assert "simd(" in CppCodegen().emit(one, cpu, {}).text
    assert "simd(" not in CppCodegen().emit(one, cpu, {"batch_invariant": True}).text
    with pytest.raises(EmitError, match="takes bool"):
        CppCodegen().emit(one, cpu, {"batch_invariant": 1})
