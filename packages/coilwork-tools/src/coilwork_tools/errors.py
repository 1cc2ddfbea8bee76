"""What check mode and checks of programs raise. Codes are stable and documented."""

from __future__ import annotations

from coilwork_frontend.errors import CoilworkError, CompileError


class DivergenceError(CoilworkError):
    """With `check`, a compiled call does not give what eager does; names the kernel and the source lines at
    fault."""


class NotFiniteError(CoilworkError):
    """With `check_nan` or `check_inf`, a value is NaN or infinite; names the kernel and the source lines at
    fault."""


class BatchVariantError(CompileError):
    """With `batch_invariant`, an operator runs as a kernel of torch's that may give a row other bits in
    another batch."""
