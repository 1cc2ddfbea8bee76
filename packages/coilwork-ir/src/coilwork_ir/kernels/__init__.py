"""Kernel IR: what one launch does."""

from coilwork_ir.kernels.nodes import (
    Combined,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Range,
    Schedule,
    Step,
    Store,
    TensorArg,
)

__all__ = [
    "Combined",
    "Decision",
    "Kernel",
    "KernelCall",
    "Member",
    "Range",
    "Schedule",
    "Step",
    "Store",
    "TensorArg",
]
