"""What several reductions of a row read comes before the first of them."""

from __future__ import annotations

import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Scalar, cast, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, BF16 = DType.F32, DType.BF16
ROWS, ROW = 4, 2048
X, R = along("x0", ROWS), along("r0", ROW, "reduction")


def row_of(name: str) -> Scalar:
    return cast(load(name, [ROW * X.symbol + R.symbol], BF16), F32)


def log_sum(value: Scalar) -> Scalar:
    largest = reduce("max", (value,), [R.symbol])
    exponentials = op("exp", op("sub", value, largest))
    return op("add", largest, op("log", reduce("sum", (exponentials,), [R.symbol])))


def source_of(value: Scalar, count: int) -> KernelSource:
    rows = tuple(arg(f"in{k}", BF16, ROWS * ROW) for k in range(count))
    kernel = Kernel(
        name="rows",
        ranges=(X, R),
        args=(*rows, arg("out0", F32, ROWS)),
        stores=(Store(buffer="out0", index=X.symbol, value=value),),
    )
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


def body_of(source: KernelSource) -> list[str]:
    return [line.strip() for line in source.text[source.text.index("def rows(") :].splitlines()]


def places(source: KernelSource) -> tuple[list[int], int]:
    """Lines that load, and the first line that reduces."""
    body = body_of(source)
    loads = [k for k, line in enumerate(body) if "tl.load(" in line]
    return loads, next(k for k, line in enumerate(body) if "tl.reduce(" in line or "tl.sum(" in line)


def test_rows_of_two_tensors_are_on_their_way_at_once(engine: TritonProcess) -> None:
    source = source_of(op("sub", log_sum(row_of("in0")), log_sum(row_of("in1"))), 2)
    loads, first = places(source)
    assert len(loads) == 2 and max(loads) < first
    torch.manual_seed(0)
    given = [torch.randn(ROWS, ROW).bfloat16() for _ in range(2)]
    got = run_source(engine, source, [*(v.flatten() for v in given), torch.zeros(ROWS)])[-1]
    one, other = (v.double().logsumexp(-1) for v in given)
    torch.testing.assert_close(got, (one - other).float(), rtol=1e-5, atol=1e-5)


def test_what_waits_for_a_reduction_does_not_take_registers_before_it() -> None:
    value = row_of("in0")
    largest = reduce("max", (value,), [R.symbol])
    weighted = op("mul", op("sub", value, largest), row_of("in1"))
    loads, first = places(source_of(reduce("sum", (weighted,), [R.symbol]), 2))
    assert loads[0] < first < loads[1]


def test_many_rows_come_one_after_the_other() -> None:
    total = log_sum(row_of("in0"))
    for k in range(1, 6):
        total = op("add", total, log_sum(row_of(f"in{k}")))
    loads, first = places(source_of(total, 6))
    assert len(loads) == 6 and sum(place < first for place in loads) == 1
