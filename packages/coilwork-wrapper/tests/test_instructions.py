"""Each instruction as Python statements, and the checks of inputs."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable

import pytest
import torch
from wrapper_programs import BOTH, Call, check_agreement, module_text, python_call

from coilwork_wrapper import LayoutError

EACH = pytest.mark.parametrize("make", BOTH, ids=["python", "fx"])


def test_launches_allocations_views_and_reuse() -> None:
    check_agreement(
        """program @p {
          symbol s0 in [1, inf]
          input %x: f32[s0, 4]
          input %y: f32[s0, 4]
          RELU_ADD
          DOUBLE
          bind s0 in [1, inf] size %x 0
          check %x aligned
          check %y
          alloc %a: f32[s0, 4]
          launch @relu_add (%x, %y, %a) sizes [4*s0]
          view %half: f32[s0, 2]{4, 1} of %a offset `2`
          extern "aten.neg.default" (%half) defines (%n: f32[s0, 2])
          free (%half)
          reuse %b: f32[4*s0] of %a
          launch @double (%b) sizes [4*s0]
          comment "as bits"
          view %bits: i32[2*s0] of %b offset `2*s0`
          return (%b, %n, %bits, `4*s0 + 1`, none)
        }""",
        [torch.randn(3, 4), torch.randn(3, 4)],
        [torch.randn(8, 4), torch.randn(8, 4)],
    )


def test_pools_are_carved_alike_by_all_wrappers() -> None:
    check_agreement(
        """program @p {
          symbol s0 in [1, inf]
          input %x: f32[s0]
          DOUBLE
          bind s0 in [1, inf] size %x 0
          pool %pool `64*s0 + 64` "cpu"
          carve %a: f32[s0] of %pool at `64`
          carve %b: i64[1] of %pool at `0`
          extern "aten.neg.out" (%x) out ("out" %a)
          extern "aten.fill_.Scalar" (%b, `s0`) defines (_)
          launch @double (%a) sizes [s0]
          extern "aten.add.Tensor" (%a, %b) defines (%c: f32[s0])
          free (%a, %b, %pool)
          return (%c)
        }""",
        [torch.randn(5)],
        [torch.randn(9)],
    )


def test_results_that_are_inputs_or_views_of_them() -> None:
    check_agreement(
        """program @p {
          input %x: f32[4, 3]
          DOUBLE
          launch @double (%x) sizes [12]
          view %t: f32[3, 4]{1, 3} of %x offset `0`
          return (%x, %t, %x)
        }""",
        [torch.randn(4, 3)],
    )


def test_operators_with_several_results_symbols_and_every_kind_of_argument() -> None:
    check_agreement(
        """program @p {
          input %x: f32[2, 6]
          extern "aten.max.dim" (%x, 1) defines (%m: f32[2], %k: i64[2]) tuple
          extern "aten.topk.default" (%x, 2, dim = -1) defines (_, %top: i64[2, 2]) tuple
          extern "aten.nonzero.default" (%x) binds (u0 in [0, inf] of 0 0) defines (%where: i64[u0, 2]{1, u0})
          extern "aten.sum.dim_IntList" (%where, [0]) defines (%sum: i64[2])
          extern "aten.full.default" ([2, `u0`], inf, dtype = type f64) defines (%f: f64[2, u0])
          extern "aten.div.Tensor_mode" (%x, %x, rounding_mode = "floor") defines (%d: f32[2, 6])
          extern "aten.clamp.default" (%x, none, 0.5) defines (%c: f32[2, 6])
          return (%m, %k, %top, %sum, %f, %d, %c, `u0 + 1`)
        }""",
        [(torch.randn(2, 6) > 0).float()],
        [torch.randn(2, 6)],
    )


def test_results_that_lie_in_lists() -> None:
    check_agreement(
        """program @p {
          input %x: f32[5, 2]
          extern "aten.histogramdd.default" (%x, [3, 4])
            defines (%h: f32[3, 4], _, %b: f32[5]) tuple paths ([0], [1, 0], [1, 1])
          return (%h, %b)
        }""",
        [torch.randn(5, 2)],
    )


def test_quantised_results_stay_as_they_come() -> None:
    check_agreement(
        """program @p {
          input %x: f32[2, 3]
          extern "aten.quantize_per_tensor.default" (%x, 0.5, 3, type qu8) defines (%q: qu8[2, 3])
          extern "aten.t.default" (%q) defines (%t: qu8[3, 2])
          extern "aten.dequantize.self" (%t) defines (%y: f32[3, 2])
          return (%y)
        }""",
        [torch.randn(2, 3)],
    )


def test_numbers_read_off_tensors_are_sizes() -> None:
    check_agreement(
        """program @p {
          input %n: i64[]
          extern "aten.item.default" (%n) defines (size u0 in [0, inf])
          extern "aten.arange.default" (`2*u0`) defines (%r: i64[2*u0])
          return (%r, `u0`)
        }""",
        [torch.tensor(3)],
        [torch.tensor(0)],
    )


def test_results_come_in_the_declared_strides() -> None:
    check_agreement(
        """program @p {
          input %x: f32[2, 3]
          input %y: f32[3, 1]
          extern "aten.neg.default" (%x) defines (%a: f32[2, 3]{1, 2})
          extern "aten.t.default" (%y) defines (%b: f32[1, 3])
          return (%a, %b)
        }""",
        [torch.randn(2, 3), torch.randn(3, 1)],
    )


CONSTANTS = """program @p {
  input %x: f32[2]
  constant "first key" %w: f32[2]
  constant "other" %x_1: f32[2]
  extern "aten.add.Tensor" (%x, %w) defines (%y: f32[2])
  free (%w)
  extern "aten.mul.Tensor" (%y, %x_1) defines (%z: f32[2])
  free (%x_1, %y)
  return (%z)
}"""


def test_constants_survive_the_call_that_frees_them() -> None:
    constants = {"first key": torch.randn(2), "other": torch.randn(2)}
    check_agreement(CONSTANTS, [torch.randn(2)], [torch.randn(2)], constants=constants)


def test_constants_of_nested_programs_are_told_apart_by_key() -> None:
    text = """program @p {
      input %flag: bool[]
      constant "a" %w: f32[2]
      cond %flag () defines (%y: f32[2]) {
        program @then {
          constant "b" %w: f32[2]
          constant "a" %other: f32[2]
          extern "aten.sub.Tensor" (%w, %other) defines (%d: f32[2])
          return (%d)
        }
        program @otherwise {
          constant "only" %v: f32[2]
          extern "aten.neg.default" (%v) defines (%w: f32[2])
          return (%w)
        }
      }
      extern "aten.add.Tensor" (%y, %w) defines (%z: f32[2])
      return (%z)
    }"""
    constants = {"a": torch.randn(2), "b": torch.randn(2), "only": torch.randn(2)}
    check_agreement(text, [torch.tensor(True)], [torch.tensor(False)], constants=constants)


@EACH
@pytest.mark.parametrize(
    ("relation", "passing", "failing"), [("eq", 4, 5), ("ne", 3, 4), ("lt", 3, 4), ("le", 4, 5)]
)
def test_checks_of_sizes(make: Callable[..., Call], relation: str, passing: int, failing: int) -> None:
    text = f"""program @p {{
      symbol s0 in [0, inf]
      input %x: f32[s0]
      bind s0 in [0, inf] size %x 0
      assert `2*s0` {relation} `8` "twice \\"s0\\" is wrong"
      return (`s0`)
    }}"""
    call = make(text)
    assert call([torch.ones(passing)]) == (passing,)
    with pytest.raises(RuntimeError, match='twice "s0" is wrong'):
        call([torch.ones(failing)])


@EACH
@pytest.mark.parametrize(
    ("operator", "declared", "message"),
    [
        ("aten.neg.default", "f32[3, 2]", r"operator-shape.*returned shape \(2, 3\) where \(3, 2\)"),
        ("aten.isnan.default", "f32[2, 3]", r"operator-dtype.*torch\.bool where torch\.float32"),
    ],
    ids=["shape", "dtype"],
)
def test_results_that_are_not_as_declared_are_refused(
    make: Callable[..., Call], operator: str, declared: str, message: str
) -> None:
    text = f"""program @p {{
      input %x: f32[2, 3]
      extern "{operator}" (%x) defines (%y: {declared})
      return (%y)
    }}"""
    with pytest.raises(Exception, match=message):
        make(text)([torch.ones(2, 3)])


@EACH
def test_results_start_where_they_should(make: Callable[..., Call]) -> None:
    text = """program @p {
      input %x: f32[2, 8]
      extern "aten.slice.Tensor" (%x, 1, 4) defines (%far: f32[2, 4]{8, 1}) aligned (0)
      extern "aten.slice.Tensor" (%x, 1, 5) defines (%odd: f32[2, 3]{8, 1}) aligned (0)
      extern "aten.slice.Tensor" (%x, 1, 5) defines (%free: f32[2, 3]{8, 1})
      return (%far, %odd, %free)
    }"""
    x = torch.randn(2, 8)
    far, odd, free = make(text)([x])
    assert far.data_ptr() == x[:, 4:].data_ptr() and free.data_ptr() == x[:, 5:].data_ptr()
    assert odd.data_ptr() % 16 == 0 and odd.stride() == (8, 1)
    assert torch.equal(odd, x[:, 5:]) and torch.equal(free, odd)


def test_memory_is_freed_where_the_program_says_so() -> None:
    alive: list[bool] = []

    @torch.library.custom_op("coilwork_wrapper_probe::look", mutates_args=())
    def look(y: torch.Tensor) -> torch.Tensor:
        alive.append(gone() is not None)
        return y.clone()

    text = """program @p {
      input %x: f32[4]
      extern "aten.neg.default" (%x) defines (%y: f32[4])
      extern "coilwork_wrapper_probe.look.default" (%y) defines (%a: f32[4])
      free (%x)
      extern "coilwork_wrapper_probe.look.default" (%y) defines (%b: f32[4])
      return (%b)
    }"""
    x = torch.ones(4)
    gone = weakref.ref(x)
    boxed = [x]
    del x
    python_call(text)(boxed)
    assert alive == [True, False]
    assert look is not None


def test_frees_next_to_each_other_are_one_statement() -> None:
    text = module_text(
        """program @p {
          input %x: f32[4]
          input %y: f32[4]
          alloc %a: f32[4]
          reuse %b: f32[2, 2] of %a
          free (%x)
          free (%y)
          return (%b)
        }"""
    )
    assert re.findall(r"^ *del .*$", text, re.MULTILINE) == ["        del a, x, y"]


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


@EACH
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_of_a_promised_layout_the_address_alone_is_looked_at(
    make: Callable[..., Call], is_open: bool
) -> None:
    text = FIXED.replace(" check %x\n", "").replace("check %w aligned", "align %w")
    if is_open:
        text = text.replace("4]", "s0]").replace("{\n", "{\n symbol s0 in [0, inf]\n", 1)
        text = text.replace(" align", " bind s0 in [0, inf] size %w 0\n align")
    call = make(text)
    whole, x = torch.arange(12)[:4], torch.ones(7).double()
    assert call([x, whole])[0] is whole
    longer = torch.arange(8)
    assert call([x, longer])[0] is longer
    odd = torch.arange(9)[1:5]
    (w,) = call([x, odd])
    assert w.data_ptr() % 16 == 0 and torch.equal(w, odd)


def test_fixed_layouts_are_recognised_together_and_others_checked_on_every_call() -> None:
    text = module_text(FIXED)
    assert "if not known_inputs.match(x, w):" in text and "(w,) = ensure_aligned(w)" in text
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
