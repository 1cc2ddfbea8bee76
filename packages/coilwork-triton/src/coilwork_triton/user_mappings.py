"""Apply mappings that users give, in place of the proposed ones.

A mapping is given to the kernel that passes leave, as a trace shows it. The rules of the IR and the
generator's refusals judge what it says of blocks, rows, lanes and threads; what a kernel promises, or is
promised, stays as proposed. Versions by size keep their guards.

An open mapping is a search space: its first values are launched first, and a tuner tries the others. Each
choice is judged, and the limits of the generator's own searches hold beside those that are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    FlatGrid,
    Index,
    Invariant,
    Mapping,
    Values,
    Version,
    assume,
    check_given,
    find_given,
    parse_given,
    refuse_given,
)
from coilwork_ir.target import Target
from coilwork_triton.attention_plan import PlannedAttention, plan_attention_mapping
from coilwork_triton.combo_kernel import check_member
from coilwork_triton.contraction_plan import PlannedProduct, plan_product_mapping
from coilwork_triton.options import TritonOptions
from coilwork_triton.planning import Plan
from coilwork_triton.proposals.mapping_proposal import Planned, plan_mapping
from coilwork_triton.shape_versions import PlannedVersion, PlannedVersions, has_grid_of


def apply_user_mapping(kernel: Kernel, plan: Plan, target: Target, options: TritonOptions) -> Plan:
    """`plan` of `kernel`, with the mapping that `options` give it, if they do.

    Raises:
        EmitError: it is not legal, or there is no text for it, by the name of the directive.
    """
    text = find_given(options.mappings, kernel)
    given = () if text is None else parse_given(text, kernel, target.kind)
    if not given:
        return plan
    if len(given) > 1:
        raise _refuse(kernel, "mapping", f"it is {len(given)} mappings, and the kernel is one")
    try:
        match plan:
            case PlannedVersions():
                return _apply_versions(kernel, plan, given[0].versions)
            case PlannedAttention():
                return _apply_attention(kernel, plan, _single_mapping(kernel, given[0].versions), options)
            case PlannedProduct():
                return _apply_product(kernel, plan, _single_mapping(kernel, given[0].versions), options)
            case Planned():
                return _apply_mapping(kernel, plan, _single_mapping(kernel, given[0].versions))
    except EmitError as error:
        if error.remedy:
            raise
        raise refuse_given(kernel, error) from error


def apply_member_mapping(kernel: Kernel, planned: Planned, target: Target, options: TritonOptions) -> Planned:
    """Do as `apply_user_mapping`, for the body of `kernel`, which is combined."""
    found = apply_user_mapping(kernel, planned, target, options)
    assert isinstance(found, Planned)
    if found is not planned and kernel.combined is not None:
        try:
            check_member(kernel, found.mapping)
        except EmitError as error:
            raise refuse_given(kernel, error) from error
    return found


def _single_mapping(kernel: Kernel, versions: Sequence[Version]) -> Mapping:
    if len(versions) != 1 or versions[0].guard is not None:
        raise _refuse(kernel, "mapping-versions", "the kernel has one version, `otherwise`, for all sizes")
    return versions[0].mapping


def _apply_mapping(
    kernel: Kernel, planned: Planned, mapping: Mapping, version: Kernel | None = None
) -> Planned:
    """`planned` as `mapping` says, which is given to `kernel`, or to a `version` of it that knows more of its
    sizes.
    """
    _check_promises(kernel, planned.mapping, mapping)
    check = partial(check_given, kernel, version or planned.kernel)
    return plan_mapping(planned.setting, mapping, check=check, program=planned.program)


def _check_promises(kernel: Kernel, proposed: Mapping, given: Mapping) -> None:
    """Refuse to drop what a kernel promises, and to promise what nobody has."""
    invariant = proposed.find(Invariant)
    if invariant is not None and given.find(Invariant) is None:
        raise _refuse(kernel, "mapping-invariant", f"`{invariant.text}` is promised")
    index, values = given.find(Index), given.find(Values)
    was, were = proposed.find(Index), proposed.find(Values)
    if index is not None and index.promised and not (was is not None and was.promised):
        raise _refuse(kernel, "mapping-index", "nobody promises that positions fit 32 bits")
    if values is not None and values.promised and not (were is not None and were.promised):
        raise _refuse(kernel, "mapping-values", "nobody promises that values fit 32 bits")


def _apply_versions(kernel: Kernel, planned: PlannedVersions, versions: Sequence[Version]) -> PlannedVersions:
    """`planned` with the mappings of `versions`, whose guards are the same. One for all sizes is the most
    particular version's: a search finds such, and leaves the others as they are.
    """
    guards = [version.guard for version in planned.versions]
    if [one.guard for one in versions] == [None]:
        first = _apply_version(kernel, planned, planned.versions[0], versions[0].mapping)
        return _check_grids(kernel, replace(planned, versions=(first, *planned.versions[1:])))
    if [one.guard for one in versions] != guards:
        raise _refuse(
            kernel,
            "mapping-versions",
            f"the kernel has {len(guards)} versions, and their guards are the generator's to choose",
        )
    for one in versions[1:]:
        if not one.mapping.is_closed:
            raise _refuse(kernel, "mapping-open", "a search tries the first version alone: close the others")
    given = (one.mapping for one in versions)
    found = tuple(
        _apply_version(kernel, planned, version, one)
        for version, one in zip(planned.versions, given, strict=True)
    )
    return _check_grids(kernel, replace(planned, versions=found))


def _check_grids(kernel: Kernel, planned: PlannedVersions) -> PlannedVersions:
    """`planned`, if they have one grid but for the sizes of blocks."""
    general = planned.general_shape
    for version in planned.versions:
        flat = version.planned.mapping.find(FlatGrid) is not None
        if flat != general.flat_grid:
            raise _refuse(kernel, "mapping-flat", "it is said of all versions or of none")
        if not has_grid_of(version.shape, general):
            raise _refuse(kernel, "mapping-tile", "versions tile the same ranges, in the same order")
    return planned


def _apply_version(
    kernel: Kernel, planned: PlannedVersions, version: PlannedVersion, mapping: Mapping
) -> PlannedVersion:
    """`version` as `mapping` says; its guard is over the sizes of all `planned`."""
    special = planned.kernel if version.guard is None else assume(planned.kernel, version.guard)
    return replace(version, planned=_apply_mapping(kernel, version.planned, mapping, special))


def _apply_product(
    kernel: Kernel, planned: PlannedProduct, mapping: Mapping, options: TritonOptions
) -> PlannedProduct:
    """Return the product that is `planned` as `mapping` says."""
    check = partial(check_given, kernel, kernel)
    found = plan_product_mapping(
        kernel, mapping, planned.target, check=check, max_configs=options.max_configs
    )
    _check_promises(kernel, planned.mapping, mapping)
    if options.batch_invariant and found.configs != planned.configs:
        raise _refuse(kernel, "mapping-invariant", "its blocks are promised")
    return found


def _apply_attention(
    kernel: Kernel, planned: PlannedAttention, mapping: Mapping, options: TritonOptions
) -> PlannedAttention:
    """Return the attention that is `planned` as `mapping` says."""
    check = partial(check_given, kernel, kernel)
    found = plan_attention_mapping(
        kernel, mapping, planned.target, check=check, max_configs=options.max_configs
    )
    _check_promises(kernel, planned.mapping, mapping)
    if options.batch_invariant and found.configs != planned.configs:
        raise _refuse(kernel, "mapping-invariant", "its blocks are promised")
    return found


def _refuse(kernel: Kernel, code: str, reason: str) -> EmitError:
    return refuse_given(kernel, EmitError(code, reason))
