"""Plan one computation, and give its plan as mappings.

`plan_computation` runs the kernel passes, then plans a product, several versions by size, or one kernel.
`map_plan` says how the kernel runs at first choice, one mapping for each kind of sizes; `open_versions`
what a search may choose.

    mapping @softmax for cuda {
      when `n1 <= 4096` and `n1 % 16 == 0`:
        tile x0 by 1
        keep r0 by 4096
        warps 4
        index i32
      otherwise:
        tile x0 by 1
        loop r0 by 1024
        warps 8
        index i64
    }

A mapping is about the kernel that kernel passes leave, not the one that they get.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core
from coilwork_ir.mapping import Guard, Mapped, Mapping, Version, Versions
from coilwork_ir.scalar import find_contraction
from coilwork_ir.target import Target
from coilwork_triton.attention_plan import PlannedAttention, propose_attention
from coilwork_triton.contraction_plan import PlannedProduct, propose_product
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, begin_draft
from coilwork_triton.launch.search_space import list_config_numbers
from coilwork_triton.options import TritonOptions, check_likely
from coilwork_triton.proposals.mapping_proposal import REFINEMENTS, Planned, propose
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.shape_versions import PlannedVersions, plan_versions

# Plans


# Attention, a matrix product, a kernel of open sizes in several versions, or one kernel for all sizes.
Plan: TypeAlias = PlannedAttention | PlannedProduct | PlannedVersions | Planned


def plan_computation(kernel: Kernel, target: Target, options: TritonOptions) -> Plan:
    """Return how `kernel`, which is one computation, runs.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    if find_core(kernel) is not None:
        return propose_attention(kernel, target, options)
    if find_contraction(list_roots(kernel)) is not None:
        return propose_product(kernel, target, options)
    draft = KERNEL_PASSES.run(begin_draft(kernel, check_likely(kernel, options)), target)
    setting = Setting(draft=draft, target=target, options=options)
    return plan_versions(setting) or REFINEMENTS.run(propose(setting), options)


# Mappings


def map_plan(kernel: Kernel, plan: Plan, target: Target) -> Mapped:
    """Return how `kernel` runs on `target` at first choice, by `plan`, for each kind of sizes, and the
    rewritten kernel.
    """
    parts = tuple(_parts(plan))
    versions = tuple(Version(guard=guard, mapping=mapping) for guard, _, mapping in parts)
    _, general, _ = parts[-1]
    return Mapped(
        kernel=general, versions=Versions(kernel=kernel.name, target=target.kind, versions=versions)
    )


def _parts(plan: Plan) -> Iterator[tuple[Guard | None, Kernel, Mapping]]:
    match plan:
        case PlannedAttention() | PlannedProduct() | Planned():
            yield None, plan.kernel, close_mapping(plan, plan.configs[0])
        case PlannedVersions(versions=versions):
            for version in versions:
                guard = version.guard if version.guard is not None and version.guard.conditions else None
                yield guard, version.kernel, close_mapping(version.planned, version.config)
                if guard is None:
                    # versions behind it are never taken
                    return


def close_mapping(planned: Planned | PlannedProduct | PlannedAttention, config: Config) -> Mapping:
    """Return how the kernel that is `planned` runs when it is launched with `config`."""
    return planned.mapping.close(_choose_numbers(planned.mapping, config))


def _choose_numbers(mapping: Mapping, config: Config) -> dict[str, int]:
    """Return the values that `config` chooses for the open numbers of `mapping`."""
    known = list_config_numbers(config)
    return {number.name: known[number.name] for number in mapping.open_numbers}


def open_versions(plan: Plan) -> tuple[Version, ...]:
    """Return how `kernel` may run, by `plan`, for each kind of sizes: with open numbers where a search
    may choose.
    """
    match plan:
        case PlannedAttention(mapping=mapping) | PlannedProduct(mapping=mapping) | Planned(mapping=mapping):
            return (Version(guard=None, mapping=mapping),)
        case PlannedVersions(versions=versions):
            first = Version(guard=versions[0].guard, mapping=versions[0].planned.mapping)
            # few calls take the others
            others = (
                Version(guard=one.guard, mapping=close_mapping(one.planned, one.config))
                for one in versions[1:]
            )
            return (first, *others)
