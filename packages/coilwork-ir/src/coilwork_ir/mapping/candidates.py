"""What generators say of candidates that templates name (`coilwork_ir.kernels.Proposal`)."""

from __future__ import annotations

from coilwork_ir.errors import CoilworkIRError, EmitError
from coilwork_ir.kernels.nodes import Kernel


def refuse_candidate(kernel: Kernel, text: str, error: CoilworkIRError) -> EmitError:
    """The error that says of a candidate of `kernel`, which is `text`, what `error` says."""
    keyword = error.code.removeprefix("mapping-")
    return EmitError(
        f"candidate-{keyword}",
        f"a template's candidate for kernel {kernel.name} cannot be used",
        node=text,
        origins=kernel.origins,
        reason=": ".join(part for part in (error.what, error.reason) if part),
        remedy="have the template name blocks that its generator writes (docs/how-to/add-a-template.md)",
    )
