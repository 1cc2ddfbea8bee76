"""Several sums of a row's values: what threads exchange at once, and that the results are those of each sum
alone.
"""

from __future__ import annotations

import re

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Scalar, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, F64 = DType.F32, DType.F64
ROWS = 5


def sums(width: int, count: int, *, last: DType = F32) -> Kernel:
    """`count` sums of rows, the last one of another type if asked for, and one that needs the first one's
    result.
    """
    x0, r0 = along("x0", ROWS), along("r0", width, "reduction")
    types = [F32] * (count - 1) + [last]
    values: list[Scalar] = [
        load(f"in{k}", [x0.symbol * width + r0.symbol], dtype) for k, dtype in enumerate(types)
    ]
    found = [reduce("sum", [value], [r0.symbol]) for value in values]
    found.append(reduce("sum", [op("mul", values[0], found[0])], [r0.symbol]))
    types.append(F32)
    inputs = (arg(f"in{k}", dtype, ROWS * width) for k, dtype in enumerate(types[:-1]))
    outputs = (arg(f"out{k}", dtype, ROWS) for k, dtype in enumerate(types))
    return Kernel(
        name="tested",
        ranges=(x0, r0),
        args=(*inputs, *outputs),
        stores=tuple(Store(buffer=f"out{k}", index=x0.symbol, value=v) for k, v in enumerate(found)),
    )


def combined(text: str) -> list[int]:
    """How many sums each exchange is of."""
    return [int(count) for count in re.findall(r", combine_(\d)_sums[,)]", text)]


@pytest.mark.parametrize("width", [7, 64, 1500])
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_sums_are_what_each_is_alone(engine: TritonProcess, width: int, count: int) -> None:
    kernel = sums(width, count)
    verify_kernel(kernel)
    generator = torch.Generator().manual_seed(width)
    tensors = [torch.randn(ROWS * width, generator=generator) for _ in range(count)]
    tensors += [torch.full((ROWS,), float("nan")) for _ in range(count + 1)]
    expected = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, expected, ())
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    for candidate in range(len(source.configs)):
        got = run_source(engine, source, [t.clone() for t in tensors], (), candidate)
        for found, wanted in zip(got, expected.values(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("count", "together"), [(1, []), (2, [2]), (4, [4]), (5, [4]), (6, [4, 2]), (8, [4, 4])]
)
def test_threads_exchange_sums_at_once(count: int, together: list[int]) -> None:
    text = TritonCodegen().emit(sums(1500, count), get_target("sm_90"), {}).text
    assert combined(text) == together
    assert text.count("tl.sum(") == count + 1 - sum(together)


def test_sums_of_other_types_are_apart() -> None:
    text = TritonCodegen().emit(sums(1500, 3, last=F64), get_target("sm_90"), {}).text
    assert combined(text) == [2] and text.count("tl.sum(") == 2


def test_all_is_loaded_before_any_thread_waits() -> None:
    text = TritonCodegen().emit(sums(1500, 4), get_target("sm_90"), {}).text
    assert text.rindex("tl.load(") < text.index("tl.reduce(")


def test_only_sums_are_combined() -> None:
    x0, r0 = along("x0", ROWS), along("r0", 64, "reduction")
    value = load("in0", [x0.symbol * 64 + r0.symbol], F32)
    kinds = sorted(SELF_COMBINING & {"sum", "prod", "max", "min"})
    kernel = Kernel(
        name="tested",
        ranges=(x0, r0),
        args=(arg("in0", F32, ROWS * 64), *(arg(f"out_{kind}", F32, ROWS) for kind in kinds)),
        stores=tuple(
            Store(buffer=f"out_{kind}", index=x0.symbol, value=reduce(kind, [value], [r0.symbol]))
            for kind in kinds
        ),
    )
    assert combined(TritonCodegen().emit(kernel, get_target("sm_90"), {}).text) == []
