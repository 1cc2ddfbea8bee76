"""Kernel IR: what one launch does."""

from coilwork_ir.kernels.nodes import (
    Candidate,
    Combined,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Proposal,
    Range,
    Schedule,
    Step,
    Store,
    TensorArg,
)

__all__ = [
    "Candidate",
    "Combined",
    "Decision",
    "Kernel",
    "KernelCall",
    "Member",
    "Proposal",
    "Range",
    "Schedule",
    "Step",
    "Store",
    "TensorArg",
]
