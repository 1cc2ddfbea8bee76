"""What is looked at again once its readers have become one."""

from __future__ import annotations

from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.scalar import cast, const, op
from coilwork_ir.target import target

F32, BOOL = DType.F32, DType.BOOL


def test_a_value_that_a_chain_reads_twice_is_computed_in_it(build):
    """A sum of three, where it is small, in another order: that keeps the sum from sharing a kernel with what
    reads it.
    """
    at, shape = build.at, [1 << 20, 2]
    for name in "abc":
        build.input(name, *shape, dtype=F32)
    build.pointwise(
        "sum",
        shape,
        lambda i, j: op("add", op("add", at("a", i, j), at("b", i, j)), at("c", i, j)),
        dtype=F32,
    )
    build.pointwise("small", shape, lambda i, j: op("lt", at("sum", i, j), const(1.0, F32)), dtype=BOOL)
    build.pointwise(
        "out",
        shape,
        lambda i, j: op("mul", at("sum", i, 1 - j), cast(at("small", i, 1 - j), F32)),
        dtype=F32,
    )
    made = schedule(build.graph("out"), target("sm_90"))
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    assert [set(call.args) for call in calls] == [{"a", "b", "c", "out"}]
    (found,) = [d for d in made.decisions if d.subjects == ("sum",)]
    assert found.rule == "inline" and found.accepted
