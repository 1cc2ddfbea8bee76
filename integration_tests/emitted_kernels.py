"""Triton kernels of a small program: as they are emitted, and as a readable module describes them."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.planner import Planner
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.syntax.python import print_expression
from coilwork_ir.target import get_target
from coilwork_runtime import generated
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_triton import TritonCodegen
from coilwork_wrapper.python.module import make_kernel_specification

OPEN = """kernel @softmax fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel
  range r0: `n1` reduction
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  body {
    t0 = load %in0[n1*x0 + r0] : f32
    t1 = reduce online_softmax 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    store %out0[n1*x0 + r0] = t3
  }
}
"""


def several(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1), x.cumsum(0), x.topk(8, dim=-1).values, (x - x.mean(-1, keepdim=True)) * w


def spec_of(source: KernelSource) -> KernelSpec:
    """What a generated module says of `source`."""
    spec = eval(
        print_expression(make_kernel_specification(source, "TEXT")), {"rt": generated, "TEXT": source.text}
    )
    assert isinstance(spec, KernelSpec)
    return spec


def kernels() -> list[KernelSpec]:
    """What generated modules say of `sources`."""
    return [spec_of(source) for source in sources()]


def sources() -> list[KernelSource]:
    """Kernels of closed sizes, and one of open ones."""
    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    torch.compile(several, backend=planner, dynamic=False)(torch.randn(96, 320), torch.randn(320))
    emit, options = TritonCodegen().emit, {"likely": (16, 64)}
    found = [emit(kernel, get_target("sm_90"), {}) for kernel in planner.programs[0].kernels]
    return [*found, emit(parse_kernel(OPEN), get_target("sm_90"), options)]
