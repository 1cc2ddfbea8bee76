"""Kernels that join equal parts: over one of them, reading once what all read, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import ComboKernel, Kernel, Member, Store
from coilwork_ir.scalar import Load, Scalar, cast, const, index_value, list_loads, load, op, where
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

BF16, F32, I64 = DType.BF16, DType.F32, DType.I64
ROWS = 5


def joined(length: int, *, parts: int = 2, first: int | None = None, computed: bool = True) -> Kernel:
    """The gradient of a gate whose operands are parts of one tensor: `in1`; `in0` is what comes
    from behind.
    """
    whole = parts * length
    row, column = along("x0", ROWS), along("x1", whole)
    cut = length if first is None else first
    below = op("lt", index_value(column.symbol), const(cut, I64))
    above = op("ge", index_value(column.symbol), const(cut, I64))

    def wide(name: str, place: int, mask: Scalar, *, size: int) -> Scalar:
        return cast(load(name, [row.symbol * size + column.symbol + place], BF16, mask=mask), F32)

    before = wide("in0", 0, below, size=length), wide("in1", length, below, size=whole)
    behind = wide("in0", -length, above, size=length), wide("in1", -length, above, size=whole)
    values = [op("mul", *pair) if computed else pair[1] for pair in (before, behind)]
    value = where(below, *(cast(v, BF16) if computed else v.operands[0] for v in values))
    return Kernel(
        name="joined",
        args=(
            arg("in0", BF16, ROWS * length),
            arg("in1", BF16, ROWS * whole),
            arg("out0", BF16, ROWS * whole),
        ),
        ranges=(row, column),
        stores=(Store(buffer="out0", index=row.symbol * whole + column.symbol, value=value),),
    )


def emitted(kernel: Kernel) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


def found(kernel: Kernel) -> tuple[Load, ...]:
    return list_loads([store.value for store in kernel.stores])


UNCHANGED: dict[str, Callable[[], Kernel]] = {
    "parts of other sizes": lambda: joined(64, first=60),
    "copies": lambda: joined(64, computed=False),
    "rows too short for wide accesses": lambda: joined(24),
    "stored under a mask": lambda: masked(joined(64)),
}


def masked(kernel: Kernel) -> Kernel:
    (store,) = kernel.stores
    mask = op("lt", index_value(kernel.ranges[0].symbol), const(3, I64))
    return replace(kernel, stores=(replace(store, mask=mask),))


@pytest.mark.parametrize("over", [False, True])
def test_the_same_results_also_over_what_is_read(engine: TritonProcess, over: bool) -> None:
    length = 64
    kernel = joined(length)
    if over:
        kernel = replace(kernel, aliasing=(("out0", "in1"),))
    source = emitted(kernel)
    assert source.text.count("tl.store") == 2
    assert ("tl.debug_barrier()" in source.text) is over
    g, x = torch.randn(ROWS, length).bfloat16(), torch.randn(ROWS, 2 * length).bfloat16()
    wanted = torch.cat([g.float() * x[:, length:].float(), g.float() * x[:, :length].float()], 1).bfloat16()
    shared = x.flatten().clone()
    out = [] if over else [torch.zeros(ROWS * 2 * length, dtype=torch.bfloat16)]
    got = run_source(engine, source, [g.flatten(), shared, *([shared] if over else out)])
    assert torch.equal(got[-1].view(ROWS, -1), wanted)


def test_members_of_a_shared_launch_go_through_a_part_each(engine: TritonProcess) -> None:
    body, length, members = joined(64), 64, range(3)
    kernel = Kernel(
        name="joined_x3",
        ranges=(),
        args=tuple(replace(a, name=f"m{k}_{a.name}") for k in members for a in body.args),
        stores=(),
        combined=ComboKernel(
            body=body, members=tuple(Member(args=tuple(f"m{k}_{a.name}" for a in body.args)) for k in members)
        ),
    )
    source = emitted(kernel)
    assert source.text.count("tl.store") == 2
    tensors, wanted = [], []
    for _ in members:
        g, x = torch.randn(ROWS, length).bfloat16(), torch.randn(ROWS, 2 * length).bfloat16()
        tensors += [g.flatten(), x.flatten(), torch.zeros(ROWS * 2 * length, dtype=torch.bfloat16)]
        halves = [g.float() * x[:, length:].float(), g.float() * x[:, :length].float()]
        wanted.append(torch.cat(halves, 1).bfloat16())
    got = run_source(engine, source, tensors)
    assert all(torch.equal(found.view(ROWS, -1), right) for found, right in zip(got[2::3], wanted))
