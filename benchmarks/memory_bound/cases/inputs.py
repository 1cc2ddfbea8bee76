"""Inputs that cases of several families take."""

from __future__ import annotations

import torch

from benchmarks.memory_bound.case import Arguments, Make

F16, F32 = torch.float16, torch.float32


def normal(make: Make, *shape: int) -> Arguments:
    """One tensor of numbers around zero, in bf16."""
    return (make.normal(*shape),)


def normal_f16(make: Make, *shape: int) -> Arguments:
    """Do as `normal`, in f16."""
    return (make.normal(*shape, dtype=F16),)


def normal_f32(make: Make, *shape: int) -> Arguments:
    """Do as `normal`, in f32."""
    return (make.normal(*shape, dtype=F32),)


def two(make: Make, *shape: int) -> Arguments:
    """Two tensors of one shape, in bf16."""
    return make.normal(*shape), make.normal(*shape)


def two_f32(make: Make, *shape: int) -> Arguments:
    """Do as `two`, in f32."""
    return make.normal(*shape, dtype=F32), make.normal(*shape, dtype=F32)
