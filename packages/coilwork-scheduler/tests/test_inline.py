"""What is computed inside its consumers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from declared import schedule

from coilwork_ir.buffers import Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Pointwise, Scatter
from coilwork_ir.scalar import cast, const, index_value, load, loads, op, placeholder, where
from coilwork_ir.target import target

F64, I64 = DType.F64, DType.I64


def c(value, dtype=F64):
    return const(value, dtype)


def calls(schedule):
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def test_a_concatenation_of_computed_parts_is_one_kernel(build, compare):
    at = build.at
    build.input("x", 3)
    build.input("y", 4)
    build.pointwise("a", [3], lambda i: op("tanh", at("x", i)))
    build.pointwise("b", [4], lambda i: op("mul", at("y", i), c(2.0)))

    def cat(i):
        first = op("lt", index_value(i), c(3, I64))
        second = op("ge", index_value(i), c(3, I64))
        return where(
            first,
            load("a", (i,), F64, mask=first),
            load("b", (i - 3,), F64, mask=second),
        )

    build.pointwise("z", [7], cat)
    made = compare(build.graph("z"))
    assert [call.args for call in calls(made)] == [("x", "y", "z")]
    assert all(access.mask is not None for access in loads([made.kernels[0].stores[0].value]))


def join_rotated(build, rows, half, *, other=0, functions=1):
    """`out`: two halves that are computed from one tensor, the second one longer by `other`."""
    at = build.at
    build.input("x", rows, 2 * half + other, dtype=DType.F32)
    build.input("cos", half + other, dtype=DType.F32)

    def rotated(name, sign, first, second):
        def value(i, j):
            factor = at("cos", j)
            for _ in range(functions):
                factor = op("tanh", factor)
            return op(
                sign,
                op("mul", at("x", i, j + first), at("cos", j)),
                op("mul", at("x", i, j + second), factor),
            )

        size = half + other if name == "high" else half
        build.pointwise(name, [rows, size], value, dtype=DType.F32)

    rotated("low", "sub", 0, half)
    rotated("high", "add", half, 0)

    def cat(i, j):
        first = op("lt", index_value(j), c(half, I64))
        second = op("ge", index_value(j), c(half, I64))
        return where(
            first,
            load("low", (i, j), DType.F32, mask=first),
            load("high", (i, j - half), DType.F32, mask=second),
        )

    build.pointwise("out", [rows, 2 * half + other], cat, dtype=DType.F32)
    return build.graph("out")


def test_parts_of_a_concatenation_are_computed_at_their_own_points_on_a_cpu(build):
    """Not at all of the concatenation's: a kernel of a CPU is cut where they begin."""
    graph = join_rotated(build, 1 << 15, 32)
    slow = replace(target("x86-64-avx512"), multiprocessors=1)
    made = schedule(graph, slow)
    assert [call.args for call in calls(made)] == [("x", "cos", "out")]


@pytest.mark.parametrize(("other", "kernels"), [(0, 1), (32, 3)])
def test_equal_parts_of_a_concatenation_are_computed_once_on_a_gpu(build, other, kernels):
    """A kernel goes through one of them; a block in which parts of other sizes begin would compute both."""
    graph = join_rotated(build, 1 << 15, 4096, other=other, functions=4)
    assert len(calls(schedule(graph, target("sm_90")))) == kernels


def test_a_lookup_into_a_computed_table_keeps_its_indirection(build, compare):
    at = build.at
    build.input("table", 4, 5)
    build.input("ids", 6, dtype=I64)
    build.input("more", 4, dtype=I64)
    # itself a lookup: rows of the table in another order
    build.pointwise(
        "rows", [4, 5], lambda i, j: load("table", (placeholder(0), j), F64, indirect=(at("more", i),))
    )
    build.pointwise(
        "out", [6, 5], lambda i, j: load("rows", (placeholder(0), j), F64, indirect=(at("ids", i),))
    )
    assert [call.args for call in calls(compare(build.graph("out")))] == [("ids", "more", "table", "out")]


def test_a_producer_that_the_caller_wants_is_stored_as_well(build, compare):
    build.input("x", 4)
    build.pointwise("a", [4], lambda i: op("neg", build.at("x", i)))
    build.pointwise("b", [4], lambda i: op("tanh", build.at("a", i)))
    made = compare(build.graph("a", "b"))
    assert [call.args for call in calls(made)] == [("x", "a", "b")]


def test_constants_are_inlined_even_where_they_are_wanted_in_memory(build, compare):
    build.input("x", 4)
    build.pointwise("zeros", [4], lambda i: c(0.25))
    build.extern("test.neg", ["zeros"], [build.buffer("n", 4)])
    build.pointwise("y", [4], lambda i: op("add", build.at("x", i), build.at("zeros", i)))
    assert ("x", "y") in [call.args for call in calls(compare(build.graph("n", "y")))]


def test_expensive_values_are_not_recomputed_by_a_broadcast(build, compare):
    build.input("v", 6)
    build.input("x", 64, 6)
    build.pointwise("e", [6], lambda j: op("exp", build.at("v", j)))
    build.pointwise("y", [64, 6], lambda i, j: op("mul", build.at("x", i, j), build.at("e", j)))
    made = compare(build.graph("y"), name="x86-64-avx2")
    assert len(calls(made)) == 2
    assert any(d.rule == "inline" and not d.accepted and d.subjects == ("e",) for d in made.decisions)


def test_nothing_is_read_after_it_was_overwritten(build, compare):
    build.input("x", 4)
    build.pointwise("a", [4], lambda i: op("neg", build.at("x", i)))
    build.pointwise("x2", [4], lambda i: c(7.0), into="x")
    build.pointwise("b", [4], lambda i: op("add", build.at("a", i), build.at("x2", i)))
    compare(build.graph("b"))


def test_a_scatter_takes_its_values_prologue_along(build, compare):
    build.input("x", 6)
    build.input("base", 6)
    build.input("ids", 6, dtype=I64)
    build.pointwise("copy", [6], lambda i: build.at("base", i))
    build.pointwise("v", [6], lambda i: op("tanh", build.at("x", i)))
    (i,) = build.ranges(6)
    build.nodes.append(
        Scatter(
            output=build.buffer("out", 6),
            into="copy",
            ranges=(i,),
            index=(placeholder(0),),
            indirect=(build.at("ids", i),),
            value=build.at("v", i),
            mode="add",
        )
    )
    made = compare(build.graph("out"))
    copy, scatter = calls(made)
    assert scatter.into == (("out", "copy"),) and scatter.args == ("x", "ids", "out")
    assert copy.args == ("base", "copy")
    kernel = next(k for k in made.kernels if k.name == scatter.kernel)
    assert kernel.stores[-1].mode != "store" and kernel.args[-1].role == "inout"


def test_a_scatter_that_reads_what_it_overwrites_gets_a_temporary(build, compare):
    build.input("x", 6)
    build.input("ids", 6, dtype=I64)
    (i,) = build.ranges(6)
    build.nodes.append(
        Scatter(
            output=build.buffer("out", 6),
            into="x",
            ranges=(i,),
            index=(placeholder(0),),
            indirect=(build.at("ids", i),),
            value=op("mul", build.at("x", 5 - i), c(3.0)),
            mode="add",
        )
    )
    assert len(calls(compare(build.graph()))) == 2


def test_chains_longer_than_a_kernel_are_cut(build):
    build.input("x", 4)
    last = "x"
    for k in range(600):
        build.pointwise(f"c{k}", [4], lambda i, s=last: op("add", build.at(s, i), c(1.0)))
        last = f"c{k}"
    made = schedule(build.graph(last), target("sm_90"))
    assert 2 <= len(calls(made)) <= 4


def test_values_on_another_device_are_not_inlined(build):
    build.input("x", 4)
    build.pointwise("a", [4], lambda i: op("neg", build.at("x", i)))
    build.pointwise("b", [4], lambda i: op("tanh", build.at("a", i)))
    graph = build.graph("b")
    last = graph.nodes[1]
    assert isinstance(last, Pointwise)
    moved = replace(last, output=replace(last.output, device="cuda:0"))
    made = schedule(replace(graph, nodes=(graph.nodes[0], moved), outputs=(Ref("b"),)), target("sm_90"))
    assert len(calls(made)) == 2


def test_a_cheap_mask_is_recomputed_in_every_row_that_needs_it(build, compare):
    at = build.at
    build.input("mask", 4)
    build.input("x", 32, 4)
    build.input("y", 64, 4)
    build.pointwise("other", [4], lambda j: op("sub", c(1.0), at("mask", j)))
    build.pointwise("a", [32, 4], lambda i, j: op("mul", at("x", i, j), at("other", j)))
    build.pointwise("b", [64, 4], lambda i, j: op("mul", at("y", i, j), at("other", j)))
    made = compare(build.graph("a", "b"))
    assert sorted(call.args for call in calls(made)) == [("x", "mask", "a"), ("y", "mask", "b")]


def normalise(build, rows):
    """Inference of batch normalisation and relu, channels innermost."""
    at = build.at
    build.input("x", rows, 64, dtype=DType.BF16)
    for name in ("mean", "var", "w", "b"):
        build.input(name, 64, dtype=DType.F32)
    f32 = {"dtype": DType.F32}
    build.pointwise("shifted", [64], lambda i: op("add", at("var", i), c(1e-5, DType.F32)), **f32)
    build.pointwise("root", [64], lambda i: op("sqrt", at("shifted", i)), **f32)
    build.pointwise("scale", [64], lambda i: op("div", at("w", i), at("root", i)), **f32)
    build.pointwise(
        "y",
        [rows, 64],
        lambda i, j: op(
            "maximum",
            op("add", op("mul", op("sub", at("x", i, j), at("mean", j)), at("scale", j)), at("b", j)),
            c(0.0, DType.F32),
        ),
        dtype=DType.BF16,
    )
    return build.graph("y")


def test_small_tensors_are_computed_where_a_gpu_reads_them(build):
    """A launch costs more than arithmetic that hides behind the traffic of a kernel over 2^18 elements."""
    made = schedule(normalise(build, 4096), target("sm_90"))
    assert len(calls(made)) == 1
    assert any(d.accepted and "hides behind" in d.reason and d.subjects == ("scale",) for d in made.decisions)


def test_arithmetic_that_takes_longer_than_a_launch_is_done_once(build):
    at = build.at
    build.input("w", 64, dtype=DType.F32)
    build.input("x", 1 << 20, 64, dtype=DType.BF16)
    build.pointwise("scale", [64], lambda i: op("lgamma", op("tan", at("w", i))), dtype=DType.F32)
    build.pointwise(
        "y", [1 << 20, 64], lambda i, j: op("mul", at("x", i, j), at("scale", j)), dtype=DType.BF16
    )
    assert len(calls(schedule(build.graph("y"), target("sm_90")))) == 2


def test_on_a_cpu_small_tensors_that_cost_something_are_computed_once(build):
    assert len(calls(schedule(normalise(build, 4096), target("x86-64-avx2")))) == 2


def test_the_state_of_a_recurrence_is_stored_by_the_kernel_of_its_own_step(build):
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

        def kept(i, j, k=k, before=before):
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
    made = schedule(build.graph(f"gates{steps}"), target("sm_90"))
    gates = {f"gates{k}" for k in range(steps)}
    assert max(len(gates.intersection(call.args)) for call in calls(made)) <= 4


def test_what_ragged_rows_look_up_is_counted_once(build):
    """A producer of rows that a reduction picks by data is computed inside it, though its range is long."""
    build.input("g", 4096, 64)
    build.input("place", 4096, dtype=I64)
    build.input("count", 512, dtype=I64)
    at = build.at
    build.pointwise("twice", [4096, 64], lambda n, d: op("add", at("g", n, d), at("g", n, d)))

    def body(v, d, r):
        inside = op("lt", index_value(r), at("count", v))
        row = load("twice", (placeholder(0), d), F64, indirect=[at("place", r)], mask=inside)
        return where(inside, row, c(0.0))

    build.reduce(["sums"], "sum", [512, 64], [4096], body)
    made = schedule(build.graph("sums"), target("sm_90"))
    assert len(made.kernels) == 1
    (found,) = [d for d in made.decisions if d.rule == "inline" and d.subjects == ("twice",)]
    assert dict(found.numbers)["evaluations_per_element"] == 1


def test_of_two_values_the_narrower_is_stored(build, compare):
    """Two reductions over rows and one over columns read a sum of four tensors, rounded to 16 bits and
    widened again.
    """
    rows, width = 4096, 512
    names = ("a", "b", "c", "d")
    for name in names:
        build.input(name, rows, width, dtype=DType.F32)
    at = build.at

    def rounded(i, j):
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
    made = schedule(build.graph("y", "t"), target("sm_90"))
    written = {
        name
        for call in calls(made)
        for kernel in made.kernels
        if kernel.name == call.kernel
        for name, arg in zip(call.args, kernel.args, strict=True)
        if arg.role != "in"
    }
    assert "narrow" in written and "wide" not in written


def test_who_reads_one_element_of_a_row_reads_one_of_each_operand(build):
    """A loss sums a row and looks up what its label says: for the one element the row needs not be stored."""
    rows, width = 65536, 512
    at = build.at
    build.input("label", rows, dtype=I64)
    for name in "ab":
        build.input(name, rows, width, dtype=DType.F32)
    build.pointwise(
        "p",
        [rows, width],
        lambda i, j: cast(op("add", at("a", i, j), at("b", i, j)), DType.BF16),
        dtype=DType.BF16,
    )
    build.reduce("s", "sum", [rows], [width], lambda i, j: at("p", i, j), dtype=DType.F32)

    def own(i):
        return cast(
            load("p", (i, placeholder(0)), DType.BF16, indirect=(load("label", (i,), I64),)), DType.F32
        )

    build.pointwise("t", [rows], own, dtype=DType.F32)
    made = schedule(build.graph("s", "t"), target("sm_90"))
    assert not any("p" in call.args for call in calls(made))


@pytest.mark.parametrize(("parts", "kernels"), [(8, 1), (24, 2)])
def test_a_join_of_many_is_not_computed_by_a_kernel_that_reduces(build, parts, kernels):
    """A kernel that joins alone chooses one address for a vector; another asks for each element
    in all parts.
    """
    at = build.at
    width, rows = 64, 1 << 12
    for k in range(parts):
        build.input(f"in{k}", rows, width, dtype=DType.F32)

    def joined(i, j):
        result = None
        for k in reversed(range(parts)):
            after = op("ge", index_value(j), c(k * width, I64))
            mask = op("bitwise_and", after, op("lt", index_value(j), c((k + 1) * width, I64)))
            element = load(f"in{k}", (i, j - k * width), DType.F32, mask=mask)
            result = (
                element
                if result is None
                else where(op("lt", index_value(j), c((k + 1) * width, I64)), element, result)
            )
        return result

    build.pointwise("z", [rows, parts * width], joined, dtype=DType.F32)
    build.pointwise("e", [rows, parts * width], lambda i, j: op("tanh", at("z", i, j)), dtype=DType.F32)
    build.reduce("s", "sum", [rows], [parts * width], lambda i, j: at("e", i, j))
    made = schedule(build.graph("s"), target("sm_90"))
    assert len(calls(made)) == kernels
