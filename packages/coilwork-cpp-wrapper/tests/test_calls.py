"""Operators through their own C functions and through the dispatcher, against the interpreter; refusals by
name.
"""

from __future__ import annotations

import pytest
import torch
from hand_programs import check_against_interpreter, compiled, program_of
from torch.multiprocessing.reductions import StorageWeakRef

from coilwork_cpp_wrapper import emit_cpp
from coilwork_ir.errors import EmitError
from coilwork_runtime import LayoutError


def text_of(target: str) -> str:
    """The emitted text of a program around one call."""
    return emit_cpp(program_of(target), {}).text


def test_matrix_products_into_given_memory() -> None:
    check_against_interpreter(
        """program @p {
          symbol s0 in [1, inf]
          input %x: f32[s0, 4]
          input %w: f32[4, 5]
          input %b: f32[5]
          input %q: f32[2, s0, 4]
          bind s0 in [1, inf] size %x 0
          alloc %y: f32[s0, 5]
          extern "aten.mm.out" (%x, %w) out ("out" %y)
          alloc %z: f32[s0, 5]
          extern "aten.addmm.out" (%b, %x, %w, beta = 0.5, alpha = 2) out ("out" %z)
          view %wt: f32[2, 4, 5]{0, 5, 1} of %w offset `0`
          alloc %v: f32[2, s0, 5]
          extern "aten.bmm.out" (%q, %wt) out ("out" %v)
          alloc %u: f32[2, s0, 5]
          extern "aten.baddbmm.out" (%v, %q, %wt) out ("out" %u)
          return (%y, %z, %v, %u)
        }""",
        *[[torch.randn(n, 4), torch.randn(4, 5), torch.randn(5), torch.randn(2, n, 4)] for n in (1, 6)],
    )


def test_convolution_has_the_interpreters_result() -> None:
    text = """program @p {
      input %x: f32[2, 3, 8, 8]
      input %w: f32[4, 3, 3, 3]
      input %b: f32[4]
      extern "aten.convolution.default" (%x, %w, %b, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
        defines (%y: f32[2, 4, 4, 4])
      extern "aten.convolution.default" (%x, %w, none, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        defines (%z: f32[2, 4, 6, 6]{144, 1, 24, 4})
      return (%y, %z)
    }"""
    check_against_interpreter(text, [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)])
    assert "aoti_torch_cpu_convolution(" in text_of(text)


def test_attention_has_the_interpreters_result() -> None:
    text = """program @p {
      input %q: f32[1, 2, 8, 16]
      input %k: f32[1, 2, 8, 16]
      input %v: f32[1, 2, 8, 16]
      input %m: f32[8, 8]
      extern "aten._scaled_dot_product_flash_attention_for_cpu.default" (%q, %k, %v, 0.0, True, scale = 0.3)
        defines (%y: f32[1, 2, 8, 16]{256, 16, 32, 1}, _) tuple
      extern "aten._scaled_dot_product_flash_attention_for_cpu.default" (%q, %k, %v, attn_mask = %m)
        defines (%z: f32[1, 2, 8, 16], %l: f32[1, 2, 8]) tuple
      return (%y, %z, %l)
    }"""
    check_against_interpreter(text, [*torch.randn(3, 1, 2, 8, 16), torch.randn(8, 8)])


def test_dispatcher_with_floats_lists_and_several_results() -> None:
    text = """program @p {
      input %x: f32[3, 8]
      input %w: f32[8]
      extern "aten.native_layer_norm.default" (%x, [8], %w, none, 0.001)
        defines (%y: f32[3, 8], _, %r: f32[3, 1]) tuple
      extern "aten.var_mean.dim" (%x, [1], unbiased = False, keepdim = True)
        defines (%v: f32[3, 1], %m: f32[3, 1]) tuple
      extern "aten._softmax.default" (%x, -1, False) defines (%s: f32[3, 8])
      extern "aten.sum.dim_IntList" (%x, [0], dtype = type f64) defines (%t: f64[8])
      extern "aten.flip.default" (%x, [1]) defines (%f: f32[3, 8])
      return (%y, %r, %v, %m, %s, %t, %f)
    }"""
    check_against_interpreter(text, [torch.randn(3, 8), torch.randn(8)])
    assert '"aten::native_layer_norm"' in text_of(text)


def test_lists_of_tensors() -> None:
    check_against_interpreter(
        """program @p {
          symbol s0 in [1, inf]
          input %x: f32[s0, 4]
          input %i: i64[2]
          bind s0 in [1, inf] size %x 0
          extern "aten.cat.default" ([%x, %x], 1) defines (%y: f32[s0, 8])
          extern "aten.stack.default" ([%x, %x, %x]) defines (%z: f32[3, s0, 4])
          extern "aten.index.Tensor" (%x, [none, %i]) defines (%g: f32[s0, 2])
          extern "aten.split.Tensor" (%y, 3, 1)
            defines (%a: f32[s0, 3]{8, 1}, _, %c: f32[s0, 2]{8, 1}) tuple
          return (%y, %z, %g, %a, %c)
        }""",
        *[[torch.randn(n, 4), torch.tensor([3, 1])] for n in (1, 5)],
    )


def test_lists_of_tensors_in_a_tuple() -> None:
    library = torch.library.Library("coilwork_cpp_wrapper_lists", "DEF")
    library.define("two(Tensor x) -> (Tensor[], Tensor[])")
    library.impl("two", lambda x: ([x + 1], [x * 2, x * 3]), "CPU")
    check_against_interpreter(
        """program @p {
          input %x: f32[4]
          extern "coilwork_cpp_wrapper_lists.two.default" (%x)
            defines (%a: f32[4], _, %c: f32[4]) tuple paths ([0, 0], [1, 0], [1, 1])
          return (%a, %c)
        }""",
        [torch.randn(4)],
    )


def test_other_kinds_of_arguments() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[2, 3, 4, 4]
          extern "aten.clone.default" (%x, memory_format = torch "channels_last")
            defines (%c: f32[2, 3, 4, 4]{48, 1, 12, 3})
          extern "aten._to_copy.default" (%x, dtype = type f16, layout = torch "strided", device = device \
"cpu")
            defines (%h: f16[2, 3, 4, 4])
          extern "aten.pad.default" (%x, [1, 1, 0, 0], "reflect") defines (%p: f32[2, 3, 4, 6])
          extern "aten.full.default" ([2, 2], 3, dtype = type i64, device = device "cpu") defines (%f: \
i64[2, 2])
          extern "aten.max_pool2d_with_indices.default" (%x, [2, 2], 2)
            defines (%m: f32[2, 3, 2, 2], %i: i64[2, 3, 2, 2]) tuple
          extern "aten.slice_backward.default" (%x, [2, 3, 4, 8], 3, 4, `8`, 1) defines (%s: f32[2, 3, 4, 8])
          return (%c, %h, %p, %f, %m, %i, %s)
        }""",
        [torch.randn(2, 3, 4, 4)],
    )


def test_results_in_another_layout_are_copied() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[3, 4]
          extern "aten.t.default" (%x) defines (%y: f32[4, 3])
          return (%y)
        }""",
        [torch.randn(3, 4)],
    )


def test_operators_that_write_their_arguments() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[4]
          input %i: i64[2]
          input %v: f32[2]
          extern "aten.index_put_.default" (%x, [%i], %v, True) defines (_)
          alloc %y: f32[4]
          extern "aten.copy_.default" (%y, %x)
          alloc %z: f32[3]
          extern "aten.fill_.Scalar" (%z, 2)
          alloc %r: f32[4]
          extern "aten.logcumsumexp.out" (%x, 0) out ("out" %r)
          return (%y, %z, %r)
        }""",
        [torch.randn(4), torch.tensor([1, 1]), torch.randn(2)],
    )


def test_sizes_that_data_decides() -> None:
    check_against_interpreter(
        """program @p {
          input %x: i64[6]
          input %n: i32[]
          input %flag: bool[]
          extern "aten.nonzero.default" (%x) binds (u0 in [0, inf] of 0 0) defines (%i: i64[u0, 1])
          extern "aten._local_scalar_dense.default" (%n) defines (size u1 in [0, inf])
          extern "aten._local_scalar_dense.default" (%flag) defines (size u2 in [0, 1])
          alloc %y: f32[u1, u0]
          extern "aten.fill_.Scalar" (%y, 1.5)
          return (%i, `u0 + u1 + 10*u2`, %y)
        }""",
        [torch.tensor([0, 3, 0, 4, 5, 0]), torch.tensor(4, dtype=torch.int32), torch.tensor(True)],
        [torch.zeros(6, dtype=torch.int64), torch.tensor(0, dtype=torch.int32), torch.tensor(False)],
    )


def test_scalars_through_c_functions_keep_promotion() -> None:
    check_against_interpreter(
        """program @p {
          input %x: f32[4]
          input %i: i64[4]
          extern "aten.add.Tensor" (%x, %x, alpha = 2) defines (%a: f32[4])
          extern "aten.mul.Scalar" (%i, 1.5) defines (%m: f32[4])
          extern "aten.pow.Tensor_Scalar" (%x, 2) defines (%p: f32[4])
          return (%a, %m, %p)
        }""",
        [torch.randn(4), torch.arange(4)],
    )


def test_results_of_another_shape_than_declared() -> None:
    call = compiled(
        """program @p {
          input %x: f32[3, 4]
          extern "aten.t.default" (%x) defines (%y: f32[3, 4])
          return (%y)
        }"""
    )
    with pytest.raises(
        LayoutError, match=r"(?s)returned shape \(4, 3\) where \(3, 4\).*extern aten\.t\.default"
    ):
        call([torch.randn(3, 4)])


REFUSED = [
    ('extern "aten.nope.default" (%x) defines (%y: f32[4])', "aten.nope.default", "no schema"),
    ('extern "no_such_operator" (%x) defines (%y: f32[4])', "no_such_operator", "no schema"),
    ('extern "aten.relu.default" () defines (%y: f32[4])', "aten.relu.default", "argument self is missing"),
    ('extern "aten.relu.default" (%x, %x) defines (%y: f32[4])', "aten.relu.default", "is given 2"),
    ('extern "aten.relu.default" (%x, k = 1) defines (%y: f32[4])', "aten.relu.default", "no argument k"),
    ('extern "aten.relu.default" (7) defines (%y: f32[4])', "aten.relu.default", "argument self"),
    ('extern "aten.result_type.Tensor" (%x, %x) defines (size u0 in [0, 9])', "result_type", "returns"),
]


@pytest.mark.parametrize(("call", "name", "reason"), REFUSED)
def test_what_cannot_be_called_is_refused_by_name(call: str, name: str, reason: str) -> None:
    text = f"""program @p {{
      input %x: f32[4]
      input %i: i64[4]
      {call} loc("n" "aten.n" "model.py":7 "y = f(x)" "")
      return ()
    }}"""
    with pytest.raises(EmitError) as caught:
        emit_cpp(program_of(text), {})
    message = str(caught.value)
    assert message.startswith("EmitError[cpp-unsupported]: ")
    assert name in message
    assert reason in message
    assert "source  model.py:7   y = f(x)" in message
    assert 'try     options={"wrapper": "python"}' in message


def test_types_that_torchs_c_interface_does_not_name_are_refused() -> None:
    text = """program @p {
      input %x: f32[4]
      extern "aten.dequantize.self" (%x) defines (%y: qu8[4])
      return (%y)
    }"""
    with pytest.raises(EmitError, match="element type quint8"):
        emit_cpp(program_of(text), {})


@pytest.mark.parametrize("device", ["cuda:1", "xpu:0"])
def test_other_devices_than_one_gpu_are_refused(device: str) -> None:
    text = f"""program @p {{
      input %x: f32[4] @cuda:0
      extern "aten._to_copy.default" (%x, device = device "{device}") defines (%y: f32[4])
      return (%y)
    }}"""
    with pytest.raises(EmitError, match=f"device {device}"):
        emit_cpp(program_of(text), {})


def test_custom_operators_are_called_back_into_python() -> None:
    seen: list[int] = []

    @torch.library.custom_op("coilwork_cpp_wrapper_test::tripled", mutates_args=())
    def tripled(x: torch.Tensor, note: str) -> torch.Tensor:
        seen.append(len(note))
        return x * 3

    call = compiled(
        """program @p {
          input %x: f32[4]
          extern "coilwork_cpp_wrapper_test.tripled.default" (%x, "four") defines (%y: f32[4])
          return (%y)
        }"""
    )
    x = torch.randn(4)
    (y,) = call([x])
    assert torch.equal(torch.as_tensor(y), x * 3)
    assert seen == [4]
    assert tripled is not None


def test_memory_in_flight_lives_until_the_wait() -> None:
    """`start` remembers where its operand lies and keeps it from nobody; `finish` reads what is there."""
    seen: list[StorageWeakRef] = []

    @torch.library.custom_op("coilwork_test::start", mutates_args=())
    def start(x: torch.Tensor) -> torch.Tensor:
        seen.append(StorageWeakRef(x.untyped_storage()))
        return torch.zeros(4)

    @torch.library.custom_op("coilwork_test::finish", mutates_args=("result",))
    def finish(result: torch.Tensor) -> None:
        storage = torch.UntypedStorage._new_with_weak_ptr(seen.pop().cdata)
        assert storage is not None, "freed before the wait"
        result.copy_(torch.empty(0).set_(storage))

    text = """program @p {
      input %x: f32[4]
      RELU_ADD
      alloc %y: f32[4]
      launch @relu_add (%x, %x, %y) sizes [4]
      extern "coilwork_test.start.default" (%y) defines (%g: f32[4]) in_flight (%y, %g) until (%g)
      alloc %z: f32[4]
      launch @relu_add (%y, %y, %z) sizes [4]
      extern "coilwork_test.finish.default" (%g) waits (%g)
      reuse %u: f32[4] of %y
      launch @relu_add (%z, %z, %u) sizes [4]
      free (%z)
      return (%g, %u)
    }"""
    check_against_interpreter(text, [torch.tensor([1.0, 2.0, -1.0, 0.5])])
    assert not seen
