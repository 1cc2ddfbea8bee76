"""Small kernels of one kind share a launch: which do, which do not, and that results stay the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from allocator_simulation import measured_peak
from declared import schedule
from graph_builder import Builder, Compare
from known_values import kernel_calls, number_of

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernels import Kernel, KernelCall, Schedule
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.memory import plan


def updates(build: Builder, sizes: Sequence[int], *, dtypes: tuple[DType, ...] = (DType.F64,)) -> Graph:
    """`p += g * p` for each of a list of tensors, in place."""
    for k, size in enumerate(sizes):
        dtype = dtypes[k % len(dtypes)]
        build.input(f"p{k}", size, dtype=dtype)
        build.input(f"g{k}", size, dtype=dtype)
    for k, size in enumerate(sizes):
        build.pointwise(
            f"q{k}",
            [size],
            lambda i, k=k: op(
                "add", build.at(f"p{k}", i), op("mul", build.at(f"g{k}", i), build.at(f"p{k}", i))
            ),
            into=f"p{k}",
            dtype=dtypes[k % len(dtypes)],
        )
    return build.graph()


def launches(made: Schedule) -> list[int]:
    """Members of each launch, and its sizes: those of the body's range."""
    verify_schedule(made)
    assert parse_schedule(format_schedule(made)) == made
    verify_program(plan(made))
    kernels = {kernel.name: kernel for kernel in made.kernels}
    found = []
    for step in made.steps:
        if isinstance(step, KernelCall):
            combined = kernels[step.kernel].combined
            found.append(1 if combined is None else len(combined.members))
    return found


def kernel_of(made: Schedule, members: int) -> Kernel:
    (found,) = [k for k in made.kernels if k.combined is not None and len(k.combined.members) == members]
    return found


def chained(build: Builder, count: int, size: int) -> Graph:
    """Values that each become small in an external call; all of them at once are `count` times as large."""
    for k in range(count):
        build.input(f"x{k}", size)
        build.pointwise(f"y{k}", [size], lambda i, k=k: op("exp", build.at(f"x{k}", i)))
        build.extern("test.neg", [f"y{k}"], [build.buffer(f"n{k}", 1)])
    return build.graph(*(f"n{k}" for k in range(count)))


def test_the_peak_of_memory_stays_where_it_is(build: Builder) -> None:
    graph = chained(build, 4, 4096)
    together, apart = (
        schedule(graph, get_target("sm_90"), ScheduleOptions(combine=c)) for c in (True, False)
    )
    assert launches(together) == [1, 1, 1, 1]
    assert measured_peak(plan(together)) == measured_peak(plan(apart))
    refused = [d for d in together.decisions if d.rule == "combine"]
    assert refused and not any(d.accepted for d in refused) and "memory" in refused[0].reason


def test_what_is_there_for_all_is_passed_once_and_not_taken_over(build: Builder, compare: Compare) -> None:
    build.input("scale", 1)
    build.input("w", 32)
    # memory has been larger: alone, the last of the three would take over what is shared
    build.input("large", 1024)
    build.extern("test.neg", ["large"], [build.buffer("copied", 1024)])
    build.extern("test.neg", ["copied"], [build.buffer("again", 1024)])
    build.extern("test.neg", ["w"], [build.buffer("shared", 32)])
    for k in range(3):
        build.input(f"x{k}", 32)
        build.pointwise(
            f"y{k}",
            [32],
            lambda i, k=k: op(
                "mul", op("add", build.at("shared", i), build.at(f"x{k}", i)), build.at("scale", 0)
            ),
        )
    made = compare(build.graph("again", "y0", "y1", "y2"), horizontal=False)
    kernel = kernel_of(made, 3)
    assert launches(made) == [3] and len(kernel.args) == 2 + 3 + 3
    assert kernel.combined is not None
    every = [name for member in kernel.combined.members for name in member.args]
    assert {every.count(source) for _, source in kernel.aliasing} == {1}
    assert sorted(every.count(arg.name) for arg in kernel.args) == [1] * 6 + [3, 3]


def test_a_launch_takes_only_so_many_arguments(build: Builder, compare: Compare) -> None:
    made = compare(updates(build, [32] * 7), max_combined_args=6)
    assert launches(made) == [3, 3, 1]


@pytest.mark.parametrize(("name", "combine"), [("sm_90", False), ("x86-64-avx512", True)])
def test_it_can_be_switched_off_and_cpus_do_without(
    build: Builder, compare: Compare, name: str, combine: bool
) -> None:
    made = compare(updates(build, [32] * 3), name=name, combine=combine)
    assert launches(made) == [1, 1, 1]


ODD = tuple(range(3, 30, 2))


def test_many_sizes_of_one_kind_are_an_argument_on_cpus(build: Builder, compare: Compare) -> None:
    made = compare(updates(build, [*ODD, 16, 48, 1, 0, *ODD[:3]]), name="x86-64-avx512")
    assert launches(made) == [1] * (len(ODD) + 7)
    # odd sizes; 16; 48; one element; none
    assert len(made.kernels) == 5
    (kernel,) = [kernel for kernel in made.kernels if kernel.sizes]
    assert (kernel.sizes[0].lo, kernel.sizes[0].hi) == (3, 29)
    called = [number_of(step.sizes[0]) for step in kernel_calls(made) if step.kernel == kernel.name]
    assert sorted(called) == sorted([*ODD, *ODD[:3]])
    (decision,) = [d for d in made.decisions if d.rule == "open-size"]
    assert dict(decision.numbers) == {"members": len(called), "sizes": len(ODD)}


def test_multiples_of_16_are_known_to_be_some_where_sizes_are_arguments(
    build: Builder, compare: Compare
) -> None:
    made = compare(updates(build, [16 * size for size in ODD]), name="x86-64-avx512")
    (kernel,) = made.kernels
    assert repr(kernel.ranges[0].symbol.extent) == "16*n0" and repr(kernel.args[0].span) == "16*n0"


def test_an_open_size_and_one_that_is_not_are_both_arguments(build: Builder, compare: Compare) -> None:
    start = symbol("s0", lo=0, hi=40)
    build.input("long", start)
    for k, size in enumerate(ODD):
        build.input(f"t{k}", 80)
        build.pointwise(f"u{k}", [size], lambda i, k=k: build.at(f"t{k}", i + start))
    graph = build.graph(*(f"u{k}" for k in range(len(ODD))))
    graph = type(graph)(
        name="g", symbols=(start,), inputs=graph.inputs, nodes=graph.nodes, outputs=graph.outputs
    )
    made = compare(graph, sizes={"s0": 7}, name="x86-64-avx512")
    assert launches(made) == [1] * len(ODD)
    assert [len(kernel.sizes) for kernel in made.kernels] == [2]


def test_a_few_sizes_are_worth_a_text_each(build: Builder, compare: Compare) -> None:
    graph = updates(build, ODD)
    few = compare(graph, name="x86-64-avx512", most_sizes=len(ODD))
    assert [kernel.sizes for kernel in few.kernels] == [()] * len(ODD)
    assert len(compare(graph, name="x86-64-avx512", most_sizes=len(ODD) - 1).kernels) == 1


def test_kinds_are_not_mixed(build: Builder, compare: Compare) -> None:
    """Of each kind there are few sizes, of all together there are many."""
    made = compare(updates(build, ODD, dtypes=(DType.F64, DType.F32)), name="x86-64-avx512")
    assert len(made.kernels) == len(ODD)


def test_what_takes_long_stays_alone(build: Builder) -> None:
    graph = updates(build, [1 << 20, 1 << 20, 1 << 26, 1 << 26])
    made = schedule(graph, get_target("sm_90"))
    assert sorted(launches(made)) == [1, 1, 2]


def test_reductions_stay_alone(build: Builder, compare: Compare) -> None:
    for k in range(3):
        build.input(f"x{k}", 4, 8)
        build.reduce(f"y{k}", "sum", [4], [8], lambda i, r, k=k: build.at(f"x{k}", i, r))
    assert launches(compare(build.graph("y0", "y1", "y2"))) == [1, 1, 1]


def test_decisions_say_what_is_saved(build: Builder) -> None:
    made = schedule(updates(build, [32] * 5), get_target("sm_90"))
    (decision,) = [d for d in made.decisions if d.rule == "combine"]
    numbers = dict(decision.numbers)
    assert decision.accepted and numbers["members"] == 5
    assert (
        numbers["saved_us"] == pytest.approx(4 * get_target("sm_90").launch_us) and numbers["loss_us"] < 0.1
    )
