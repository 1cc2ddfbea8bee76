"""Conditionals and loops, against the interpreter."""

from __future__ import annotations

import pytest
import torch
from hand_programs import check_against_interpreter, program_of

from coilwork_cpp_wrapper import emit_cpp
from coilwork_ir.errors import EmitError

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
      constant "weight" %w: f32[4, 4]
      alloc %r: f32[s0, 4]
      extern "aten.mm.out" (%a, %w) out ("out" %r)
      extern "aten.add.Scalar" (%r, `n`) defines (%sum: f32[s0, 4])
      return (%sum)
    }
    program @otherwise {
      symbol n in [0, inf]
      input %a: f32[s0, 4]
      input size `n`
      return (%a)
    }
  }
  return (%y)
}"""


def test_both_branches_see_sizes_and_constants_from_outside() -> None:
    text = COND.replace('extern "aten.add.Scalar" (%r, `n`)', 'extern "aten.add.Scalar" (%r, 2.0)')
    for flag in (True, False):
        check_against_interpreter(
            text,
            [torch.tensor(flag), torch.randn(3, 4)],
            [torch.tensor(flag), torch.randn(5, 4)],
            constants={"weight": torch.randn(4, 4)},
        )


def test_a_branch_that_cannot_be_called_is_refused_by_name() -> None:
    with pytest.raises(EmitError, match=r"aten\.add\.Scalar"):
        emit_cpp(program_of(COND), {})


LOOP = """program @p {
  symbol s0 in [1, inf]
  input %i: i64[]
  input %x: f32[s0]
  input %step: i64[]
  bind s0 in [1, inf] size %x 0
  while (%i, %x) (%step) defines (%n: i64[], %y: f32[s0]) {
    program @condition {
      input %a: i64[]
      input %b: f32[s0]
      input %c: i64[]
      extern "aten.gt.Tensor" (%a, %c) defines (%go: bool[])
      return (%go)
    }
    program @body {
      input %a: i64[]
      input %b: f32[s0]
      input %c: i64[]
      extern "aten.sub_.Tensor" (%a, %c) defines (%left: i64[])
      extern "aten.mul.Tensor" (%b, %b) defines (%square: f32[s0])
      return (%left, %square)
    }
  }
  return (%n, %y)
}"""


@pytest.mark.parametrize("times", [0, 1, 4])
def test_loops(times: int) -> None:
    text = LOOP.replace('"aten.sub_.Tensor" (%a, %c)', '"aten.bitwise_xor.Tensor" (%a, %a)')
    start = torch.tensor(1 if times else 0)
    check_against_interpreter(text, [start, torch.rand(5), torch.tensor(0)])


def test_results_do_not_share_memory_with_operands() -> None:
    text = LOOP.replace('"aten.sub_.Tensor" (%a, %c)', '"aten.bitwise_xor.Tensor" (%a, %a)')
    check_against_interpreter(text, [torch.tensor(0), torch.rand(5), torch.tensor(0)])


def test_nested_programs_return_tensors_only() -> None:
    text = """program @p {
      input %flag: bool[]
      cond %flag () defines () {
        program @then {
          return (`1`)
        }
        program @otherwise {
          return (`2`)
        }
      }
      return ()
    }"""
    with pytest.raises(EmitError, match="a branch or loop that returns a number"):
        emit_cpp(program_of(text), {})
