"""Kernels that deal neighbours out: which, what they load, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import const, load, op
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32 = DType.F32
ROWS, LENGTH = 8, 256


def dealt(count: int, *, step: int | None = None, length: int = LENGTH) -> Kernel:
    """Twice each of `count` neighbours, in a row of its own each; those of the next point are
    `step` further.
    """
    row, way, column = along("y0", ROWS), along("y1", count), along("x0", length)
    far = count if step is None else step
    place = row.symbol * (far * length) + column.symbol * far + way.symbol
    index = row.symbol * (count * length) + way.symbol * length + column.symbol
    return Kernel(
        name="dealt",
        args=(arg("in0", F32, ROWS * far * length), arg("out0", F32, ROWS * count * length)),
        ranges=(row, way, column),
        stores=(
            Store(buffer="out0", index=index, value=op("mul", load("in0", [place], F32), const(2.0, F32))),
        ),
    )


def emitted(kernel: Kernel) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


UNCHANGED: dict[str, Callable[[], Kernel]] = {
    "three neighbours": lambda: dealt(3),
    "more than lie between points": lambda: dealt(2, step=4),
    "a transposition": lambda: dealt(64),
}


def test_rows_that_are_not_of_whole_steps_stay_tiles() -> None:
    assert "YBLOCK" in emitted(dealt(2, length=LENGTH + 1)).text


@pytest.mark.parametrize("count", [2, 4])
def test_the_same_results(engine: TritonProcess, count: int) -> None:
    source = emitted(dealt(count))
    assert "YBLOCK" not in source.text and "joined_" in source.text
    x = torch.randn(ROWS, LENGTH, count)
    got = run_source(engine, source, [x.flatten(), torch.zeros(x.numel())])
    assert torch.equal(got[1].view(ROWS, count, LENGTH), 2 * x.transpose(1, 2))
