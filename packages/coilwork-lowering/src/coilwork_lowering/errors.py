"""Errors of lowering. Codes are stable; the README lists them."""

from __future__ import annotations

from coilwork_ir.errors import CoilworkIRError


class LoweringError(CoilworkIRError):
    """A captured graph cannot become loop IR. The usual answer of the caller is to run that graph in eager mode.

    Codes: `no-lowering`, `dtype`, `layout`, `symbol`, `argument`, `graph-form`, `index-range`.
    """
