"""Kernel IR: what one launch does."""

from coilwork_ir.kernels.nodes import (
    Decision,
    Hints,
    Kernel,
    KernelCall,
    Range,
    Schedule,
    Step,
    Store,
    TensorArg,
)

__all__ = ["Decision", "Hints", "Kernel", "KernelCall", "Range", "Schedule", "Step", "Store", "TensorArg"]
