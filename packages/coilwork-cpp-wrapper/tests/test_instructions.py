"""Each instruction as C++ statements, conditionals and loops among them."""

from __future__ import annotations

import pytest
import torch
from hand_programs import SPECS, check_against_interpreter, compiled, program_of

from coilwork_cpp_wrapper import emit_cpp
from coilwork_ir.errors import EmitError
from coilwork_runtime import LayoutError


def test_static_shapes_run_as_interpreted() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[3, 4]
          input %y: f32[3, 4]
          RELU_ADD
          check %x
          check %y
          alloc %z: f32[3, 4]
          launch @relu_add (%x, %y, %z) sizes [12]
          return (%z)
        }""",
        [torch.randn(3, 4), torch.randn(3, 4)],
    )


DYNAMIC = """program @p {
  symbol s0 in [0, inf]
  input %x: f32[s0, 4]
  input %y: f32[s0, 4]
  RELU_ADD
  bind s0 in [0, inf] size %x 0
  check %x
  check %y
  alloc %z: f32[4, s0]
  comment "all elements alike"
  launch @relu_add (%x, %y, %z) sizes [4*s0] loc("relu" "aten.relu.default" "m.py":3 "relu(x) + y" "block")
  free (%x, %y)
  return (%z, `s0 // 3`, `(s0 - 7) // 2`, `(s0 - 7) % 3`, `min(s0, 5) + 2*max(s0, 3)`, none, `-s0`)
}"""


def test_dynamic_shapes_and_size_arithmetic() -> None:
    check_against_interpreter(DYNAMIC, *([torch.randn(n, 4), torch.randn(n, 4)] for n in (1, 2, 7, 8, 64, 0)))


def test_text_shows_provenance_and_frees() -> None:
    text = emit_cpp(program_of(DYNAMIC), SPECS).text
    assert "// aten.relu.default  m.py:3  [block]  relu(x) + y" in text
    assert "// all elements alike" in text
    assert text.index("coilwork_kernel_relu_add(at_x") < text.index("x.reset()")


def test_equal_programs_give_equal_text() -> None:
    assert emit_cpp(program_of(DYNAMIC), SPECS) == emit_cpp(program_of(DYNAMIC), SPECS)


def test_integer_inputs_and_strides() -> None:
    check_against_interpreter(
        """program @p {
          symbol s0 in [1, inf]
          symbol t0 in [1, inf]
          input size `s0`
          input %x: f32[s0, 4]{t0, 1}
          bind t0 in [1, inf] stride %x 0
          check %x
          return (`s0 + t0`, %x)
        }""",
        [3, torch.randn(3, 8)[:, :4]],
    )


def test_inputs_are_mutated_as_interpreted() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[6]
          DOUBLE
          launch @double (%x) sizes [6]
          return ()
        }""",
        [torch.randn(6)],
    )


def test_reuse_in_the_same_layout_and_another() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[4, 6]
          input %y: f32[4, 6]
          RELU_ADD
          alloc %a: f32[4, 6]
          launch @relu_add (%x, %y, %a) sizes [24]
          reuse %b: f32[4, 6] of %a
          launch @relu_add (%b, %y, %b) sizes [24]
          reuse %c: f32[24] of %b
          launch @relu_add (%c, %x, %c) sizes [24]
          return (%c)
        }""",
        [torch.randn(4, 6), torch.randn(4, 6)],
    )


def test_views_of_memory() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[4, 6]
          view %t: f32[6, 3]{1, 6} of %x offset `6`
          view %same: f32[4, 6] of %x offset `0`
          return (%t, %same)
        }""",
        [torch.randn(4, 6)],
    )


def test_views_with_another_element_type() -> None:
    text = """program @p {
      input %x: f32[8]
      view %bits: i32[2, 2] of %x offset `3`
      return (%bits)
    }"""
    call = compiled(text)
    x = torch.randn(16)
    for part in (x[:8], x[5:13]):  # the second starts inside of its storage
        (bits,) = call([part])
        assert torch.equal(torch.as_tensor(bits), part[3:7].view(torch.int32).reshape(2, 2))


def test_pools_run_as_interpreted() -> None:
    check_against_interpreter(
        """program @p {
          symbol s0 in [1, inf]
          input %x: f32[s0]
          input %y: f32[s0]
          RELU_ADD
          bind s0 in [1, inf] size %x 0
          pool %memory `64*((s0 + 15)//16)*2` "cpu"
          carve %a: f32[s0] of %memory at `0`
          carve %b: f32[s0] of %memory at `64*((s0 + 15)//16)`
          launch @relu_add (%x, %y, %a) sizes [s0]
          launch @relu_add (%a, %x, %b) sizes [s0]
          free (%memory)
          return (%a, %b)
        }""",
        [torch.randn(5), torch.randn(5)],
        [torch.randn(17), torch.randn(17)],
    )


def test_views_that_kernels_alone_read_are_addresses() -> None:
    text = """program @p {
      input %x: f32[4, 6]
      RELU_ADD
      pool %memory `256` "cpu"
      carve %a: f32[6] of %memory at `64`
      carve %whole: f32[4] of %memory at `128`
      view %row: f32[6] of %x offset `6`
      view %later: f32[3] of %row offset `2`
      launch @relu_add (%row, %row, %a) sizes [6]
      free (%memory)
      launch @relu_add (%later, %a, %whole) sizes [3]
      extern "aten.sum.default" (%a) defines (%sum: f32[])
      free (%row, %later)
      alloc %b: f32[8]
      launch @relu_add (%a, %a, %b) sizes [6]
      view %half: f32[3] of %b offset `3`
      reuse %c: i32[8] of %b
      launch @relu_add (%half, %half, %half) sizes [3]
      reuse %d: f32[8] of %c
      launch @relu_add (%half, %a, %d) sizes [3]
      free (%a)
      view %few: f32[6] of %d offset `0`
      return (%sum, %few)
    }"""
    emitted = emit_cpp(program_of(text), SPECS).text
    body = emitted[emitted.index("static void run_0") :]
    # the pool, what an operator is given, the operator's result, the block, and what is returned
    assert "rt::Tensor tensors[5];" in body
    assert "char* const at_later = at_x + 32;" in body
    check_against_interpreter(text, [torch.randn(4, 6)])


def test_memory_lives_as_long_as_an_address_in_it_is_used() -> None:
    text = """program @p {
      input %x: f32[6]
      RELU_ADD
      DOUBLE
      alloc %a: f32[12]
      view %v: f32[6] of %a offset `6`
      launch @relu_add (%x, %x, %v) sizes [6]
      free (%a)
      alloc %b: f32[12]
      launch @double (%b) sizes [12]
      launch @relu_add (%v, %v, %b) sizes [6]
      free (%v)
      view %w: f32[6] of %b offset `0`
      return (%w)
    }"""
    emitted = emit_cpp(program_of(text), SPECS).text
    body = emitted[emitted.index("static void run_0") :]
    assert body.index("relu_add(at_v, at_v, at_b") < body.index("a.reset()")
    check_against_interpreter(text, [torch.randn(6)])


def test_constants_are_borrowed() -> None:
    text = """program @p {
      input %x: f32[4]
      constant "weight" %c: f32[4]
      RELU_ADD
      alloc %z: f32[4]
      launch @relu_add (%x, %c, %z) sizes [4]
      return (%z, %c)
    }"""
    weight = torch.randn(4)
    call = compiled(text, {"weight": weight})
    x = torch.randn(4)
    for _ in range(3):
        z, c = call([x])
        assert torch.equal(torch.as_tensor(z), torch.relu(x) + weight)
        assert c is weight
    with pytest.raises(KeyError):
        compiled(text, {})


def test_scratch_memory_and_kernels_with_the_same_entry() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[6]
          RELU_ADD
          DOUBLE
          alloc %z: f32[6]
          launch @relu_add (%x, %x, %z) sizes [6]
          launch @double (%z) sizes [6]
          return (%z)
        }""",
        [torch.randn(6)],
    )


ASSERTION = """program @p {
  symbol s0 in [1, inf]
  input %x: f32[s0]
  bind s0 in [1, inf] size %x 0
  assert `s0 % 2` eq `0` "the batch must be even" loc("check" "aten._assert" "m.py":9 "assert n % 2 == 0" "")
  return (%x)
}"""


def test_failed_size_check_shows_its_message_and_line() -> None:
    call = compiled(ASSERTION)
    call([torch.randn(4)])
    with pytest.raises(RuntimeError, match=r"(?s)the batch must be even.*m.py:9   assert n % 2 == 0"):
        call([torch.randn(5)])


@pytest.mark.parametrize("check", ["check %x aligned", "align %x"])
def test_aligned_inputs_are_copied_if_need_be(check: str) -> None:
    text = f"""program @p {{
      input %x: f32[8]
      {check}
      view %v: f32[8] of %x offset `0`
      return (%v)
    }}"""
    call = compiled(text)
    x = torch.randn(12)
    for part, same in ((x[4:], True), (x[3:11], False)):
        (result,) = call([part])
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, part)
        assert result.data_ptr() % 16 == 0
        assert (result.data_ptr() == part.data_ptr()) == same
    wrong = torch.randn(8).double()
    if "aligned" not in check:
        assert isinstance(call([wrong])[0], torch.Tensor)
        return
    with pytest.raises(LayoutError, match="input x has another element type"):
        call([wrong])


def test_results_start_where_they_should() -> None:
    text = """program @p {
      input %x: f32[2, 8]
      extern "aten.slice.Tensor" (%x, 1, 4) defines (%far: f32[2, 4]{8, 1}) aligned (0)
      extern "aten.slice.Tensor" (%x, 1, 5) defines (%odd: f32[2, 3]{8, 1}) aligned (0)
      return (%far, %odd)
    }"""
    x = torch.randn(2, 8)
    far, odd = compiled(text)([x])
    assert isinstance(far, torch.Tensor) and isinstance(odd, torch.Tensor)
    assert far.data_ptr() == x[:, 4:].data_ptr()
    assert odd.data_ptr() % 16 == 0 and odd.stride() == (8, 1) and torch.equal(odd, x[:, 5:])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.randn(4, 3), r"input x has shape \(4, 3\), expected \(3, 4\)"),
        (torch.randn(12), r"rank|shape \(12,\)"),
        (torch.randn(4, 3).t(), r"input x has strides \(1, 3\), expected \(4, 1\)"),
        (torch.randn(3, 4, dtype=torch.float64), r"input x has another element type, expected float32"),
        (torch.empty(3, 4, device="meta"), r"input x is not on the CPU"),
    ],
)
def test_wrong_layouts_are_refused(bad: torch.Tensor, words: str) -> None:
    call = compiled("program @p {\n input %x: f32[3, 4]\n check %x\n return (%x)\n}")
    with pytest.raises(LayoutError, match=words):
        call([bad])


def test_strides_that_do_not_matter_are_accepted() -> None:
    call = compiled("program @p {\n input %x: f32[1, 4]\n check %x\n return (%x)\n}")
    (result,) = call([torch.randn(4, 1).t()])
    assert isinstance(result, torch.Tensor)


def test_other_devices_are_refused_by_name() -> None:
    program = program_of("program @p {\n input %x: f32[4] @xpu:0\n return (%x)\n}")
    with pytest.raises(EmitError, match=r"EmitError\[cpp-unsupported\]: %x is on device xpu:0"):
        emit_cpp(program, {})


def test_a_kernel_without_source_is_refused() -> None:
    program = program_of(
        "program @p {\n input %x: f32[6]\n DOUBLE\n launch @double (%x) sizes [6]\n return ()\n}"
    )
    with pytest.raises(EmitError, match="no source for kernel double"):
        emit_cpp(program, {})


def test_unbound_sizes_are_refused() -> None:
    program = program_of("program @p {\n symbol s0 in [1, inf]\n return (`s0`)\n}")
    with pytest.raises(EmitError, match="size s0 is not bound"):
        emit_cpp(program, {})


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
    for flag in (True, False):
        check_against_interpreter(
            COND,
            [torch.tensor(flag), torch.randn(3, 4)],
            [torch.tensor(flag), torch.randn(5, 4)],
            constants={"weight": torch.randn(4, 4)},
        )


def test_a_branch_that_cannot_be_called_is_refused_by_name() -> None:
    with pytest.raises(EmitError, match=r"aten\.nope\.Scalar"):
        emit_cpp(program_of(COND.replace("aten.add.Scalar", "aten.nope.Scalar")), {})


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
def test_loops_run_as_interpreted(times: int) -> None:
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
