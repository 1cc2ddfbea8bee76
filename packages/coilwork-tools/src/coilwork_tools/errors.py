"""The errors of check mode and of checks of programs. Codes are stable and documented."""

from __future__ import annotations

from coilwork_frontend.errors import CoilworkError, CompileError


class DivergenceError(CoilworkError):
    """A compiled call with `check` does not give what eager does; names the kernel and the source lines at
    fault."""


class NotFiniteError(CoilworkError):
    """A value of a call with `check_nan` or `check_inf` is NaN or infinite; names the kernel and the source
    lines at fault.
    """


class BatchVariantError(CompileError):
    """An operator of a `batch_invariant` program runs as a kernel of torch's that may give a row other bits
    in another batch.
    """
