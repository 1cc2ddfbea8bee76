"""How one computation runs, all decided: kernel passes, then versions by size or one for all sizes."""

from __future__ import annotations

from typing import TypeAlias

from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import find_contraction, find_parts
from coilwork_ir.target import Target
from coilwork_triton.contraction.shape import ContractionShape, shape_of
from coilwork_triton.facts.kernel_analysis import roots_of
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, Draft
from coilwork_triton.launch.options import TritonOptions, check_likely
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.proposals.refinements import REFINEMENTS, Planned, propose
from coilwork_triton.shape_versions import PlannedVersions, plan_versions

# A matrix product, a kernel of open sizes in several versions, or one kernel for all sizes.
Plan: TypeAlias = ContractionShape | PlannedVersions | Planned


def plan_computation(kernel: Kernel, target: Target, options: TritonOptions) -> Plan:
    """How `kernel`, which is one computation, runs.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    contraction = find_contraction(roots_of(kernel))
    if contraction is not None:
        parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
        parts = find_parts(contraction.left, contraction.right, parallel, contraction.axes)
        if parts is None:
            raise EmitError("contraction", "the factors do not tell rows, columns and a batch apart")
        return shape_of(kernel, contraction, parts, target, options)
    draft = KERNEL_PASSES.run(Draft(kernel=kernel, likely=check_likely(kernel, options)), target)
    setting = Setting(draft=draft, target=target, options=options)
    return plan_versions(setting) or REFINEMENTS.run(propose(setting), options)
