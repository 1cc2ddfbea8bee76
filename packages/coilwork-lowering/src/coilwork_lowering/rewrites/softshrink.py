"""Rewrite `softshrink` of 16-bit floats to compute in `f32` and round once, as eager's kernel does.

Torch decomposes it before any compiler sees it, into steps that round in between.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_lowering.decompositions.scalar_operands import round_to_type
from coilwork_lowering.rewrites.rewrite import Rewrite, call, dtype_among, is_number, tensor, value


def _shrink_in_single_precision(x: Any, bound: float) -> Any:
    """Return the softshrink that eager computes: in `f32`, rounded once.

    Its kernels take the bound in 16 bits, but for the one for CPUs that goes forward: what lies between the
    two bounds has no gradient.
    """
    dtype, narrow = x.value.dtype, round_to_type(bound, x.value.dtype)
    on_cpu = has_trait(x.value.device.type, ATEN_CPU)
    shrunk = torch.nn.functional.softshrink(x.to(torch.float32), bound if on_cpu else narrow).to(dtype)
    return torch.where(x.abs() > narrow, shrunk, shrunk.detach()) if on_cpu and narrow > bound else shrunk


SOFTSHRINK: Final = Rewrite(
    name="wide-softshrink",
    doc="A softshrink of 16-bit floats is computed in f32 and rounded once, as eager's kernel does.",
    pattern=call("softshrink", self=tensor("x"), lambd=value("bound")),
    replacement=_shrink_in_single_precision,
    conditions=(dtype_among("x", torch.float16, torch.bfloat16), is_number("bound")),
    level="captured",
)
