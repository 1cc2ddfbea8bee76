"""Several computations of one kind in one launch: what they compute, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coilwork_ir.errors import VerifyError
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.rewrite import make_functions_strict
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import Op, iterate_postorder

DECAY = """
kernel @decay_x3 strict {
  size m_n0 in [0, 1000]
  arg m0_in0: f32 in span `1`
  arg m0_in1: f32 in span `32`
  arg m0_out0: f32 out span `32`
  arg m1_in1: f32 in span `16*m_n0`
  arg m1_out0: f32 out span `16*m_n0`
  arg m2_in1: f32 in span `16`
  arg m2_out0: f32 out span `16`
  aliasing (m0_out0 of m0_in1)
  combined {
    kernel @member strict {
      size n0 in [0, 1000]
      range x0: `16*n0` parallel
      arg in0: f32 in span `1`
      arg in1: f32 in span `16*n0`
      arg out0: f32 out span `16*n0`
      aliasing (out0 of in1)
      body {
        t0 = load %in0[0] : f32
        t1 = load %in1[x0] : f32
        t2 = exp(t1)
        t3 = mul(t0, t2)
        store %out0[x0] = t3
      }
    }
    member (m0_in0, m0_in1, m0_out0) sizes [2]
    member (m0_in0, m1_in1, m1_out0) sizes [m_n0]
    member (m0_in0, m2_in1, m2_out0) sizes [1]
  }
}
"""


def lines(*spans: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    args = {"m0_in0": torch.tensor([0.5])}
    for number, span in enumerate(spans):
        args[f"m{number}_in1"] = torch.randn(span, generator=generator)
        args[f"m{number}_out0"] = torch.zeros(span)
    return args


@pytest.mark.parametrize("size", [0, 1, 5])
def test_each_member_has_its_own_tensors_and_sizes(size: int) -> None:
    kernel = parse_kernel(DECAY)
    verify_kernel(kernel)
    args = lines(32, 16 * size, 16)
    interpret_kernel(kernel, args, {"m_n0": size})
    for number in range(3):
        torch.testing.assert_close(args[f"m{number}_out0"], 0.5 * args[f"m{number}_in1"].exp())


def test_strict_functions_are_those_of_the_body() -> None:
    kernel = make_functions_strict(parse_kernel(DECAY))
    assert kernel.combined is not None
    (store,) = kernel.combined.body.stores
    (exponential,) = [n for n in iterate_postorder((store.value,)) if isinstance(n, Op) and n.op == "exp"]
    assert exponential.dtype.itemsize == 8


def refused(kernel: Kernel) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel)
    return caught.value.code


def test_what_is_wrong_has_a_name() -> None:
    kernel = parse_kernel(DECAY)
    combined = kernel.combined
    assert combined is not None
    assert refused(replace(kernel, combined=replace(combined, members=()))) == "effect"
    assert refused(replace(kernel, combined=replace(combined, members=combined.members[:2]))) == "arg-unused"
    assert refused(replace(kernel, sizes=())) == "symbol-declared"
    assert refused(replace(kernel, sizes=kernel.sizes * 2)) == "unique-symbol"
    assert refused(replace(kernel, args=(*kernel.args, kernel.args[0]))) == "unique-arg"
    nested = replace(combined, body=kernel)
    assert refused(replace(kernel, combined=nested)) == "combined-alone"
    assert refused(replace(kernel, aliasing=(("m0_out0", "m0_in0"),))) == "aliasing"
    broken = replace(combined.body, stores=())
    assert refused(replace(kernel, combined=replace(combined, body=broken))) == "effect"
