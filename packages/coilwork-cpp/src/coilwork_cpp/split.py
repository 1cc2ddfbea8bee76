"""Reductions with few results, in phases that threads can share."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_cpp.options import CppOptions
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory for intermediate results: `elements` elements of `dtype`."""

    name: str
    dtype: DType
    elements: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kernel that runs after the phases before it, and the scratch memory it is the first to write."""

    kernel: Kernel
    scratch: tuple[Scratch, ...] = ()


def split(kernel: Kernel, options: CppOptions) -> tuple[Phase, ...]:
    """`kernel` in phases; one, if it is not worth splitting."""
    return (Phase(kernel=kernel),)
