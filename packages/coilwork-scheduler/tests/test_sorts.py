"""Sorts of rows that fit on chip are kernels, with what makes the rows and what follows; others are calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from declared import GRIDS, capabilities_of, declare, schedule

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Check, Extern, Graph, Node, Pointwise, Reduce, Sort
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Scalar, const, load, op
from coilwork_ir.scalar import Sort as SortValue
from coilwork_ir.target import LEAST, Sorting, Target, Targets, get_target

F32, I64 = DType.F32, DType.I64
H200, CPU = get_target("sm_90"), get_target("x86-64-avx2")
SORTLESS = declare(CPU, sorting=None)


def tensor(name: str, shape: Sequence[int | Expr], dtype: DType = F32, device: str = "cpu") -> Buffer:
    sizes = tuple(as_expr(n) for n in shape)
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes), device=device)


def ranges_of(shape: Sequence[int | Expr]) -> tuple[Expr, ...]:
    return tuple(symbol(f"i{k}", extent=n) for k, n in enumerate(shape))


def sort_of(
    shape: tuple[int | Expr, ...],
    *,
    axis: int = -1,
    count: int | None = None,
    body: Callable[[Scalar], Scalar] = lambda x: x,
    source: str = "x",
    name: str = "",
    dtype: DType = F32,
    checks: tuple[Check, ...] = (),
) -> Sort:
    """A sort of `body` of each element of `source`."""
    ranges = ranges_of(shape)
    kept = list(shape)
    if count is not None:
        kept[axis] = count
    return Sort(
        outputs=(tensor(f"{name}values", kept, dtype), tensor(f"{name}places", kept, I64)),
        ranges=ranges,
        axis=ranges[axis],
        body=body(load(source, ranges, dtype)),
        count=None if count is None else as_expr(count),
        descending=count is not None,
        checks=checks,
    )


def doubled(value: Scalar) -> Scalar:
    return op("add", value, value)


def graph_of(shape: Sequence[int], *nodes: Node, outputs: Sequence[str], dtype: DType = F32) -> Graph:
    made = Graph(
        name="sorted",
        inputs=(tensor("x", shape, dtype),),
        nodes=nodes,
        outputs=tuple(Ref(o) for o in outputs),
    )
    verify_graph(made)
    return made


def scheduled(graph: Graph, device: Target | Targets = H200) -> Schedule:
    """The schedule, after a comparison of what it computes."""
    made = schedule(graph, device, observe=lambda _, each: verify_graph(each))
    verify_schedule(made)
    (source,) = graph.inputs
    assert isinstance(source, Buffer)
    shape = tuple(n.value for n in source.shape)
    x = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0)).to(
        getattr(torch, source.dtype.torch_name)
    )
    for a, b in zip(interpret_graph(graph, [x]), interpret_schedule(made, [x]), strict=True):
        torch.testing.assert_close(a, b)
    return made


def calls(made: Schedule) -> list[str]:
    return [step.target for step in made.steps if isinstance(step, Extern)]


def launches(made: Schedule) -> int:
    return sum(isinstance(step, KernelCall) for step in made.steps)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [None, 2])
def test_rows_along_any_axis_are_a_kernel(axis: int, count: int | None) -> None:
    graph = graph_of((3, 4, 5), sort_of((3, 4, 5), axis=axis, count=count), outputs=("values", "places"))
    made = scheduled(graph)
    assert calls(made) == [] and launches(made) == 1


def test_what_is_not_wanted_is_not_stored() -> None:
    (kernel,) = scheduled(graph_of((3, 9), sort_of((3, 9)), outputs=("places",))).kernels
    assert [one.value.output for one in kernel.stores if isinstance(one.value, SortValue)] == [1]


@pytest.mark.parametrize("count", [None, 3])
def test_a_target_without_sorts_calls_aten(count: int | None) -> None:
    graph = graph_of((3, 9), sort_of((3, 9), count=count, body=doubled), outputs=("values", "places"))
    made = scheduled(graph, SORTLESS)
    assert calls(made) == ["aten.sort.stable"]
    # what makes the rows, and copies of their first elements
    assert launches(made) == (1 if count is None else 3)
    (decision,) = (d for d in made.decisions if d.rule == "sort")
    assert not decision.accepted and decision.reason == "kernels of the target sort nothing"


@pytest.mark.parametrize("dtype", [F32, I64, DType.F64, DType.BOOL])
@pytest.mark.parametrize("count", [None, 3])
def test_a_cpu_sorts_rows_of_any_type_in_memory(count: int | None, dtype: DType) -> None:
    graph = graph_of(
        (2, 9000), sort_of((2, 9000), count=count, dtype=dtype), outputs=("values", "places"), dtype=dtype
    )
    made = scheduled(graph, CPU)
    assert calls(made) == [] and launches(made) == 1
    (decision,) = (d for d in made.decisions if d.rule == "sort")
    assert decision.accepted and decision.reason == "rows are sorted in memory"


def test_a_cpu_sorts_rows_of_unknown_length() -> None:
    length = symbol("s0", lo=0)
    whole, first = (
        Graph(
            name="sorted",
            inputs=(length, tensor("x", (3, length))),
            nodes=(sort_of((3, length), count=count),),
            outputs=(Ref("values"), Ref("places")),
        )
        for count in (None, 3)
    )
    made = schedule(whole, CPU)
    assert calls(made) == []
    for n in (0, 1, 7):
        x = torch.randn(3, n)
        for a, b in zip(interpret_graph(whole, [n, x]), interpret_schedule(made, [n, x]), strict=True):
            torch.testing.assert_close(a, b)
    # how many of how few elements are the first ones, only the call finds out
    assert calls(schedule(first, CPU)) == ["aten.sort.stable"]


def test_a_cpu_leaves_rows_without_elements() -> None:
    assert calls(schedule(graph_of((3, 0), sort_of((3, 0)), outputs=("values",)), CPU)) == [
        "aten.sort.stable"
    ]


def test_any_of_equal_elements_are_topk() -> None:
    sort = replace(sort_of((3, 9), count=3), stable=False)
    made = scheduled(graph_of((3, 9), sort, outputs=("values",)), SORTLESS)
    assert calls(made) == ["aten.topk.default"] and launches(made) == 0


def test_rows_that_do_not_fit_are_calls() -> None:
    longest = declare(H200, sorting=Sorting(longest=8, most_bytes=4))
    assert calls(scheduled(graph_of((3, 8), sort_of((3, 8)), outputs=("values",)), longest)) == []
    made = scheduled(graph_of((3, 9), sort_of((3, 9)), outputs=("values",)), longest)
    assert calls(made) == ["aten.sort.stable"]
    assert [d.reason for d in made.decisions if d.rule == "sort"] == ["rows do not fit on chip"]


def test_whole_rows_that_are_sorted_faster_by_digits_are_calls() -> None:
    shape = (64, 2049)
    whole = schedule(graph_of(shape, sort_of(shape), outputs=("values",)), H200)
    assert calls(whole) == ["aten.sort.stable"]
    first = schedule(graph_of(shape, sort_of(shape, count=9), outputs=("values",)), H200)
    assert calls(first) == []


def test_few_long_rows_are_calls() -> None:
    assert calls(scheduled(graph_of((2, 600), sort_of((2, 600)), outputs=("values",)))) == [
        "aten.sort.stable"
    ]
    assert calls(scheduled(graph_of((2, 500), sort_of((2, 500)), outputs=("values",)))) == []
    assert calls(scheduled(graph_of((8, 600), sort_of((8, 600)), outputs=("values",)))) == []


def test_elements_of_64_bits_are_calls() -> None:
    made = scheduled(graph_of((3, 9), sort_of((3, 9), dtype=I64), outputs=("values",), dtype=I64))
    assert calls(made) == ["aten.sort.stable"]


def test_rows_of_unknown_length_are_calls() -> None:
    n = symbol("n", lo=2, hi=100)
    graph = Graph(
        name="sorted",
        symbols=(n,),
        inputs=(tensor("x", (3, n)),),
        nodes=(sort_of((3, n)),),
        outputs=(Ref("values"),),
    )
    assert calls(schedule(graph, H200)) == ["aten.sort.stable"]


def test_memory_of_the_host_beside_a_gpu_is_sorted_as_on_a_cpu() -> None:
    ranges = ranges_of((3, 4))
    away = tensor("away", (3, 4), device="cuda:0")
    nodes = (sort_of((3, 4)), Pointwise(output=away, ranges=ranges, body=const(1.0, F32)))
    graph = Graph(
        name="both", inputs=(tensor("x", (3, 4)),), nodes=nodes, outputs=(Ref("values"), Ref("away"))
    )
    for host, called in ((SORTLESS, ["aten.sort.stable"]), (CPU, [])):
        both = Targets(
            main=H200,
            by_device=(("cpu", CPU), ("cuda:0", H200)),
            declared=((CPU.name, capabilities_of(CPU) if host is CPU else LEAST), (H200.name, GRIDS)),
        )
        assert calls(schedule(graph, both)) == called


def test_checks_go_where_the_sort_goes() -> None:
    positive = Check(condition=op("ge", load("x", ranges_of((3, 9)), F32), const(-9.0, F32)), message="low")
    graph = graph_of((3, 9), sort_of((3, 9), checks=(positive,)), outputs=("values",))
    assert [kernel.checks != () for kernel in scheduled(graph).kernels] == [True]
    assert [kernel.checks != () for kernel in scheduled(graph, CPU).kernels] == [True]


def test_what_makes_a_row_and_what_follows_share_its_kernel() -> None:
    shape = (64, 40)
    ranges = ranges_of(shape)
    r = symbol("r", extent=40)
    before = Pointwise(output=tensor("before", shape), ranges=ranges, body=doubled(load("x", ranges, F32)))
    top = Reduce(
        outputs=(tensor("top", (64,)),),
        kind="max",
        ranges=ranges[:1],
        axes=(r,),
        body=load("x", (ranges[0], r), F32),
    )
    shifted = op("sub", load("before", ranges, F32), load("top", ranges[:1], F32))
    sort = replace(sort_of(shape), body=shifted)
    after = Pointwise(output=tensor("after", shape), ranges=ranges, body=doubled(load("values", ranges, F32)))
    last = Reduce(
        outputs=(tensor("last", (64,)),),
        kind="max",
        ranges=ranges[:1],
        axes=(r,),
        body=load("values", (ranges[0], r), F32),
    )
    made = scheduled(graph_of(shape, before, top, sort, after, last, outputs=("after", "places", "last")))
    assert launches(made) == 1


def test_two_sorts_are_two_kernels() -> None:
    shape = (64, 40)
    nodes = (sort_of(shape), sort_of(shape, body=doubled, name="other_"))
    made = scheduled(graph_of(shape, *nodes, outputs=("values", "other_values")))
    assert launches(made) == 2
    assert any(d.rule == "reject-sort" for d in made.decisions)


def test_a_sort_of_other_rows_is_another_kernel() -> None:
    shape = (32, 32)
    ranges = ranges_of(shape)
    column = Reduce(
        outputs=(tensor("column", (32,)),),
        kind="sum",
        ranges=ranges[1:],
        axes=ranges[:1],
        body=load("values", ranges, F32),
    )
    made = scheduled(graph_of(shape, sort_of(shape), column, outputs=("places", "column")))
    assert launches(made) == 2


def test_a_row_of_one() -> None:
    made = scheduled(graph_of((5, 1), sort_of((5, 1), body=doubled), outputs=("values", "places")))
    assert calls(made) == [] and launches(made) == 1
