"""What a kernel may keep wider than it is stored."""

from __future__ import annotations

import pytest
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.scalar import Op, cast, const, op, postorder
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.kernels.rounding import find_decisions

BF16, F32 = DType.BF16, DType.F32


def roundings(build, *outputs, numerics="fast"):
    """How many casts to 16 bits the one kernel has: of each store one, and those whose result is used on."""
    made = schedule(build.graph(*outputs), target("sm_90"), ScheduleOptions(numerics=numerics))
    (kernel,) = made.kernels
    assert sum(isinstance(step, KernelCall) for step in made.steps) == 1
    values = tuple(postorder(tuple(store.value for store in kernel.stores)))
    widened = [v.operands[0] for v in values if isinstance(v, Op) and v.op == "cast" and v.dtype is F32]
    return sum(isinstance(one, Op) and one.op == "cast" and one.dtype is BF16 for one in widened)


def doubled(build, name, source):
    def body(i):
        return cast(op("mul", cast(build.at(source, i), F32), const(1.1, F32)), BF16)

    build.pointwise(name, [8], body, dtype=BF16)


def compare(build, name, one, other):
    def body(i):
        return op("le", cast(build.at(one, i), F32), other(i))

    build.pointwise(name, [8], body, dtype=DType.BOOL)


def test_what_is_compared_with_another_value_is_rounded(build):
    build.input("x", 8, dtype=BF16)
    build.input("z", 8, dtype=BF16)
    doubled(build, "a", "x")
    compare(build, "y", "a", lambda i: cast(build.at("z", i), F32))
    assert roundings(build, "y") == 1


def test_what_is_compared_with_a_number_stays_wide(build):
    build.input("x", 8, dtype=BF16)
    doubled(build, "a", "x")
    compare(build, "y", "a", lambda i: const(0.5, F32))
    assert roundings(build, "y") == 0


@pytest.mark.parametrize("decides", [True, False])
def test_what_is_stored_and_decides_is_used_as_stored(build, decides):
    """Another kernel finds it in memory, and has to find the same from it."""
    build.input("x", 8, dtype=BF16)
    build.input("z", 8, dtype=BF16)
    build.pointwise("a", [8], lambda i: cast(op("lgamma", cast(build.at("x", i), F32)), BF16), dtype=BF16)
    doubled(build, "b", "a")
    if decides:
        compare(build, "y", "b", lambda i: cast(build.at("z", i), F32))
    else:
        doubled(build, "y", "b")
    assert roundings(build, "a", "y") == (2 if decides else 0)


def test_what_an_extreme_is_taken_of_decides(build):
    build.input("x", 8, 8, dtype=BF16)
    build.pointwise("a", [8, 8], lambda i, j: build.at("x", i, j), dtype=BF16)
    build.pointwise("b", [8, 8], lambda i, j: build.at("a", i, j), dtype=BF16)
    build.pointwise("c", [8, 8], lambda i, j: build.at("a", i, j), dtype=BF16)
    build.reduce("m", "max", [8], [8], lambda i, r: build.at("b", i, r), dtype=BF16)
    build.reduce("s", "sum", [8], [8], lambda i, r: build.at("c", i, r), dtype=BF16)
    assert find_decisions(build.graph("m", "s")).deciding == {"x", "a", "b"}
