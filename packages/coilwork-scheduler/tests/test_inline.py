"""What is computed inside its consumers."""

from __future__ import annotations

from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_ir.target import get_target

F64, I64 = DType.F64, DType.I64


def c(value: float, dtype: DType = F64) -> Scalar:
    return const(value, dtype)


def calls(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def test_chains_longer_than_a_kernel_are_cut(build: Builder) -> None:
    build.input("x", 4)
    last = "x"
    for k in range(600):
        build.pointwise(f"c{k}", [4], lambda i, s=last: op("add", build.at(s, i), c(1.0)))
        last = f"c{k}"
    made = schedule(build.graph(last), get_target("sm_90"))
    assert 2 <= len(calls(made)) <= 4


def test_the_state_of_a_recurrence_is_stored_by_the_kernel_of_its_own_step(build: Builder) -> None:
    """Computing it again from all steps before saves no launch, and keeps their gates alive; from a few it
    may pay.
    """
    at, steps = build.at, 12
    build.input("gates0", 64, 1024, dtype=DType.F32)
    build.input("w", 256, 1024, dtype=DType.F32)
    state = None
    for k in range(steps):
        entered = [64, 256], lambda i, j, k=k: op("tanh", at(f"gates{k}", i, j))
        build.pointwise(f"entered{k}", *entered, dtype=DType.F32)
        before = state

        def kept(i: Expr, j: Expr, k: int = k, before: str | None = before) -> Scalar:
            added = at(f"entered{k}", i, j)
            return (
                added if before is None else op("add", op("mul", at(before, i, j), c(0.5, DType.F32)), added)
            )

        state = f"state{k}"
        build.pointwise(state, [64, 256], kept, dtype=DType.F32)
        build.pointwise(
            f"h{k}",
            [64, 256],
            lambda i, j, k=k: op("mul", op("tanh", at(f"state{k}", i, j)), at(f"gates{k}", i, j + 256)),
            dtype=DType.F32,
        )
        following = build.buffer(f"gates{k + 1}", 64, 1024, dtype=DType.F32)
        build.extern("aten.mm.default", [f"h{k}", "w"], [following])
    made = schedule(build.graph(f"gates{steps}"), get_target("sm_90"))
    gates = {f"gates{k}" for k in range(steps)}
    assert max(len(gates.intersection(call.args)) for call in calls(made)) <= 4


def test_of_two_values_the_narrower_is_stored(build: Builder, compare: Compare) -> None:
    """Two reductions over rows and one over columns read a sum of four tensors, rounded to 16 bits and
    widened again.
    """
    rows, width = 4096, 512
    names = ("a", "b", "c", "d")
    for name in names:
        build.input(name, rows, width, dtype=DType.F32)
    at = build.at

    def rounded(i: Expr, j: Expr) -> Scalar:
        total = at("a", i, j)
        for name in names[1:]:
            total = op("add", total, at(name, i, j))
        return cast(total, DType.BF16)

    build.pointwise("narrow", [rows, width], rounded, dtype=DType.BF16)
    build.pointwise("wide", [rows, width], lambda i, j: cast(at("narrow", i, j), DType.F32), dtype=DType.F32)
    build.reduce("r", "sum", [rows], [width], lambda i, j: at("wide", i, j), dtype=DType.F32)
    build.reduce("s", "sum", [width], [rows], lambda j, i: at("wide", i, j), dtype=DType.F32)
    build.extern("test.opaque", ["r", "s"], [build.buffer("t", 4)])
    build.pointwise("y", [rows, width], lambda i, j: op("mul", at("wide", i, j), at("s", j)), dtype=DType.F32)
    made = schedule(build.graph("y", "t"), get_target("sm_90"))
    written = {
        name
        for call in calls(made)
        for kernel in made.kernels
        if kernel.name == call.kernel
        for name, arg in zip(call.args, kernel.args, strict=True)
        if arg.role != "in"
    }
    assert "narrow" in written and "wide" not in written
