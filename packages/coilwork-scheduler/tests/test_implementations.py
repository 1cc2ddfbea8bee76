"""The table of what computes contractions: what each row claims, quotes and builds, and what is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels import Decision, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Contraction, Extern, Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.matrix_products import MatrixProduct, make_product, match_matrix_product
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.contractions.implementations import (
    IMPLEMENTATIONS,
    AtenCall,
    ImplementationContext,
    OddColumnSums,
    SumsOfProducts,
    WideningSums,
)
from coilwork_scheduler.cost_model import RooflineCost
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.options import ContractionChoice, make_size_hints

GPU, CPU = TARGETS["sm_90"], TARGETS["x86-64-avx512"]
ADDMM = """graph @g {
  input %x: f32[6, 10]
  input %w: f32[10, 7]
  input %b: f32[7]
  %y: f32[6, 7] = contract f32 [i0: 6, i1: 7 | r0: 10] {
    t0 = load %x[i0, r0] : f32
    t1 = load %w[r0, i1] : f32
    t2 = parameter 0 : f32
    t3 = const 2.0 : f32
    t4 = mul(t2, t3)
    t5 = load %b[i1] : f32
    t6 = const 0.5 : f32
    t7 = mul(t5, t6)
    t8 = add(t4, t7)
    multiply t0, t1
    yield t8
  }
  return (%y)
}
"""
# What no library takes: a factor that is computed, one read in another order, an epilogue that is no sum.
FREE = """graph @g {
  input %x: f32[2, 6, 10]
  input %w: f32[7, 10, 2]
  input %b: f32[7]
  %y: f32[6, 7] = contract f32 [i0: 6, i1: 7 | r0: 2, r1: 10] {
    t0 = load %x[r0, i0, r1] : f32
    t1 = exp(t0)
    t2 = load %w[i1, r1, r0] : f32
    t3 = parameter 0 : f32
    t4 = load %b[i1] : f32
    t5 = sub(t3, t4)
    t6 = tanh(t5)
    multiply t1, t2
    yield t6
  }
  return (%y)
}
"""


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 4


def scheduled(text: str, target: str = "sm_90", **options: Unpack[ScheduleFields]) -> Schedule:
    graph = parse_graph(text)
    verify_graph(graph)
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    return made


def calls(made: Schedule) -> list[Extern]:
    return [step for step in made.steps if isinstance(step, Extern)]


def decisions(made: Schedule) -> list[Decision]:
    return [one for one in made.decisions if one.rule == "contraction"]


def surroundings(graph: Graph, **options: Unpack[ScheduleFields]) -> ImplementationContext:
    return ImplementationContext(
        graph=graph,
        facts=analyse(graph),
        views=MappingProxyType({}),
        name=lambda wanted: wanted,
        targets=Targets(main=GPU),
        model=RooflineCost(target=GPU),
        sizes=make_size_hints(ScheduleOptions()),
        options=ScheduleOptions(**options),
    )


def product(
    rows: int, columns: int, terms: int, dtype: str = "bf16", **options: Unpack[ScheduleFields]
) -> tuple[MatrixProduct, ImplementationContext]:
    """A product of two inputs, and what is around it."""
    text = (
        f"graph @g {{\n  input %x: {dtype}[{rows}, {terms}]\n  input %w: {dtype}[{terms}, "
        f"{columns}]{{1, {terms}}}\n"
        f"  input %y: {dtype}[{rows}, {columns}]\n  return (%y)\n}}"
    )
    inputs = [one for one in parse_graph(text).inputs if isinstance(one, Buffer)]
    x, w, y = inputs
    output = Buffer(name="z", dtype=y.dtype, shape=y.shape, strides=y.strides, device=y.device)
    node = make_product(output, x, w)
    graph = parse_graph(text)
    graph = Graph(name="g", inputs=graph.inputs, nodes=(node,), outputs=())
    found = match_matrix_product(node, {b.name: b for b in (*inputs, output)})
    assert found is not None
    return found, surroundings(graph, **options)


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "x86-64-avx512"])
def test_weights_are_arguments_of_the_call(target: str) -> None:
    made = scheduled(ADDMM, target, contractions="generated")
    (call,) = calls(made)
    assert call.target == "aten.addmm.default" and call.out_overload == "aten.addmm.out" and call.fresh
    assert call.kwargs == (("beta", 0.5), ("alpha", 2)) and call.implements == "product"
    assert decisions(made) == []
    inputs = [drawn(6, 10), drawn(10, 7), drawn(7)]
    (found,) = interpret_schedule(made, inputs)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, torch.addmm(inputs[2], inputs[0], inputs[1], beta=0.5, alpha=2))


@pytest.mark.parametrize("contractions", ["auto", "aten", "generated"])
@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
def test_a_form_that_no_library_takes_is_loops(target: str, contractions: ContractionChoice) -> None:
    made = scheduled(FREE, target, contractions=contractions)
    assert calls(made) == []
    (decision,) = decisions(made)
    assert decision.accepted
    inputs = [drawn(2, 6, 10), drawn(7, 10, 2), drawn(7)]
    (found,), (expected,) = (
        interpret_schedule(made, inputs),
        interpret_graph(parse_graph(FREE), inputs),
    )
    assert isinstance(found, Tensor)
    direct = (torch.einsum("amk,nka->mn", inputs[0].exp(), inputs[1]) - inputs[2]).tanh()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, direct)


@pytest.mark.parametrize("numerics", ["fast", "eager", "strict"])
@pytest.mark.parametrize("dtype", ["f64", "i64", "i8"])
def test_other_types_are_the_librarys(dtype: str, numerics: Numerics) -> None:
    text = (
        f"graph @g {{\n  input %x: {dtype}[6, 10]\n  input %w: {dtype}[10, 7]\n"
        f"  %y: {dtype}[6, 7] = contract {dtype} [i0: 6, i1: 7 | r0: 10] {{\n    t0 = load %x[i0, r0] : "
        f"{dtype}\n"
        f"    t1 = load %w[r0, i1] : {dtype}\n    t2 = parameter 0 : {dtype}\n    multiply t0, t1\n    "
        "yield t2\n"
        "  }\n  return (%y)\n}"
    )
    made = scheduled(text, "x86-64-avx512", contractions="generated", numerics=numerics)
    assert [call.target for call in calls(made)] == ["aten.mm.default"] and decisions(made) == []


MIXED = """graph @g {
  input %x: LEFT[6, 10]
  input %w: i8[10, 7]
  %y: OUT[6, 7] = contract OUT [i0: 6, i1: 7 | r0: 10] {
    t0 = load %x[i0, r0] : LEFT
    t1 = load %w[r0, i1] : i8
    t2 = parameter 0 : OUT
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""


@pytest.mark.parametrize(
    ("left", "out", "expected"),
    [("i8", "i32", ["aten._int_mm.default"]), ("i8", "i64", []), ("i32", "i32", [])],
)
def test_factors_of_other_types_than_the_results(left: str, out: str, expected: list[str]) -> None:
    """ATen multiplies bytes into 32 bits; what it has no function for is loops."""
    text = MIXED.replace("LEFT", left).replace("OUT", out)
    types = {"i8": torch.int8, "i32": torch.int32, "i64": torch.int64}
    inputs = [(drawn(6, 10) * 20).to(types[left]), (drawn(10, 7) * 20).to(torch.int8)]
    for target in ("sm_90", "x86-64-avx512"):
        made = scheduled(text, target)
        assert [call.target for call in calls(made)] == expected
        assert [call.implements for call in calls(made)] == [""] * len(expected)
        (found,) = interpret_schedule(made, inputs)
        assert isinstance(found, Tensor) and found.dtype is types[out]
        assert found.equal((inputs[0].long() @ inputs[1].long()).to(types[out]))


def test_each_row_says_what_it_does_not_compute() -> None:
    double, context = product(8192, 4096, 768, "f64")
    rows = {type(row): row for row in (make(context) for make in IMPLEMENTATIONS)}
    assert list(rows) == [AtenCall, SumsOfProducts, OddColumnSums, WideningSums]
    assert rows[AtenCall].claims(double, GPU) is None
    for kind in (SumsOfProducts, OddColumnSums, WideningSums):
        assert rows[kind].claims(double, CPU) == "kernels multiply f32, f16 and bf16"
        assert kind(context).claims(product(8192, 4096, 768)[0], CPU) is None


def test_each_row_says_why_it_is_not_known_to_be_fast() -> None:
    wide, context = product(8192, 4096, 768)
    said = {make: make(context).quote(wide, GPU) for make in (SumsOfProducts, OddColumnSums, WideningSums)}
    assert all(quote.us == inf and not quote.numbers for quote in said.values())
    assert said[SumsOfProducts].reason == "no kernel is known to be faster"
    assert said[OddColumnSums].reason == "rows of the result are whole vectors"
    assert said[WideningSums].reason == "reads what lies in memory, as a library's product does"
    odd, context = product(8192, 50257, 768)
    assert OddColumnSums(context).quote(odd, GPU).us < inf == OddColumnSums(context).quote(odd, CPU).us


def test_quotes_are_of_one_model() -> None:
    """A kernel is measured against the call under the same sizes."""
    odd, context = product(8192, 50257, 768)
    call, kernel = AtenCall(context).quote(odd, GPU), OddColumnSums(context).quote(odd, GPU)
    assert call.us > 5 * kernel.us > 0
    assert OddColumnSums(context).least_gain_us(odd, call) == pytest.approx(0.2 * call.us)
    even, context = product(8192, 50264, 768)
    assert AtenCall(context).quote(even, GPU).us < kernel.us


def test_a_product_is_read_back_from_its_node() -> None:
    graph = parse_graph(ADDMM)
    buffers: Mapping[str, Buffer] = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    (node,) = graph.nodes
    assert isinstance(node, Contraction)
    found = match_matrix_product(node, buffers)
    assert found is not None and (found.alpha, found.beta) == (2, 0.5)
    assert (found.left.name, found.right.name) == ("x", "w") and found.added is buffers["b"]
    (free,) = parse_graph(FREE).nodes
    inputs = parse_graph(FREE).inputs
    assert isinstance(free, Contraction)
    assert match_matrix_product(free, {b.name: b for b in inputs if isinstance(b, Buffer)}) is None


NARROW = """
graph @g {
  input %x: TYPE[ROWS, 96]
  input %q: i8[96, 80]{1, 96}
  %w: TYPE[96, 80]{1, 96} = pointwise [i0: 96, i1: 80] {
    t0 = load %q[i0, i1] : i8
    t1 = cast(t0) : TYPE
    yield t1
  }
  %y: TYPE[ROWS, 80] = contract f32 [i0: ROWS, i1: 80 | r0: 96] {
    t0 = load %x[i0, r0] : TYPE
    t1 = load %w[r0, i1] : TYPE
    t2 = parameter 0 : f32
    t3 = cast(t2) : TYPE
    multiply t0, t1
    yield t3
  }
  return (%y)
}
"""


@pytest.mark.parametrize(
    ("weight", "dtype", "most"),
    [
        (torch.int8, "bf16", 4),
        (torch.int8, "f32", 8),
        (torch.float8_e5m2, "bf16", 4),
        (torch.float8_e4m3fn, "bf16", 2),
        (torch.float8_e4m3fn, "f32", 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("more", [0, 1])
def test_a_narrow_weight_is_widened_by_a_kernel_of_few_rows_on_cpus(
    weight: torch.dtype, dtype: str, most: int, more: int
) -> None:
    rows = most + more
    text = NARROW.replace("TYPE", dtype).replace("ROWS", str(rows))
    text = text.replace("i8", {torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2"}.get(weight, "i8"))
    if dtype == "f32":
        text = text.replace("t3 = cast(t2) : f32\n", "").replace("yield t3", "yield t2")
    made = scheduled(text, "x86-64-avx512")
    assert len(calls(made)) == more
    types = {"bf16": torch.bfloat16, "f32": torch.float32}
    x, q = drawn(rows, 96).to(types[dtype]), (drawn(80, 96) * 100).to(weight).T
    (found,) = interpret_schedule(made, [x, q])
    assert isinstance(found, Tensor)
    exact = x.double() @ q.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-2 if dtype == "bf16" else 1e-5, atol=1e-4)
