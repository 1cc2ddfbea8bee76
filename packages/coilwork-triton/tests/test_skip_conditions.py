"""Kernels of which a number in memory says whether they do anything: one branch around everything, where that
is sure.
"""

from __future__ import annotations

import pytest
import torch
from kernel_bench import TARGETS, TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.loops import Check
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

COUNT = 5000
X = along("x0", COUNT)
PLACE = index_value(X.symbol)
NEEDED = op("lt", load("in0", (as_expr(0),), DType.I32), const(5, DType.I32))
KEY = load("in1", (X.symbol,), DType.I64, mask=NEEDED)
NUMBER = load("in2", (X.symbol,), DType.I32, mask=NEEDED)
INSIDE = op("lt", KEY, const(100, DType.I64))


def kernel(mask: Scalar | None, *more: Store, check: Scalar | None = None, mode: StoreMode = "max") -> Kernel:
    store = Store(
        buffer="io0",
        index=placeholder(0),
        indirect=(KEY,),
        value=NUMBER,
        mode=mode,
        mask=mask,
    )
    return Kernel(
        name="kernel",
        ranges=(X,),
        args=(
            arg("in0", DType.I32, 1),
            arg("in1", DType.I64, COUNT),
            arg("in2", DType.I32, COUNT),
            arg("io0", DType.I32, 100),
            *([arg("out0", DType.I32, COUNT)] if more else []),
        ),
        stores=(store, *more),
        checks=() if check is None else (Check(condition=check, message="out of range"),),
    )


def emitted(made: Kernel, name: str = "sm_90") -> KernelSource:
    return TritonCodegen().emit(made, get_target(name), {})


def branches(made: Kernel) -> bool:
    return "\n    if " in emitted(made).text


def test_what_nothing_is_done_without_is_asked_first() -> None:
    text = emitted(kernel(NEEDED, check=op("bitwise_or", op("bitwise_not", NEEDED), INSIDE))).text
    before, inside = text.split("\n    if ")
    assert "tl.load(in0)" in before and "in1 +" not in before and "in2 +" not in before
    assert "in1 +" in inside and "in2 +" in inside and "device_assert" in inside and "atomic_max" in inside


def test_what_is_one_of_several_conditions() -> None:
    odd = op("lt", NUMBER, const(7, DType.I32))
    assert branches(kernel(op("bitwise_and", odd, NEEDED)))
    assert branches(kernel(op("bitwise_and", NEEDED, odd)))


def test_what_happens_anyway_is_in_no_branch() -> None:
    # no mask, one that says something else for each point, a check that may fail, a store that happens
    odd = op("lt", NUMBER, const(7, DType.I32))
    out = Store(buffer="out0", index=X.symbol, value=cast(PLACE, DType.I32))
    assert not branches(kernel(None))
    assert not branches(kernel(odd))
    assert not branches(kernel(op("bitwise_or", odd, NEEDED)))
    assert not branches(kernel(NEEDED, check=INSIDE))
    assert not branches(kernel(NEEDED, out))
    assert branches(kernel(NEEDED, Store(buffer="out0", index=X.symbol, value=NUMBER, mask=NEEDED)))


@pytest.mark.parametrize("needed", [4, 5])
def test_the_branch_is_taken_where_it_is_needed(engine: TritonProcess, needed: int) -> None:
    made = kernel(NEEDED, check=op("bitwise_or", op("bitwise_not", NEEDED), INSIDE))
    keys, numbers = torch.randint(0, 100, (COUNT,)), torch.randint(1, 1000, (COUNT,), dtype=torch.int32)
    before = torch.zeros(100, dtype=torch.int32)
    found = run_source(
        engine, emitted(made), [torch.tensor([needed], dtype=torch.int32), keys, numbers, before.clone()]
    )[-1]
    wanted = before.scatter_reduce(0, keys, numbers, "amax") if needed < 5 else before
    assert torch.equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_kernel_with_a_skipped_part_compiles(compiler: TritonProcess, name: str) -> None:
    made = kernel(NEEDED, check=op("bitwise_or", op("bitwise_not", NEEDED), INSIDE))
    assert compile_source(compiler, emitted(made, name), name)
