"""`softshrink` of 16-bit floats: torch decomposes it before any compiler sees it, into steps that round where
eager does not.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_lowering.decompositions.scalar_operands import round_to_type
from coilwork_lowering.rewrites.condition import dtype_among, is_number
from coilwork_lowering.rewrites.pattern import call, tensor, value
from coilwork_lowering.rewrites.rewrite import Rewrite


def _shrink_in_single_precision(x: Any, bound: float) -> Any:
    """Return what eager computes: in `f32`, rounded once.

    Its kernels take the bound in 16 bits, but for the one for CPUs that goes forward: what lies between the
    two bounds has no gradient.
    """
    dtype, narrow = x.value.dtype, round_to_type(bound, x.value.dtype)
    on_cpu = has_trait(x.value.device.type, ATEN_CPU)
    found = torch.nn.functional.softshrink(x.to(torch.float32), bound if on_cpu else narrow).to(dtype)
    return torch.where(x.abs() > narrow, found, found.detach()) if on_cpu and narrow > bound else found


SOFTSHRINK: Final = Rewrite(
    name="wide-softshrink",
    doc="A softshrink of 16-bit floats is computed in f32 and rounded once, as eager's kernel does.",
    pattern=call("softshrink", self=tensor("x"), lambd=value("bound")),
    replacement=_shrink_in_single_precision,
    conditions=(dtype_among("x", torch.float16, torch.bfloat16), is_number("bound")),
    level="captured",
)
