"""Emit the kernels of a program, where a mapping of the user's may be at fault."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_frontend.errors import OptionError
from coilwork_ir import emission
from coilwork_ir.emission import Generation
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.nodes import Program
from coilwork_tools.explain.trace_folder import Trace


def emit_kernels(
    program: Program, generation: Generation, trace: Trace, *, mappings: Sequence[object] = ()
) -> dict[str, KernelSource]:
    """Return the source of every kernel of `program`, by name. `mappings` are those of the user's.

    Raises:
        OptionError: a kernel cannot run as the option `mappings` says.
        EmitError: a generator cannot express a kernel.
    """
    try:
        return emission.emit_kernels(program, generation, write=trace.write if trace.is_wanted else None)
    except CoilworkIRError as error:
        if not mappings or not error.code.startswith("mapping"):
            raise
        reason = error.reason or error.node
        raise OptionError(error.code, error.what, reason=reason, remedy=error.remedy) from error
