"""Types of the fixtures that build kernels, and the arguments of hand-written kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import TensorArg
from coilwork_ir.kernels.nodes import ArgRole

Runner = Callable[..., int]
# A kernel, with options by name.
LoadKernel = Callable[..., Runner]
BuildSource = Callable[[KernelSource], Runner]
TorchDType = Callable[[DType], torch.dtype]
Threads = Callable[[Callable[[], Sequence[torch.Tensor]]], None]


def named_arg(name: str, dtype: DType = DType.F32, span: Expr | int = 1) -> TensorArg:
    """An argument that is read, written or both, as the beginning of its name says."""
    role: ArgRole = "in" if name.startswith("in") else "inout" if name.startswith("io") else "out"
    return TensorArg(name=name, dtype=dtype, role=role, span=as_expr(span))
