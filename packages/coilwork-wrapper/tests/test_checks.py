"""Inputs of another layout than declared are refused by name, alike in Python and FX; strides that do not
matter are not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from wrapper_programs import BOTH, Call, check_agreement, module_text

from coilwork_wrapper import LayoutError

FIXED = "program @p {\n input %x: f32[2, 3]\n input %w: i64[4]\n check %x\n check %w aligned\n return (%w)\n}"
DYNAMIC = """program @p {
  symbol s0 in [0, inf]
  input %x: f32[2, s0]
  input %y: f32[s0]
  bind s0 in [0, inf] size %x 1
  check %x aligned
  check %y
  return (`s0`)
}"""
EACH = pytest.mark.parametrize("make", BOTH, ids=["python", "fx"])


@EACH
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(2, 4), r"input x: shape \(2, 4\), expected \(2, 3\)"),
        (torch.ones(6), r"input x: shape \(6,\), expected \(2, 3\)"),
        (torch.ones(3, 2).t(), r"input x: strides \(1, 2\), expected \(3, 1\)"),
        (torch.ones(2, 3).double(), r"input x: element type torch\.float64, expected torch\.float32"),
        (torch.ones(2, 3, device="meta"), r"input x: device meta, expected cpu"),
        (torch.ones(4, dtype=torch.int8), r"element type torch\.int8, .*; shape \(4,\), expected \(2, 3\)"),
    ],
    ids=["shape", "rank", "strides", "dtype", "device", "several"],
)
def test_another_layout_is_refused(make: Callable[..., Call], x: torch.Tensor, message: str) -> None:
    call = make(FIXED)
    good = torch.ones(4, dtype=torch.int64)
    for _ in range(2):  # after a call that passed, layouts are recognised
        with pytest.raises(LayoutError, match=message) as caught:
            call([x, good])
        assert caught.value.code == "input-layout"
        assert "try     call through torch.compile" in str(caught.value)
        call([torch.ones(2, 3), good])


@EACH
def test_the_input_that_differs_is_named(make: Callable[..., Call]) -> None:
    with pytest.raises(LayoutError, match=r"input w: shape \(5,\), expected \(4,\)"):
        make(FIXED)([torch.ones(2, 3), torch.ones(5, dtype=torch.int64)])


@EACH
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.ones(2), torch.ones(2), r"input x: shape \(2,\), expected 2 dimensions"),
        (torch.ones(2, 5), torch.ones(4), r"input y: shape \(4,\), expected \(5,\)"),
        (torch.ones(3, 5), torch.ones(5), r"input x: shape \(3, 5\), expected \(2, 5\)"),
    ],
    ids=["rank", "size", "fixed size"],
)
def test_inputs_of_dynamic_sizes_are_refused(
    make: Callable[..., Call], x: torch.Tensor, y: torch.Tensor, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        make(DYNAMIC)([x, y])


def test_strides_that_no_element_uses_do_not_matter() -> None:
    text = (
        "program @p {\n input %x: f32[1, 3]\n input %y: f32[0, 2]\n check %x aligned\n check %y\n return "
        "()\n}"
    )
    usual = [torch.ones(1, 3), torch.ones(0, 2)]
    odd = [torch.ones(3, 7).t()[:1].as_strided((1, 3), (50, 1)), torch.ones(2, 0).t()]
    check_agreement(text, usual, odd, usual)


@EACH
def test_an_input_that_must_be_aligned_is_copied(make: Callable[..., Call]) -> None:
    for text in (
        FIXED,
        FIXED.replace("4]", "s0]")
        .replace("{\n", "{\n symbol s0 in [0, inf]\n", 1)
        .replace(" check %x", " bind s0 in [0, inf] size %w 0\n check %x"),
    ):
        call = make(text)
        odd = torch.arange(9)[1:5]
        odd = odd if odd.data_ptr() % 16 else torch.arange(9)[2:6]
        (w,) = call([torch.ones(2, 3), odd])
        assert w.data_ptr() % 16 == 0 and torch.equal(w, odd)
        whole = torch.arange(4)
        assert call([torch.ones(2, 3), whole])[0] is whole


def test_fixed_layouts_are_recognised_together_and_others_checked_on_every_call() -> None:
    text = module_text(FIXED)
    assert "if not known_inputs.match(x, w):" in text and "(w,) = aligned(w)" in text
    assert "known_inputs" not in module_text(DYNAMIC)


def test_a_check_after_work_stays_after_it() -> None:
    text = """program @p {
      input %x: f32[2]
      extern "aten.neg_.default" (%x) defines (_)
      check %x
      return (%x)
    }"""
    assert "known_inputs" not in module_text(text)
    check_agreement(text, [torch.ones(2)])


def test_nested_programs_check_their_own_inputs() -> None:
    text = """program @p {
      input %flag: bool[]
      input %x: f32[2]
      check %flag
      check %x
      cond %flag (%x) defines (%y: f32[2]) {
        program @then {
          input %a: f32[2]
          check %a aligned
          return (%a)
        }
        program @otherwise {
          input %a: f32[2]
          check %a
          return (%a)
        }
      }
      return (%y)
    }"""
    check_agreement(text, *([torch.tensor(flag), torch.randn(2)] for flag in (True, False, True)))
