"""Buffers that several kernels fill, one block of rows each: one kernel for all of them, and one temporary at
a time.
"""

from __future__ import annotations

import pytest
import torch
from allocator_simulation import measured_peak
from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.buffers import Ref
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Scatter
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.program.nodes import Alloc, Launch, Reinterpret
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import load, op
from coilwork_ir.target import get_target
from coilwork_scheduler.memory import PlanOptions, plan

ROWS, INNER, COLUMNS, BLOCK = 64, 16, 41, 16
MAIN = COLUMNS // 8 * 8
BLOCKS = ROWS // BLOCK


def product_by_rows(*, interleaved: bool) -> str:
    """`x @ w` by blocks of rows, the last column apart; blocks follow their products, or come after all of
    them.
    """
    products, fills = [], []
    for k in range(BLOCKS):
        into = f" into %r{k - 1}" if k else ""
        products.append(f"""
  %x{k}: bf16[{BLOCK}, {INNER}] = view %x offset `{k * BLOCK * INNER}`
  extern "aten.mm.default" (%x{k}, %v) aten defines (%t{k}: bf16[{BLOCK}, {MAIN}]) out "aten.mm.out" \
("out")""")
        fills.append(f"""
  %r{k}: bf16[{ROWS}, {COLUMNS}] = scatter store [i0: {BLOCK}, i1: {MAIN}]{into} {{
    t0 = load %t{k}[i0, i1] : bf16
    at [i0 + {k * BLOCK}, i1]
    yield t0
  }}""")
    ordered = [p + f for p, f in zip(products, fills, strict=True)] if interleaved else [*products, *fills]
    return f"""
graph @by_rows {{
  input %x: bf16[{ROWS}, {INNER}]
  input %w: bf16[{INNER}, {COLUMNS}]{{1, {INNER}}}
  %v: bf16[{INNER}, {MAIN}]{{1, {INNER}}} = view %w offset `0`
  %u: bf16[{INNER}, 1]{{1, {INNER}}} = view %w offset `{MAIN * INNER}`
  extern "aten.mm.default" (%x, %u) aten defines (%last: bf16[{ROWS}, 1]) out "aten.mm.out" ("out")
  {"".join(ordered)}
  %y: bf16[{ROWS}, {COLUMNS}] = scatter store [i0: {ROWS}] into %r{BLOCKS - 1} {{
    t0 = load %last[i0, 0] : bf16
    at [i0, {MAIN}]
    yield t0
  }}
  return (%y)
}}"""


def scheduled(*, interleaved: bool = True) -> Schedule:
    graph = parse_graph(product_by_rows(interleaved=interleaved))
    verify_graph(graph)
    made = schedule(graph, get_target("sm_90"), observe=lambda _, passed: verify_graph(passed))
    verify_schedule(made)
    return made


def test_blocks_share_a_kernel_that_is_told_where_they_begin() -> None:
    made = scheduled()
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    assert len(calls) == BLOCKS + 1 and len(made.kernels) == 2
    for kernel in made.kernels:
        # nothing that lies around a box is read
        assert [arg.role for arg in kernel.args] == ["in", "out"]
        assert all(arg.aligned for arg in kernel.args)
        (start,) = kernel.sizes
        (store,) = kernel.stores
        # counted in 16 bytes, so that generated code knows how a block is aligned
        assert (store.index - start * 8).free_symbols == {r.symbol for r in kernel.ranges}
    starts = [as_int(call.sizes[0]) for call in calls]
    assert starts == [k * BLOCK * COLUMNS // 8 for k in range(BLOCKS)] + [MAIN // 8]
    assert [call.into for call in calls][:2] == [(), (("r1", "r0"),)]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
def test_one_temporary_lives_at_a_time(interleaved: bool, reuse: bool) -> None:
    program = plan(scheduled(interleaved=interleaved), PlanOptions(reuse=reuse))
    verify_program(program)
    result, block, last = ROWS * COLUMNS * 2, BLOCK * MAIN * 2, ROWS * 2
    assert program.peak_bytes is not None
    assert as_int(program.peak_bytes) == measured_peak(program) == result + block + last
    allocated = [i.buffer.name for i in program.instructions if isinstance(i, Alloc)]
    assert {"r0", "last"} < set(allocated) and len(allocated) <= BLOCKS + 2
    # the result has memory of its own, which all blocks go to
    owner = {name: name for name in allocated}
    for instruction in program.instructions:
        if isinstance(instruction, Reinterpret) and instruction.source in owner:
            owner[instruction.buffer.name] = owner[instruction.source]
    launches = [i for i in program.instructions if isinstance(i, Launch)]
    assert {owner[launch.args[1]] for launch in launches} == {"r0"}


def band(
    build: Builder, source: str, name: str, into: str | None, start: int, rows: int, start_column: int = 0
) -> None:
    output = build.buffer(name, 6, 5)
    ranges = build.ranges(rows, 5 - start_column)
    index: tuple[Expr, ...] = (ranges[0] + start, ranges[1] + start_column)
    value = load(source, (ranges[0], ranges[1]), output.dtype)
    build.nodes.append(
        Scatter(output=output, into=into, ranges=ranges, index=index, indirect=(), value=value, mode="store")
    )


def test_what_is_computed_for_a_part_is_stored_there(build: Builder, compare: Compare) -> None:
    for name, rows in (("a", 2), ("b", 4)):
        build.input(name, rows, 5)
        build.pointwise(
            f"{name}2", [rows, 5], lambda i, j, n=name: op("add", build.at(n, i, j), build.at(n, i, 0))
        )
    band(build, "a2", "y0", None, 0, 2)
    band(build, "b2", "y1", "y0", 2, 4)
    build.pointwise("z", [6, 5], lambda i, j: build.at("y1", i, j))
    made = compare(build.graph("y1", "z"))
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    # sums go straight to their places
    assert len(calls) == 3 and {n for c in calls for n in c.args} == {"a", "b", "y0", "y1", "z"}


def test_a_part_of_what_an_operator_made_is_overwritten(build: Builder, compare: Compare) -> None:
    build.input("x", 6, 5)
    build.input("p", 3, 2)
    build.extern("test.neg", ["x"], [build.buffer("n", 6, 5)], fresh=True)
    band(build, "p", "y", "n", 3, 3, 3)
    made = compare(build.graph("y"))
    (call,) = [step for step in made.steps if isinstance(step, KernelCall)]
    assert call.into == (("y", "n"),) and call.sizes == (as_expr((3 * 5 + 3) // 2),)
    assert list(made.outputs) == [Ref("y")]


def test_a_part_that_is_read_while_it_is_overwritten_is_computed_first(
    build: Builder, compare: Compare
) -> None:
    build.input("x", 6, 5)
    build.pointwise("c", [6, 5], lambda i, j: build.at("x", i, j))
    output = build.buffer("y", 6, 5)
    ranges = build.ranges(4, 5)
    value = load("c", (ranges[0], ranges[1]), output.dtype)
    build.nodes.append(
        Scatter(
            output=output,
            into="c",
            ranges=ranges,
            index=(ranges[0] + 2, ranges[1]),
            indirect=(),
            value=value,
            mode="store",
        )
    )
    compare(build.graph("y"))


WHERE_NEEDED = """
graph @where_needed {
  input %x: f32[8, 512]
  input %needed: bool[]
  %y: f32[8, 512] = scatter store [i0: 8, i1: 512] covers {
    t0 = load %x[i0, i1] : f32
    t1 = load %needed[] : bool
    t2 = mul(t0, t0)
    at [i0, i1] mask t1
    yield t2
  }
  %z: f32[8, 512] = pointwise [i0: 8, i1: 512] {
    t0 = load %needed[] : bool
    t1 = load %y[i0, i1] : f32 mask t0 other 7.0
    yield t1
  }
  return (%z)
}"""


def test_memory_that_data_say_is_not_needed_is_filled_by_a_kernel_of_its_own() -> None:
    graph = parse_graph(WHERE_NEEDED)
    verify_graph(graph)
    made = schedule(graph, get_target("sm_90"))
    verify_schedule(made)
    assert len(made.kernels) == 2
    x = torch.randn(8, 512)
    for needed, wanted in ((True, x * x), (False, torch.full((8, 512), 7.0))):
        (found,) = interpret_schedule(made, (x, torch.tensor(needed)))
        assert isinstance(found, torch.Tensor) and torch.equal(found, wanted)


SPARSE = """
graph @sparse {
  input %x: f32[8, 512]
  input %p: i64[8]
  %m: f32[16, 512] = pointwise [i0: 16, i1: 512] {
    t0 = const 0.0 : f32
    yield t0
  }
  %y: f32[16, 512] = scatter store [i0: 8, i1: 512] sparse {
    t0 = load %x[i0, i1] : f32
    t1 = load %p[i0] : i64
    at [@0, i1] using (t1)
    yield t0
  }
  return (%y)
}"""


def test_memory_whose_other_elements_do_not_matter_is_not_written_before() -> None:
    graph = parse_graph(SPARSE)
    verify_graph(graph)
    made = schedule(graph, get_target("sm_90"))
    verify_schedule(made)
    (kernel,) = made.kernels
    # what is there need not be there before: it is no operand of the kernel
    assert [arg.role for arg in kernel.args] == ["in", "in", "out"]
    x, p = torch.randn(8, 512), torch.randperm(16)[:8]
    (found,) = interpret_schedule(made, (x, p))
    assert isinstance(found, torch.Tensor) and torch.equal(found[p], x)
