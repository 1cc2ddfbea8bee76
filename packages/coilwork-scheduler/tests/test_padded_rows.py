"""Rows of free memory are padded for products whose kernels read whole vectors, where that pays."""

from __future__ import annotations

import re

import pytest
from test_layout_rules import strides_after

from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import TARGETS, Targets, get_target
from coilwork_scheduler import schedule
from coilwork_scheduler.layouts import products
from coilwork_scheduler.layouts.assign import explain_layouts
from coilwork_scheduler.options import ScheduleOptions


def sums_times_weight(
    rows: int, terms: int, columns: int, *, dtype: str = "f32", is_seen: bool = False, is_turned: bool = False
) -> Graph:
    """Sums over three images times a weight. The sums may be seen by the caller, or stored transposed."""
    shape, view = f"[{rows}, {terms}]", ""
    if is_turned:
        shape = f"[{terms}, {rows}]"
        view = f"%t: {dtype}[{rows}, {terms}]{{1, {rows}}} = view %a offset `0`"
    far, near = shape.strip("[]").split(", ")
    return parse_graph(f"""
    graph @sums {{
      input %x: {dtype}[3, {far}, {near}]
      input %w: {dtype}[{terms}, {columns}]
      (%a: {dtype}{shape}) = reduce sum [i0: {far}, i1: {near} | r0: 3] {{
        t0 = load %x[r0, i0, i1] : {dtype}
        yield t0
      }}
      {view}
      extern "aten.mm.default" (%{"t" if is_turned else "a"}, %w) aten implements "product" \
defines (%y: {dtype}[{rows}, {columns}]) out "aten.mm.out" ("out") fresh
      return (%y{", %a" if is_seen else ""})
    }}
    """)


def test_rows_are_padded_where_vector_loads_pay() -> None:
    found, _, remarks = strides_after(sums_times_weight(4096, 4095, 4096), "sm_90")
    assert found["a"] == "4096 1"
    (decision,) = [d for d in remarks.decisions if d.rule == "layout" and d.subjects == ("a",)]
    assert decision.accepted and dict(decision.numbers)["runner_up_us"] > 100


@pytest.mark.parametrize(
    ("graph", "device"),
    [
        pytest.param(sums_times_weight(4096, 4096, 4096), "sm_90", id="whole vectors"),
        pytest.param(sums_times_weight(4096, 4095, 4096, is_seen=True), "sm_90", id="seen"),
        pytest.param(sums_times_weight(64, 63, 64), "sm_90", id="small"),
        pytest.param(sums_times_weight(4096, 4095, 4096), "x86-64-avx512", id="CPU"),
        # sizes decide as well
        pytest.param(
            sums_times_weight(4095, 4096, 4095, dtype="bf16", is_turned=True), "sm_90", id="odd both"
        ),
    ],
)
def test_rows_stay_where_padding_gains_nothing(graph: Graph, device: str) -> None:
    found, _, _ = strides_after(graph, device)
    (a,) = list_defined_buffers(graph.nodes[0])
    assert found["a"] == " ".join(str(stride) for stride in a.strides)


def test_rows_of_a_transposed_factor_in_16_bits_are_padded() -> None:
    found, _, _ = strides_after(sums_times_weight(4095, 4096, 4096, dtype="bf16", is_turned=True), "sm_90")
    assert (found["a"], found["t"]) == ("4096 1", "1 4096")


def test_odd_terms_in_16_bits_lie_by_columns_instead() -> None:
    """The number of terms decides where they lie together, and padding between rows does not change it."""
    found, _, _ = strides_after(sums_times_weight(4096, 4095, 4096, dtype="bf16"), "sm_90")
    assert found["a"] == "1 4096"


def test_views_that_go_through_rows_keep_them_dense() -> None:
    text = """
    graph @merged {
      input %x: f32[4096, 4095]
      input %w: f32[4095, 4096]
      %a: f32[4096, 4095] = pointwise [i0: 4096, i1: 4095] {
        t0 = load %x[i0, i1] : f32
        t1 = exp(t0)
        yield t1
      }
      %v: f32[16773120] = view %a offset `0`
      %o: f32[16773120] = pointwise [i0: 16773120] {
        t0 = load %v[i0] : f32
        t1 = neg(t0)
        yield t1
      }
      extern "aten.mm.default" (%a, %w) aten implements "product" defines (%y: f32[4096, 4096]) \
out "aten.mm.out" ("out") fresh
      return (%y, %o)
    }
    """
    found, _, _ = strides_after(parse_graph(text), "sm_90")
    assert found["a"] == "4095 1"


def test_padded_rows_are_explained() -> None:
    steps: list[tuple[str, Graph]] = []
    targets = Targets(main=TARGETS["sm_90"])
    graph = sums_times_weight(4096, 4095, 4096)
    made = schedule(graph, targets, observe=lambda name, after: steps.append((name, after)))
    table = explain_layouts(steps, made.decisions, targets=targets, options=ScheduleOptions())
    (line,) = [line for line in table.splitlines() if line.startswith("%a ")]
    assert re.match(r"%a +4096 4095 +4096 1 +moved +then \{.*\}: \d+ bytes, \d+\.\d\d us more", line)


@pytest.fixture
def always_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between vectors cost more than anything else, however small a product is."""
    monkeypatch.setattr(
        products,
        "_weigh_alignment",
        lambda left, output, context: products.Alignment(lost=1 << 40, padded=0, vector_bytes=16),
    )


@pytest.mark.usefixtures("always_padded")
def test_kernels_between_products_read_and_write_padded_rows() -> None:
    """A product's result, its rows' sums, and another product of both, with rows of seven numbers."""
    text = """
    graph @chain {
      input %x: f32[6, 4]
      input %v: f32[4, 7]{1, 4}
      input %w: f32[7, 8]
      extern "aten.mm.default" (%x, %v) aten implements "product" defines (%h: f32[6, 7]) \
out "aten.mm.out" ("out") fresh
      (%n: f32[6]) = reduce sum [i0: 6 | r0: 7] {
        t0 = load %h[i0, r0] : f32
        yield t0
      }
      %g: f32[6, 7] = pointwise [i0: 6, i1: 7] {
        t0 = load %h[i0, i1] : f32
        t1 = load %n[i0] : f32
        t2 = div(t0, t1)
        yield t2
      }
      extern "aten.mm.default" (%g, %w) aten implements "product" defines (%y: f32[6, 8]) \
out "aten.mm.out" ("out") fresh
      %z: f32[6, 8] = pointwise [i0: 6, i1: 8] {
        t0 = load %y[i0, i1] : f32
        t1 = neg(t0)
        yield t1
      }
      return (%z)
    }
    """
    graph = parse_graph(text)
    found, _, _ = strides_after(graph, "sm_90")
    assert (found["h"], found["g"]) == ("8 1", "8 1")
    for device in ("sm_90", "x86-64-avx512"):
        verify_schedule(schedule(graph, get_target(device)))
