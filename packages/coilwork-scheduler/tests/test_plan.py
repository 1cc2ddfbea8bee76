"""The memory planner: what is allocated, handed on and freed, and that the predicted peak is what a walk
measures.
"""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
from allocator_simulation import measured_peak
from declared import schedule

from coilwork_ir.index import as_int
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.program.nodes import (
    Alloc,
    BindSymbol,
    CheckLayout,
    ExternCall,
    Instruction,
    Launch,
    Program,
    Reinterpret,
    Reuse,
)
from coilwork_ir.program.text import format_program
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleError, ScheduleOptions
from coilwork_scheduler.memory import PlanOptions, plan

CPU = get_target("x86-64-avx512")


def planned(text: str, *, fusion: bool = False, reuse: bool = True) -> Program:
    scheduled = schedule(parse_graph(text), CPU, ScheduleOptions(fuse=fusion, inline=fusion))
    return plan(scheduled, PlanOptions(reuse=reuse))


def chain(length: int) -> str:
    """A graph of `length` unfusable steps, each reading the one before."""
    lines = ["graph @chain {", "  input %b0: f32[64, 64]"]
    for k in range(length):
        lines.append(
            f'  extern "aten.mm.default" (%b{k}, %b{k}) aten defines (%b{k + 1}: f32[64, 64]) '
            'out "aten.mm.out" ("out")'
        )
    return "\n".join([*lines, f"  return (%b{length})", "}"])


def count(program: Program, kind: type[Instruction]) -> int:
    return sum(isinstance(i, kind) for i in program.instructions)


def test_a_chain_needs_two_buffers() -> None:
    program = planned(chain(10))
    bytes_each = 64 * 64 * 4
    assert measured_peak(program) == 2 * bytes_each
    assert as_int(program.peak_bytes) == 2 * bytes_each if program.peak_bytes is not None else False
    assert count(program, Alloc) == 2


def test_without_reuse_every_buffer_is_allocated() -> None:
    program = planned(chain(10), reuse=False)
    assert count(program, Alloc) == 10
    assert count(program, Reuse) == 0
    assert measured_peak(program) == 2 * 64 * 64 * 4


POINTWISE = """
graph @inplace {
  input %x: f32[256]
  %a: f32[256] = pointwise [i0: 256] {
    t0 = load %x[i0] : f32
    t1 = exp(t0)
    yield t1
  }
  %b: f32[256] = pointwise [i0: 256] {
    t0 = load %a[i0] : f32
    t1 = sin(t0)
    yield t1
  }
  return (%b)
}
"""


def test_what_has_no_elements_is_not_launched() -> None:
    # A store whose range has no points, through strides of 0 (eye(0) has them), must not write to memory of
    # no bytes.
    text = """graph @empty {
  %a: f32[0, 0]{0, 1} = pointwise [i0: 0, i1: 0] {
    t0 = const 1.0 : f32
    yield t0
  }
  return (%a)
}"""
    program = planned(text)
    assert count(program, Launch) == 0
    assert count(program, Alloc) == 1
    assert program.kernels == ()


def test_a_pointwise_result_takes_over_its_dying_input() -> None:
    program = planned(POINTWISE)
    assert count(program, Alloc) == 1
    assert [(i.buffer.name, i.source) for i in program.instructions if isinstance(i, Reinterpret)] == [
        ("b", "a")
    ]
    assert measured_peak(program) == 1024


def test_inputs_are_never_taken_over() -> None:
    program = planned(POINTWISE)
    sources = [i.source for i in program.instructions if isinstance(i, Reuse | Reinterpret)]
    assert "x" not in sources


def test_a_donated_input_is_taken_over_and_not_counted() -> None:
    scheduled = schedule(parse_graph(POINTWISE), CPU, ScheduleOptions(fuse=True, inline=True))
    program = plan(scheduled, PlanOptions(donated_inputs=("x",)))
    assert count(program, Alloc) == 0
    assert [i.source for i in program.instructions if isinstance(i, Reinterpret)] == ["x"]
    assert program.peak_bytes is not None and as_int(program.peak_bytes) == 0 == measured_peak(program)
    kept = plan(scheduled, PlanOptions(donated_inputs=("x",), reuse=False))
    assert count(kept, Alloc) == 1


PADDED = """
graph @padded {
  input %x: f32[8, 30]{32, 1}
  %y: f32[8, 30]{32, 1} = pointwise [i0: 8, i1: 30] {
    t0 = load %x[i0, i1] : f32
    t1 = exp(t0)
    yield t1
  }
  return (%y)
}
"""


def test_a_donated_input_with_gaps_is_taken_over_by_what_has_the_same() -> None:
    scheduled = schedule(parse_graph(PADDED), CPU, ScheduleOptions(fuse=True, inline=True))
    program = plan(scheduled, PlanOptions(donated_inputs=("x",)))
    assert [i.source for i in program.instructions if isinstance(i, Reinterpret)] == ["x"]
    dense = parse_graph(PADDED.replace("%y: f32[8, 30]{32, 1}", "%y: f32[8, 30]"))
    program = plan(
        schedule(dense, CPU, ScheduleOptions(fuse=True, inline=True)), PlanOptions(donated_inputs=("x",))
    )
    assert count(program, Alloc) == 1


RESULT = """
graph @result {
  input %x: f32[8, 8]
  extern "aten.convolution.default" (%x, %x) aten defines (%y: f32[8, 8]LAYOUT) FLAG
  %b: f32[8, 8]LAYOUT = pointwise [i0: 8, i1: 8] {
    t0 = load %y[i0, i1] : f32
    t1 = sin(t0)
    yield t1
  }
  return (%b)
}
"""


@pytest.mark.parametrize(
    ("layout", "flag", "source"),
    [("", "fresh", ["y"]), ("{1, 8}", "fresh", ["y"]), ("", "", []), ("{24, 1}", "fresh", [])],
    ids=["fresh", "permuted", "perhaps shared", "perhaps woven into another"],
)
def test_an_operators_result_is_taken_over_if_nothing_shares_it(
    layout: str, flag: str, source: list[str]
) -> None:
    program = planned(RESULT.replace("LAYOUT", layout).replace("FLAG", flag))
    assert [i.source for i in program.instructions if isinstance(i, Reinterpret)] == source
    measured_peak(program)


MUTATION = """
graph @mutate {
  input %x: f32[16]
  %old: f32[16] = pointwise [i0: 16] {
    t0 = load %x[i0] : f32
    t1 = cos(t0)
    yield t1
  }
  %x1: f32[16] = pointwise [i0: 16] into %x {
    t0 = load %x[i0] : f32
    t1 = sin(t0)
    yield t1
  }
  return (%old)
}
"""


def test_readers_of_overwritten_memory_run_first() -> None:
    program = planned(MUTATION)
    launches = [i for i in program.instructions if isinstance(i, Launch)]
    assert len(launches) == 2
    assert "old" in launches[0].args
    assert "x" in launches[1].args
    measured_peak(program)


SYMBOLIC = """
graph @symbolic {
  symbol s0 in [2, inf]
  input %x: f32[s0, 4]
  extern "aten.mm.default" (%x, %x) aten defines (%y: f32[s0, 4]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%y, %y) aten defines (%z: f32[s0, 4]) out "aten.mm.out" ("out")
  return (%z)
}
"""


def test_symbols_are_bound_from_shapes_and_the_peak_is_symbolic() -> None:
    program = planned(SYMBOLIC)
    binds = [i for i in program.instructions if isinstance(i, BindSymbol)]
    assert [(b.symbol.name, b.buffer, b.dim) for b in binds] == [("s0", "x", 0)]
    assert str(program.peak_bytes) == "32*s0"


def test_a_symbol_no_input_determines_is_refused() -> None:
    text = SYMBOLIC.replace("input %x: f32[s0, 4]", "input %x: f32[2*s0, 4]")
    with pytest.raises(ScheduleError, match="s0"):
        planned(text)


def test_views_keep_their_memory_alive() -> None:
    text = """
graph @view {
  input %x: f32[8, 8]
  extern "aten.mm.default" (%x, %x) aten defines (%y: f32[8, 8]) out "aten.mm.out" ("out")
  %v: f32[8, 8]{1, 8} = view %y offset `0`
  extern "aten.mm.default" (%x, %x) aten defines (%w: f32[8, 8]) out "aten.mm.out" ("out")
  extern "aten.mm.default" (%v, %w) aten defines (%z: f32[8, 8]) out "aten.mm.out" ("out")
  return (%z)
}
"""
    program = planned(text)
    measured_peak(program)
    assert count(program, Alloc) == 3


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_predict_their_peak_and_reuse_never_raises_it(seed: int) -> None:
    generator = random.Random(seed)
    lines = ["graph @random {", "  input %b0: f32[32, 32]"]
    names = ["b0"]
    for k in range(1, 30):
        left, right = generator.choice(names[-6:]), generator.choice(names)
        lines.append(
            f'  extern "aten.mm.default" (%{left}, %{right}) aten defines (%b{k}: f32[32, 32]) '
            'out "aten.mm.out" ("out")'
        )
        names.append(f"b{k}")
    outputs = ", ".join(f"%{n}" for n in generator.sample(names[1:], 3))
    text = "\n".join([*lines, f"  return ({outputs})", "}"])
    with_reuse, without = planned(text), planned(text, reuse=False)
    assert measured_peak(with_reuse) <= measured_peak(without)
    assert with_reuse.peak_bytes is not None
    assert as_int(with_reuse.peak_bytes) == measured_peak(with_reuse)


def test_generator_states_are_passed_on_unchecked() -> None:
    """Attention's forward returns its random state on the CPU where torch says it is on the GPU."""
    text = """
        graph @backward {
          input %grad: f32[8, 8]
          input %seed: i64[]
          input %offset: i64[2]
          input %tokens: i64[]
          extern "my.attention_backward.default" (%grad, %seed, %offset, %tokens) custom defines (%out: \
f32[8, 8])
          %scaled: f32[8, 8] = pointwise [i0: 8, i1: 8] {
            t0 = load %out[i0, i1] : f32
            t1 = load %tokens[] : i64
            t2 = cast(t1) : f32
            t3 = mul(t0, t2)
            yield t3
          }
          return (%scaled)
        }
        """
    program = plan(schedule(parse_graph(text), CPU), PlanOptions(aligned_inputs=("grad", "seed", "offset")))
    checked = [i.buffer for i in program.instructions if isinstance(i, CheckLayout)]
    assert checked == ["grad", "tokens"]


def test_packed_weights_have_no_strides_to_check() -> None:
    text = """
        graph @linear {
          input %x: f32[8, 8]
          input %w: f32[4, 8]
          input %b: f32[4]
          extern "mkldnn._linear_pointwise.default" (%x, %w, %b, "none", [], "") custom defines (%out: \
f32[8, 4])
          return (%out)
        }
        """
    program = plan(schedule(parse_graph(text), CPU), PlanOptions())
    assert [i.buffer for i in program.instructions if isinstance(i, CheckLayout)] == ["x", "b"]


def test_a_promised_layout_is_not_compared_and_the_address_is() -> None:
    text = """
        graph @add {
          input %x: f32[8]
          input %y: f32[8]
          %z: f32[8] = pointwise [i0: 8] {
            t0 = load %x[i0] : f32
            t1 = load %y[i0] : f32
            t2 = add(t0, t1)
            yield t2
          }
          return (%z)
        }
        """
    options = PlanOptions(check_inputs=False, aligned_inputs=("y",))
    program = plan(schedule(parse_graph(text), CPU), options)
    checks = [i for i in program.instructions if isinstance(i, CheckLayout)]
    assert checks == [CheckLayout(buffer="y", aligned=True, asserted=False)]
    assert "align %y" in format_program(program)


def test_results_with_memory_of_their_own_are_made_aligned() -> None:
    text = """
        graph @g {
          input %x: f32[9]
          extern "my.parts.default" (%x) custom defines (%own: f32[8], %seen: f32[8]) tuple aliases (1 of %x)
          %sum: f32[8] = pointwise [i0: 8] {
            t0 = load %own[i0] : f32
            t1 = load %seen[i0] : f32
            t2 = add(t0, t1)
            yield t2
          }
          return (%sum)
        }
        """
    made = schedule(parse_graph(text), get_target("sm_90"))
    (kernel,) = made.kernels
    (call,) = (step for step in made.steps if isinstance(step, KernelCall))
    assert dict(zip(call.args, (arg.aligned for arg in kernel.args), strict=True)) == {
        "own": True,
        "seen": False,
        "sum": True,
    }
    calls = [i for i in plan(made).instructions if isinstance(i, ExternCall)]
    (extern,) = (call for call in calls if call.target == "my.parts.default")
    assert extern.aligned == (0,)


def test_views_start_aligned_where_they_skip_whole_units_of_16_bytes() -> None:
    text = """
        graph @g {
          input %x: f32[4, 8]
          %w: f32[4, 8] = pointwise [i0: 4, i1: 8] {
            t0 = load %x[i0, i1] : f32
            t1 = exp(t0)
            yield t1
          }
          %first: f32[8] = view %w offset `0`
          %second: f32[8] = view %w offset `8`
          %between: f32[8] = view %w offset `9`
          %sum: f32[8] = pointwise [i0: 8] {
            t0 = load %first[i0] : f32
            t1 = load %second[i0] : f32
            t2 = load %between[i0] : f32
            t3 = add(t0, t1)
            t4 = add(t3, t2)
            yield t4
          }
          return (%sum, %w)
        }
        """
    made = schedule(parse_graph(text), get_target("sm_90"))
    aligned = {
        name: arg.aligned
        for step in made.steps
        if isinstance(step, KernelCall)
        for name, arg in zip(
            step.args, next(k for k in made.kernels if k.name == step.kernel).args, strict=True
        )
    }
    assert {name: aligned[name] for name in ("first", "second", "between")} == {
        "first": True,
        "second": True,
        "between": False,
    }


def test_calls_keep_where_results_lie_and_leave_quantised_ones_as_they_come() -> None:
    text = """\
graph @g {
  input %x: f32[4]
  extern "lib.op.default" (%x) custom defines (%a: f32[4], %q: qu8[4]) tuple paths ([0], [1, 0])
  return (%a, %q)
}
"""
    program = plan(schedule(parse_graph(text), CPU))
    calls = [i for i in program.instructions if isinstance(i, ExternCall)]
    (call,) = (i for i in calls if i.target == "lib.op.default")
    assert call.paths == ((0,), (1, 0))
    assert call.aligned == (0,)


def levels(count: int) -> str:
    """Three levels of `count` calls that share launches: what the first made dies in the second, and fits
    nothing of the third.
    """
    lines = ["graph @levels {", *(f"  input %x{k}: f32[64]" for k in range(count))]
    for before, after, dtype in (("x", "a", "f32"), ("a", "b", "f32"), ("b", "c", "f64")):
        source = "f32"
        for k in range(count):
            lines += [
                f"  %{after}{k}: {dtype}[64] = pointwise [i0: 64] {{",
                f"    t0 = load %{before}{k}[63 - i0] : {source}",
                *(["    t1 = cast(t0) : f64"] if dtype == "f64" else ["    t1 = exp(t0)"]),
                "    yield t1",
                "  }",
            ]
    return "\n".join([*lines, f"  return ({', '.join(f'%c{k}' for k in range(count))})", "}"])


def test_work_of_large_launches_grows_with_their_members() -> None:
    def lines(members: int) -> int:
        options = ScheduleOptions(fuse=False, inline=False, max_combined_args=1000)
        scheduled = schedule(parse_graph(levels(members)), get_target("sm_90"), options)
        launches = [step for step in scheduled.steps if isinstance(step, KernelCall)]
        assert max(len(launch.args) for launch in launches) >= members / 2
        counted = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal counted
            counted += 1
            return trace if frame.f_code.co_filename == plan.__code__.co_filename else None

        sys.settrace(trace)
        try:
            plan(scheduled, PlanOptions(pools=False))
        finally:
            sys.settrace(None)
        return counted

    few, many = lines(64), lines(256)
    assert many <= 4.5 * few, (few, many)
