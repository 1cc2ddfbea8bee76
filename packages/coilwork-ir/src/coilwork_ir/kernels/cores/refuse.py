"""How a generator refuses the core of a kernel that it has no template for."""

from __future__ import annotations

from coilwork_ir.capabilities import Capabilities
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.nodes import Kernel


def check_core_taken(kernel: Kernel, capabilities: Capabilities, generator: str) -> None:
    """Refuse `kernel` if it has a core of a kind that is not declared in `capabilities` of the `generator`.

    Raises:
        EmitError: named by the kind.
    """
    if kernel.core is None or kernel.core.kind in capabilities.cores:
        return
    raise EmitError(
        kernel.core.kind,
        f"{generator} has no template for the core `{kernel.core.kind}`",
        node=f"kernel @{kernel.name}",
        origins=kernel.origins,
        reason="its declared capabilities (`Capabilities.cores`) do not name it",
        remedy="schedule for what the generator declares, so that a library or loops compute it",
    )
