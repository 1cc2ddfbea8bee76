"""Memory that a kernel overwrites keeps what it had until the last pass along the row that reads it."""

from __future__ import annotations

import re

import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32 = DType.F32
ROWS, ROW = 3, 20_000
X, R = along("x0", ROWS), along("r0", ROW, "reduction")
R64 = along("r0", 64, "reduction")


def test_stores_that_wait_hold_back_others(engine: TritonProcess) -> None:
    """`out1` may be `in0`, which the last pass reads; it reads `in1` there, so `in1` keeps its numbers until
    then.
    """
    at = ROW * X.symbol + R.symbol
    v, w = load("in0", [at], F32), load("in1", [at], F32)
    below = op("sub", v, reduce("max", (v,), [R.symbol]))
    total = reduce("sum", (op("mul", below, below),), [R.symbol])
    kernel = Kernel(
        name="in_turn",
        ranges=(X, R),
        args=(
            *(arg(name, F32, ROWS * ROW) for name in ("in0", "in1", "out1", "out2")),
            arg("out0", F32, ROWS),
        ),
        stores=(
            Store(buffer="out2", index=at, value=op("add", w, w)),
            Store(buffer="out1", index=at, value=op("mul", w, w)),
            Store(buffer="out0", index=X.symbol, value=total),
        ),
        aliasing=(("out1", "in0"), ("out2", "in1")),
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    torch.manual_seed(0)
    first, second = torch.randn(ROWS, ROW), torch.randn(ROWS, ROW)
    memory = [first.flatten().clone(), second.flatten().clone()]
    _, _, one, other, sums = run_source(engine, source, [*memory, *memory, torch.zeros(ROWS)])
    assert torch.equal(one, second.flatten() ** 2)
    assert torch.equal(other, 2 * second.flatten())
    squares = (first - first.amax(1, keepdim=True)).square().sum(1)
    torch.testing.assert_close(sums, squares, rtol=1e-4, atol=0)


def test_results_that_others_are_made_of_are_stored_after_them() -> None:
    """Triton 3.6 does not compile the other order (`order_stores`); sums of rows stay behind whole rows."""
    at = 64 * X.symbol + R64.symbol
    v = load("in0", [at], F32)
    top = reduce("max", (v,), [R64.symbol])
    faded = op("exp", op("neg", top))
    total = op("mul", faded, reduce("sum", (op("exp", op("sub", v, top)),), [R64.symbol]))
    results = (("out0", X.symbol, top), ("out1", at, op("mul", v, v)), ("out2", X.symbol, faded))
    kernel = Kernel(
        name="made_of_each_other",
        ranges=(X, R64),
        args=tuple(arg(name, F32, ROWS * 64) for name in ("in0", "out0", "out1", "out2", "out3")),
        stores=(
            *(Store(buffer=name, index=place, value=value) for name, place, value in results),
            Store(buffer="out3", index=X.symbol, value=total),
        ),
        aliasing=(),
    )
    text = TritonCodegen().emit(kernel, get_target("sm_90"), {}).text
    assert re.findall(r"tl\.store\((out\d)", text) == ["out3", "out1", "out2", "out0"]
