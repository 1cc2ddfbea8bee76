"""Which products in 16 bits that nothing follows are kernels."""

from __future__ import annotations

from typing import Unpack

import pytest
from declared import ScheduleFields, schedule

from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Extern
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions


def steps(graph: str, target: str = "sm_90", **options: Unpack[ScheduleFields]) -> list[str]:
    """Each step of the schedule: the operator that is called, or `kernel`."""
    parsed = parse_graph(graph)
    verify_graph(parsed)
    made = schedule(parsed, TARGETS[target], ScheduleOptions(**options))
    called = [step for step in made.steps if isinstance(step, Extern | KernelCall)]
    return [step.target.split(".")[1] if isinstance(step, Extern) else "kernel" for step in called]


def of_rows(rows: int, *, along: bool = True) -> str:
    """Rows times a weight whose sums go along memory, or across it."""
    weight = "bf16[1024, 4096]" if along else "bf16[4096, 1024]"
    viewed = "%w: bf16[4096, 1024]{1, 4096} = view %v offset `0`" if along else ""
    name = "v" if along else "w"
    return f"""graph @g {{
  input %x: bf16[{rows}, 4096]
  input %{name}: {weight}
  {viewed}
  %y: bf16[{rows}, 1024] = contract f32 [i0: {rows}, i1: 1024 | r0: 4096] {{
    t0 = load %x[i0, r0] : bf16
    t1 = load %w[r0, i1] : bf16
    t2 = parameter 0 : f32
    t3 = cast(t2) : bf16
    multiply t0, t1
    yield t3
  }}
  return (%y)
}}
"""


def with_summand(batch: int, side: int, terms: int, *, weights: bool = False) -> str:
    """A batch of products to which something as large is added."""
    weighed = "t6 = const 0.5 : f32\n    t7 = mul(t4, t6)" if weights else "t7 = cast(t4) : f32"
    return f"""graph @g {{
  input %c: bf16[{batch}, {side}, {side}]
  input %x: bf16[{batch}, {side}, {terms}]
  input %w: bf16[{batch}, {terms}, {side}]
  %y: bf16[{batch}, {side}, {side}] = contract f32 [i0: {batch}, i1: {side}, i2: {side} | r0: {terms}] {{
    t0 = load %x[i0, i1, r0] : bf16
    t1 = load %w[i0, r0, i2] : bf16
    t2 = parameter 0 : f32
    t3 = load %c[i0, i1, i2] : bf16
    t4 = cast(t3) : f32
    {weighed}
    t8 = add(t2, t7)
    t9 = cast(t8) : bf16
    multiply t0, t1
    yield t9
  }}
  return (%y)
}}
"""


def test_a_row_times_a_weight_is_a_reduction() -> None:
    assert steps(of_rows(1)) == ["kernel"]


@pytest.mark.parametrize("rows", [2, 64])
def test_several_rows_are_a_library_s(rows: int) -> None:
    assert steps(of_rows(rows)) == ["mm"]


def test_a_row_times_a_weight_across_memory_is_a_library_s() -> None:
    assert steps(of_rows(1, along=False)) == ["mm"]


def gated(rows: int, columns: int) -> str:
    """Two products of the same rows, of which one multiplies the other."""
    product = """
  %{y}: bf16[{rows}, {columns}] = contract f32 [i0: {rows}, i1: {columns} | r0: 4096] {{
    t0 = load %x[i0, r0] : bf16
    t1 = load %{w}[r0, i1] : bf16
    t2 = parameter 0 : f32
    t3 = cast(t2) : bf16
    multiply t0, t1
    yield t3
  }}"""
    both = "".join(product.format(y=y, w=w, rows=rows, columns=columns) for y, w in (("p", "v"), ("q", "w")))
    return f"""graph @g {{
  input %x: bf16[{rows}, 4096]
  input %v: bf16[4096, {columns}]
  input %w: bf16[4096, {columns}]{both}
  %y: bf16[{rows}, {columns}] = pointwise [i0: {rows}, i1: {columns}] {{
    t0 = load %p[i0, i1] : bf16
    t1 = load %q[i0, i1] : bf16
    t2 = cast(t0) : f32
    t3 = cast(t1) : f32
    t4 = mul(t2, t3)
    t5 = cast(t4) : bf16
    yield t5
  }}
  return (%y)
}}
"""


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [(16, 11008, ["kernel"]), (32, 11008, ["mm", "mm", "kernel"])],
    ids=["few rows", "more rows"],
)
def test_a_gate_of_few_rows_is_one_kernel(rows: int, columns: int, expected: list[str]) -> None:
    assert steps(gated(rows, columns)) == expected


def test_one_product_of_short_sums_is_a_library_s_whatever_is_added() -> None:
    graph = with_summand(1, 4096, 256).replace("[1, ", "[").replace("i0: 1, ", "").replace("[i0, ", "[")
    assert steps(graph.replace("i1", "i0").replace("i2", "i1")) == ["addmm"]


@pytest.mark.parametrize(("side", "expected"), [(64, "kernel"), (128, "bmm")])
def test_many_small_products_are_one_kernel(side: int, expected: str) -> None:
    shape = f"bf16[1024, {side}, {side}]"
    graph = f"""graph @g {{
  input %x: {shape}
  input %w: {shape}
  %y: {shape} = contract f32 [i0: 1024, i1: {side}, i2: {side} | r0: {side}] {{
    t0 = load %x[i0, i1, r0] : bf16
    t1 = load %w[i0, r0, i2] : bf16
    t2 = parameter 0 : f32
    t3 = cast(t2) : bf16
    multiply t0, t1
    yield t3
  }}
  return (%y)
}}
"""
    assert steps(graph) == [expected]


@pytest.mark.parametrize("weights", [False, True])
def test_what_is_added_is_read_by_the_product_s_kernel(weights: bool) -> None:
    assert steps(with_summand(64, 256, 128, weights=weights)) == ["kernel"]


@pytest.mark.parametrize(
    ("target", "options"),
    [("sm_80", {}), ("sm_90", {"numerics": "eager"}), ("sm_90", {"contractions": "aten"})],
    ids=["no copy engine", "rounded as by eager", "calls asked for"],
)
def test_elsewhere_they_are_calls(target: str, options: ScheduleFields) -> None:
    assert steps(of_rows(1), target, **options) == ["mm"]
    assert steps(with_summand(64, 256, 128), target, **options) == ["baddbmm"]
