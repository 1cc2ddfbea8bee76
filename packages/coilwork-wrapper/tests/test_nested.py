"""Conditionals and loops: sizes of the surroundings, constants, results in memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from wrapper_programs import BOTH, SOURCES, Call, check_agreement, module_text, program_of

from coilwork_ir.program.nodes import CondCall
from coilwork_wrapper import emit_python

COND = """program @p {
  symbol s0 in [1, inf]
  input %flag: bool[]
  input %x: f32[s0, 4]
  constant "weight" %w: f32[4, 4]
  bind s0 in [1, inf] size %x 0
  cond %flag (%x, `2*s0`) defines (%y: f32[s0, 4]) {
    program @then {
      symbol n in [0, inf]
      input %a: f32[s0, 4]
      input size `n`
      constant "weight" %matrix: f32[4, 4]
      alloc %r: f32[s0, 4]
      extern "aten.mm.out" (%a, %matrix) out ("out" %r)
      extern "aten.add.Scalar" (%r, `n + s0`) defines (%sum: f32[s0, 4])
      return (%sum)
    }
    program @otherwise {
      symbol n in [0, inf]
      input %a: f32[s0, 4]
      input size `n`
      return (%a)
    }
  } loc("cond" "cond" "model.py":7 "torch.cond(flag, f, g, (x,))" "")
  return (%y)
}"""
LOOP = """program @p {
  input %i: i64[]
  input %x: f32[5]
  input %step: i64[]
  while (%i, %x) (%step) defines (%n: i64[], %y: f32[5]) {
    program @condition {
      input %a: i64[]
      input %b: f32[5]
      input %c: i64[]
      extern "aten.gt.Scalar" (%a, 0) defines (%go: bool[])
      return (%go)
    }
    program @body {
      input %a: i64[]
      input %b: f32[5]
      input %c: i64[]
      extern "aten.sub.Tensor" (%a, %c) defines (%left: i64[])
      extern "aten.mul.Tensor" (%b, %b) defines (%square: f32[5])
      return (%left, %square)
    }
  }
  return (%n, %y)
}"""
DEEP = """program @p {
  symbol s0 in [1, inf]
  symbol s1 in [1, inf]
  input %flag: bool[]
  input %x: f32[s0]
  input %z: f32[s1]
  bind s0 in [1, inf] size %x 0
  bind s1 in [1, inf] size %z 0
  cond %flag (%flag, %x) defines (%y: f32[s0]) {
    program @outer {
      input %again: bool[]
      input %a: f32[s0]
      cond %again (%a) defines (%r: f32[s0]) {
        program @inner {
          input %b: f32[s0]
          extern "aten.add.Scalar" (%b, `s0*s1`) defines (%c: f32[s0])
          return (%c)
        }
        program @other {
          input %b: f32[s0]
          return (%b)
        }
      }
      return (%r)
    }
    program @none {
      input %again: bool[]
      input %a: f32[s0]
      extern "aten.neg.default" (%a) defines (%n: f32[s0])
      return (%n)
    }
  }
  return (%y)
}"""


def test_branches_see_sizes_and_constants_from_outside() -> None:
    calls = [[torch.tensor(flag), torch.randn(rows, 4)] for flag in (True, False) for rows in (3, 5)]
    check_agreement(COND, *calls, constants={"weight": torch.randn(4, 4)})


def test_sizes_reach_programs_inside_of_nested_programs() -> None:
    check_agreement(DEEP, *([torch.tensor(f), torch.randn(3), torch.randn(2)] for f in (True, False)))


@pytest.mark.parametrize("times", [0, 1, 2, 4])
def test_loops_run_as_often_as_their_condition_holds(times: int) -> None:
    check_agreement(LOOP, [torch.tensor(times), torch.rand(5), torch.tensor(1)])


@pytest.mark.parametrize("make", BOTH, ids=["python", "fx"])
def test_results_of_a_branch_do_not_share_memory_with_operands(make: Callable[..., Call]) -> None:
    x = torch.randn(3, 4)
    (y,) = make(COND, {"weight": torch.randn(4, 4)})([torch.tensor(False), x])
    assert torch.equal(y, x) and y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("make", BOTH, ids=["python", "fx"])
def test_results_of_a_loop_that_never_runs_do_not_share_memory_with_operands(
    make: Callable[..., Call],
) -> None:
    start, x = torch.tensor(0), torch.randn(5)
    n, y = make(LOOP)([start, x, torch.tensor(1)])
    assert torch.equal(y, x) and y.data_ptr() != x.data_ptr()
    assert n.data_ptr() != start.data_ptr()


def test_one_tensor_returned_twice_becomes_two() -> None:
    text = """program @p {
      input %flag: bool[]
      input %x: f32[3]
      cond %flag (%x) defines (%y: f32[3], %z: f32[3]) {
        program @then {
          input %a: f32[3]
          extern "aten.neg.default" (%a) defines (%b: f32[3])
          return (%b, %b)
        }
        program @otherwise {
          input %a: f32[3]
          return (%a, %a)
        }
      }
      extern "aten.zero_.default" (%y) defines (%w: f32[3])
      return (%w, %z)
    }"""
    check_agreement(text, *([torch.tensor(f), torch.randn(3)] for f in (True, False)))


def test_results_come_in_the_declared_layout() -> None:
    text = """program @p {
      input %flag: bool[]
      input %x: f32[2, 3]
      cond %flag (%x) defines (%y: f32[2, 3]{1, 2}) {
        program @then {
          input %a: f32[2, 3]
          return (%a)
        }
        program @otherwise {
          input %a: f32[2, 3]
          extern "aten.neg.default" (%a) defines (%b: f32[2, 3])
          return (%b)
        }
      }
      return (%y)
    }"""
    check_agreement(text, *([torch.tensor(f), torch.randn(2, 3)] for f in (True, False)))


def test_branches_without_results_have_effects_only() -> None:
    text = """program @p {
      input %flag: bool[]
      input %x: f32[3]
      cond %flag (%x) defines () {
        program @then {
          input %a: f32[3]
          extern "aten.neg_.default" (%a) defines (_)
          return ()
        }
        program @otherwise {
          input %a: f32[3]
          return ()
        }
      }
      while () (%flag) defines () {
        program @condition {
          input %go: bool[]
          extern "aten.clone.default" (%go) defines (%now: bool[])
          return (%now)
        }
        program @body {
          input %go: bool[]
          extern "aten.logical_not_.default" (%go) defines (_)
          return ()
        }
      }
      return ()
    }"""
    check_agreement(text, *([torch.tensor(f), torch.randn(3)] for f in (True, False)))


def test_a_program_that_both_branches_share_is_one_function() -> None:
    program = program_of(COND)
    (cond,) = [i for i in program.instructions if isinstance(i, CondCall)]
    shared = replace(cond, otherwise=cond.then)
    instructions = tuple(shared if i is cond else i for i in program.instructions)
    text = emit_python(replace(program, instructions=instructions), SOURCES)
    assert text.count("Nested program") == 1


def test_nested_programs_are_named_after_themselves() -> None:
    text = module_text(COND)
    assert "def then_0(args, s0):" in text
    assert "(y,) = then_0([x, 2*s0], s0)" in text
    assert "# model.py:7  torch.cond(flag, f, g, (x,))  [cond]" in text
