"""Plans as a user's mappings have them, in place of what is proposed.

A mapping is given to the kernel that passes leave, as a trace shows it. What it says of blocks, rows, lanes
and threads is for the rules of the IR and the generator's refusals to judge; what a kernel promises, or is
promised, stays as proposed. Versions by size keep their guards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import evaluate
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    FlatGrid,
    Index,
    Invariant,
    Loop,
    Mapping,
    Order,
    Tile,
    Values,
    Version,
    Warps,
    assume,
    check_given,
    find_all,
    find_given,
    parse_given,
    refuse_given,
)
from coilwork_ir.scalar import find_parts
from coilwork_ir.target import Target
from coilwork_triton.contraction.configs import GROUP
from coilwork_triton.contraction.shape import ContractionShape, shape_of
from coilwork_triton.iteration.parameters import chosen, config_of
from coilwork_triton.launch.open_numbers import numbers_of
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.launch.parameters import BLOCKS, STAGES
from coilwork_triton.launch.search_space import WARPS
from coilwork_triton.mapping import map_contraction
from coilwork_triton.planning import Plan
from coilwork_triton.proposals.refinements import Planned
from coilwork_triton.shape_versions import PlannedVersion, PlannedVersions, has_grid_of

# Which directive has a parameter of a matrix product.
_DIRECTIVES: Final = (
    (BLOCKS["x"], "tile"),
    (BLOCKS["y"], "tile"),
    (BLOCKS["r"], "loop"),
    (STAGES, "loop"),
    (GROUP, "order"),
    (WARPS, "warps"),
)


def take_given(kernel: Kernel, plan: Plan, target: Target, options: TritonOptions) -> Plan:
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
                return _take_versions(kernel, plan, given[0].versions)
            case ContractionShape():
                return take_product(kernel, plan, _the_one(kernel, given[0].versions), target, options)
            case Planned():
                return _take(kernel, plan, _the_one(kernel, given[0].versions))
    except EmitError as error:
        if error.remedy:
            raise
        raise refuse_given(kernel, error) from error


def take_for_member(kernel: Kernel, planned: Planned, target: Target, options: TritonOptions) -> Planned:
    """As `take_given`, of the body of `kernel`, which is combined."""
    found = take_given(kernel, planned, target, options)
    assert isinstance(found, Planned)
    return found


def _the_one(kernel: Kernel, versions: Sequence[Version]) -> Mapping:
    if len(versions) != 1 or versions[0].guard is not None:
        raise _refuse(kernel, "mapping-versions", "the kernel has one version, `otherwise`, for all sizes")
    return versions[0].mapping


def _take(kernel: Kernel, planned: Planned, mapping: Mapping, version: Kernel | None = None) -> Planned:
    """`planned` as `mapping` says, which is given to `kernel`, or to a `version` of it that knows more of its sizes."""
    own = planned.setting.kernel
    check_given(kernel, version or own, mapping)
    _check_promises(kernel, planned.mapping, mapping)
    found = replace(planned, mapping=mapping, configs=(config_of(own, mapping),), space=SearchSpace())
    # what there is no text for is refused here
    assert found.shape is not None
    return found


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


def _take_versions(kernel: Kernel, planned: PlannedVersions, versions: Sequence[Version]) -> PlannedVersions:
    """`planned` with the mappings of `versions`, whose guards are the same. One for all sizes is the most
    particular version's: a search finds such, and leaves the others as they are.
    """
    guards = [version.guard for version in planned.versions]
    if [one.guard for one in versions] == [None]:
        first = _take_version(kernel, planned, planned.versions[0], versions[0].mapping)
        return _check_grids(kernel, replace(planned, versions=(first, *planned.versions[1:])))
    if [one.guard for one in versions] != guards:
        raise _refuse(
            kernel,
            "mapping-versions",
            f"the kernel has {len(guards)} versions, and their guards are the generator's to choose",
        )
    given = (one.mapping for one in versions)
    found = tuple(
        _take_version(kernel, planned, version, one)
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


def _take_version(
    kernel: Kernel, planned: PlannedVersions, version: PlannedVersion, mapping: Mapping
) -> PlannedVersion:
    """`version` as `mapping` says; its guard is over the sizes of all `planned`."""
    special = planned.kernel if version.guard is None else assume(planned.kernel, version.guard)
    return replace(version, planned=_take(kernel, version.planned, mapping, special))


def take_product(
    kernel: Kernel, plan: ContractionShape, mapping: Mapping, target: Target, options: TritonOptions
) -> ContractionShape:
    """The matrix product of `plan`, in blocks as `mapping` says."""
    check_given(kernel, kernel, mapping)
    first = plan.configs[0]
    config = _product_config(kernel, plan, mapping)
    _check_product(kernel, plan, config)
    node, parallel = plan.node, [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    parts = find_parts(node.left, node.right, parallel, node.axes)
    assert parts is not None
    found = shape_of(kernel, node, parts, target, options, given=config)
    wanted = map_contraction(kernel, found, replace(config, fp_fusion=first.fp_fusion))
    for one in mapping.directives:
        if one not in wanted.directives:
            raise _refuse(kernel, f"mapping-{one.keyword()}", f"no product is written with `{one.text}`")
    for other in wanted.directives:
        if other not in mapping.directives:
            raise _refuse(kernel, f"mapping-{other.keyword()}", f"a product has `{other.text}`, or the like")
    return found


def _product_config(kernel: Kernel, plan: ContractionShape, mapping: Mapping) -> Config:
    known = numbers_of(plan.configs[0])
    for letter, tile in (("x", plan.columns), ("y", plan.rows)):
        names = {tile.index.name, *(part.name for part, _ in tile.parts)}
        blocks = [one.by for one in find_all(mapping.directives, Tile) if set(one.ranges) <= names]
        if blocks:
            known[BLOCKS[letter]] = chosen(blocks[0])
    loop, order, warps = mapping.find(Loop), mapping.find(Order), mapping.find(Warps)
    if loop is not None:
        known |= {BLOCKS["r"]: chosen(loop.by), STAGES: chosen(loop.stages)}
    if order is not None:
        known[GROUP] = chosen(order.by)
    if warps is not None:
        known[WARPS] = chosen(warps.count)
    first = plan.configs[0]
    return replace(
        first,
        meta=tuple((name, known[name]) for name, _ in first.meta),
        num_warps=known[WARPS],
    )


def _check_product(kernel: Kernel, plan: ContractionShape, config: Config) -> None:
    """Refuse blocks that the product's text or the device is not for."""
    if config in plan.configs:
        return
    numbers, values = numbers_of(config), dict(plan.space.values)
    for name, keyword in _DIRECTIVES:
        if name in values and numbers[name] not in values[name]:
            told = ", ".join(map(str, values[name]))
            raise _refuse(kernel, f"mapping-{keyword}", f"{numbers[name]} is none of {told}")
    if not values:
        raise _refuse(kernel, "mapping-invariant", "its blocks are promised")
    for left, right in plan.space.limits:
        if evaluate(left, numbers) > evaluate(right, numbers):
            raise _refuse(kernel, "mapping-tile", f"{left!r} is to be at most {right!r}")


def _refuse(kernel: Kernel, code: str, reason: str) -> EmitError:
    return refuse_given(kernel, EmitError(code, reason))
