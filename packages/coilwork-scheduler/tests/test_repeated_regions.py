"""Equal regions are scheduled once: the schedule is the text that it would be if every region were
scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce
from coilwork_ir.repetition import Entry
from coilwork_ir.scalar import Scalar, const, load, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.region_evidence import RegionEvidence
from coilwork_scheduler.repeated_regions import KEPT, lengthen_schedule, shorten_graph

F32 = DType.F32
ROWS, COLUMNS = as_expr(64), as_expr(32)
RANGES = (symbol("i0", extent=ROWS), symbol("i1", extent=COLUMNS))
AXIS = symbol("r0", extent=COLUMNS)
OPTIONS = ScheduleOptions(repeat=True)
LAYERS = 44


def make_buffer(name: str, *shape: Expr) -> Buffer:
    return Buffer(name=name, dtype=F32, shape=shape, strides=make_contiguous_strides(shape))


def at(name: str, *index: Expr) -> Scalar:
    return load(name, index, F32)


def make_layers(
    *, returned: Callable[[int], bool], factor: Callable[[int], float], skips: bool = False
) -> Graph:
    """Layers of a norm with a weight of the layer's own, a product by a library and a residual sum.
    `returned` layers give their sums of rows away; with `skips`, the end reads what the third layer gives.
    """
    nodes: list[Node] = []
    inputs = [make_buffer("x", ROWS, COLUMNS), make_buffer("shared", COLUMNS)]
    outputs: list[Ref] = []
    last = "x"
    for layer in range(LAYERS):
        weight, square = make_buffer(f"w{layer}", COLUMNS), make_buffer(f"m{layer}", COLUMNS, COLUMNS)
        inputs += [weight, square]
        origins = (Origin(node=f"l{layer}", op="aten.mul.Tensor", file="m.py", line=layer),)
        total, scaled = make_buffer(f"s{layer}", ROWS), make_buffer(f"y{layer}", ROWS, COLUMNS)
        body = op("mul", at(last, RANGES[0], AXIS), at("shared", AXIS))
        nodes.append(
            Reduce(outputs=(total,), kind="sum", ranges=RANGES[:1], axes=(AXIS,), body=body, origins=origins)
        )
        value = op("mul", op("add", at(last, *RANGES), at(total.name, RANGES[0])), at(weight.name, RANGES[1]))
        nodes.append(Pointwise(output=scaled, ranges=RANGES, body=value, origins=origins))
        product, sums = make_buffer(f"p{layer}", ROWS, COLUMNS), make_buffer(f"z{layer}", ROWS, COLUMNS)
        nodes.append(
            Extern(
                target="aten.mm.default",
                args=(Ref(scaled.name), Ref(square.name)),
                outputs=(product,),
                origins=origins,
            )
        )
        value = op("add", at(last, *RANGES), op("mul", at(product.name, *RANGES), const(factor(layer), F32)))
        nodes.append(Pointwise(output=sums, ranges=RANGES, body=value, origins=origins))
        outputs += [Ref(total.name)] * returned(layer)
        last = sums.name
    end = make_buffer("end", ROWS, COLUMNS)
    value = op("exp", op("add", at(last, *RANGES), at("z2" if skips else last, *RANGES)))
    nodes.append(Pointwise(output=end, ranges=RANGES, body=value))
    return Graph(name="layers", inputs=tuple(inputs), nodes=tuple(nodes), outputs=(*outputs, Ref("end")))


def format_steps(scheduled: Schedule) -> str:
    return format_schedule(replace(scheduled, decisions=()))


def schedule_both(graph: Graph, target: str) -> tuple[Schedule, Schedule]:
    device = get_target(target)
    whole = schedule(graph, device, replace(OPTIONS, repeat=False))
    return schedule(graph, device, OPTIONS), whole


def is_repeated(scheduled: Schedule) -> bool:
    return any(decision.rule == "repeat" for decision in scheduled.decisions)


@pytest.mark.parametrize("target", ["x86-64-avx2", "sm_90"])
@pytest.mark.parametrize("returns", [True, False])
def test_repeated_schedule_is_the_schedule_of_all_regions(target: str, returns: bool) -> None:
    graph = make_layers(returned=lambda layer: returns, factor=lambda layer: 2.0)
    repeated, whole = schedule_both(graph, target)
    verify_schedule(repeated)
    assert is_repeated(repeated)
    assert not is_repeated(whole)
    assert format_steps(repeated) == format_steps(whole)


def test_few_of_equal_regions_are_left() -> None:
    graph = make_layers(returned=lambda layer: False, factor=lambda layer: 2.0)
    shorter = shorten_graph(graph, OPTIONS)
    assert shorter is not None
    assert len(shorter.graph.nodes) <= 4 * (KEPT + 2) + 1
    assert shorter.omitted_count == shorter.repetition.last - shorter.repetition.first - KEPT > 0


@pytest.mark.parametrize(
    "graph",
    [
        make_layers(returned=lambda layer: False, factor=lambda layer: float(layer)),
        make_layers(returned=lambda layer: layer in (3, 7), factor=lambda layer: 2.0),
        make_layers(returned=lambda layer: False, factor=lambda layer: 3.0 if layer == 25 else 2.0),
        make_layers(returned=lambda layer: False, factor=lambda layer: 2.0, skips=True),
    ],
    ids=["all differ", "two are results", "one differs", "the end reads an early one"],
)
def test_regions_that_differ_are_scheduled_themselves(graph: Graph) -> None:
    repeated, whole = schedule_both(graph, "x86-64-avx2")
    assert format_steps(repeated) == format_steps(whole)


def test_what_the_caller_promises_of_one_region_tells_it_from_others() -> None:
    graph = make_layers(returned=lambda layer: False, factor=lambda layer: 2.0)
    assert shorten_graph(graph, OPTIONS) is not None
    assert (
        shorten_graph(
            graph, replace(OPTIONS, donated_inputs=tuple(f"w{layer}" for layer in range(0, LAYERS, 5)))
        )
        is None
    )


def test_schedule_that_does_not_repeat_itself_is_not_lengthened() -> None:
    graph = make_layers(returned=lambda layer: False, factor=lambda layer: 2.0)
    shorter = shorten_graph(graph, OPTIONS)
    assert shorter is not None
    made = schedule(shorter.graph, get_target("x86-64-avx2"), OPTIONS)
    assert lengthen_schedule(made, shorter) is not None
    # the same with a kernel of its own for each call
    steps = tuple(
        replace(step, kernel=f"{step.kernel}_{number}") if isinstance(step, KernelCall) else step
        for number, step in enumerate(made.steps)
    )
    assert lengthen_schedule(replace(made, steps=steps), shorter) is None


def test_step_that_computes_what_no_other_region_does_stays() -> None:
    shorter = shorten_graph(make_layers(returned=lambda layer: False, factor=lambda layer: 2.0), OPTIONS)
    assert shorter is not None
    first, end = shorter.repetition.first, shorter.end
    at, before, earlier = first + 1, first, first - 1
    weights = ("shared", f"w{at}", f"w{before}", f"m{before}")
    # both store a value of the second equal region; the other one computes the region before by itself
    steps = [
        Entry("near", (f"z{before}", f"s{at}", *weights, f"y{at}"), (f"y{at}",)),
        Entry("far", (f"z{earlier}", f"p{before}", f"s{at}", *weights, f"y{at}"), (f"y{at}",)),
    ]
    evidence = RegionEvidence(shorter.whole, shorter.graph, shorter.repetition, end, steps)
    assert evidence.may_move(0, all_the_way=False)
    assert not evidence.may_move(1, all_the_way=True)
