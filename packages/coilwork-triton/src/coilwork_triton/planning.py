"""How one computation runs, all decided: kernel passes, then versions by size or one for all sizes."""

from __future__ import annotations

from typing import TypeAlias

from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import find_contraction
from coilwork_ir.target import Target
from coilwork_triton.contraction_plan import PlannedProduct, propose_product
from coilwork_triton.facts.kernel_analysis import roots_of
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, begin_draft
from coilwork_triton.options import TritonOptions, check_likely
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.proposals.refinements import REFINEMENTS, Planned, propose
from coilwork_triton.shape_versions import PlannedVersions, plan_versions

# A matrix product, a kernel of open sizes in several versions, or one kernel for all sizes.
Plan: TypeAlias = PlannedProduct | PlannedVersions | Planned


def plan_computation(kernel: Kernel, target: Target, options: TritonOptions) -> Plan:
    """How `kernel`, which is one computation, runs.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    if find_contraction(roots_of(kernel)) is not None:
        return propose_product(kernel, target, options)
    draft = KERNEL_PASSES.run(begin_draft(kernel, check_likely(kernel, options)), target)
    setting = Setting(draft=draft, target=target, options=options)
    return plan_versions(setting) or REFINEMENTS.run(propose(setting), options)
