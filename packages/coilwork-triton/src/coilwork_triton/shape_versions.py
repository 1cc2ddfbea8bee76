"""Kernels of open sizes in several versions: for likely sizes, for all others, and between the two.

    if VERSION == 3:
        softmax_likely(in0, out0, tl.cast(n0, tl.int32), tl.cast(n1 // 16, tl.int32), XBLOCK, R0_BLOCK,
        STAGES)
    elif VERSION == 2:
        softmax_ragged(in0, out0, tl.cast(n0, tl.int32), tl.cast(n1, tl.int32), XBLOCK, R0_BLOCK, STAGES)
    elif VERSION == 1:
        softmax_short(...)
    else:
        softmax_any(in0, out0, n0, n1, XBLOCK, R0_BLOCK, STAGES)

`VERSION` is a compile-time parameter: each version is machine code of its own. Whoever launches takes the
first one whose guard holds for the sizes of the call. The likely version has accesses of 16 bytes, rows
that are read once, and positions of 32 bits, as a kernel of known sizes. Sizes that are no multiples of 16
take the next two, longer rows the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    bound_magnitude,
    ceildiv,
    evaluate,
    find_bounds,
    find_largest_operands,
    find_stride,
    mod,
    multiply_all,
    provably_divisible,
    provably_le,
    symbol,
)
from coilwork_ir.kernel_source import VERSION, Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import replace_sizes
from coilwork_ir.mapping import Condition, Guard, Index, Keep, Values
from coilwork_ir.scalar import IndexValue, Load, Op, Scalar, Scan, Sort, iterate_postorder
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.iteration.shape import MOST_POINTS, Shape
from coilwork_triton.kernel_passes.table import Draft
from coilwork_triton.launch.parameters import BLOCKS, UNKNOWN_EXTENT, round_up_to_power_of_two
from coilwork_triton.proposals.decisions import can_keep_rows
from coilwork_triton.proposals.mapping_proposal import (
    OPEN_SIZE_REFINEMENTS,
    Planned,
    change_candidates,
    flatten_grid,
    insert_directive,
    propose,
)
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.text.index_printer import may_leave_32_bits

# Versions


_MOST_WARPS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Sizes that a version may be for: those that are `multiples` of what they likely are, and `rows` that
    are no longer.
    """

    name: str
    doc: str
    multiples: bool
    rows: bool


_LIKELY: Final = SizeClass(name="likely", doc="Sizes as they likely are.", multiples=True, rows=True)
_RAGGED: Final = SizeClass(
    name="ragged", doc="Rows as long as they likely are, or shorter.", multiples=False, rows=True
)
_LONG: Final = SizeClass(
    name="long", doc="Multiples of what sizes likely are, however long.", multiples=True, rows=False
)
_SHORT: Final = SizeClass(
    name="short", doc="Any sizes with which positions fit 32 bits.", multiples=False, rows=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVersion:
    """A kernel as it is for some sizes: as it is `planned`, over sizes that are those of the kernel divided
    by `units`.

    It is right for the sizes that `guard` allows; None: for all.
    """

    name: str
    doc: str
    planned: Planned
    units: tuple[int, ...]
    guard: Guard | None

    @property
    def kernel(self) -> Kernel:
        """The kernel that it computes, over sizes of its own."""
        return self.planned.setting.kernel

    @property
    def shape(self) -> Shape:
        """Its tiles and masks."""
        return self.planned.shape

    @property
    def demands(self) -> frozenset[Condition]:
        """The conditions on the general kernel's sizes under which it is right."""
        return frozenset(() if self.guard is None else self.guard.conditions)

    @property
    def config(self) -> Config:
        """Its best guess; where accesses are of single elements, or addresses of 64 bits, that with least for
        each thread to do.
        """
        candidates = self.planned.configs
        wide = self.shape.vectors is not None or any(unit > 1 for unit in self.units)
        return candidates[0] if wide and self.shorter else min(candidates, key=_points_per_warp)

    @property
    def shorter(self) -> bool:
        """Positions are of 32 bits."""
        return self.shape.index_dtype is DType.I32


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVersions:
    """The versions of `kernel`, most particular first; the last is for all sizes. Names of blocks are the
    same.
    """

    kernel: Kernel
    versions: tuple[PlannedVersion, ...]

    @property
    def shape(self) -> Shape:
        """Return that of the most particular one."""
        return self.versions[0].shape

    @property
    def general_shape(self) -> Shape:
        """Return that of the one for all sizes."""
        return self.versions[-1].shape

    @property
    def configs(self) -> tuple[Config, ...]:
        """Candidates of the version for likely sizes, then one of each other: few calls take those."""
        most = len(self.versions) - 1
        found = [_fill_parameters(one, self.blocks, most) for one in self.versions[0].planned.configs]
        for number, version in enumerate(self.versions[1:], 1):
            found.append(_fill_parameters(version.config, self.blocks, most - number))
        return tuple(found)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the compile-time parameters that the versions have."""
        names = [name for version in self.versions for name in version.shape.parameters]
        return tuple(dict.fromkeys(names))

    @property
    def grid(self) -> tuple[Expr, ...]:
        """Programs per grid axis, whichever version it is."""
        tiles = self.general_shape.parallel
        counts = tuple(ceildiv(t.numel, symbol(t.block, lo=1)) for t in tiles) or (as_expr(1),)
        return (multiply_all(counts),) if self.general_shape.flat_grid else counts


def _points_per_warp(config: Config) -> float:
    """Points of a block for each warp."""
    return prod(size for name, size in config.meta if name in BLOCKS.values()) / config.num_warps


def _leave_room(planned: Planned) -> Planned:
    """`planned`; where elements of a row in registers are accessed one by one, with no more of them for a
    thread than it has room to ask for.
    """
    if planned.shape.walk != "persistent" or not planned.shape.scalar_access:
        return planned
    target = planned.setting.target
    configs = tuple(dict.fromkeys(_limit_elements(c, target) for c in planned.configs))
    return change_candidates(planned, configs, planned.space)


def _limit_elements(config: Config, target: Target) -> Config:
    grids = target.machine.grids
    warps = int(_points_per_warp(config) * config.num_warps) // (grids.elements_one_by_one * target.warp_size)
    most = min(_MOST_WARPS, target.max_threads_per_block // target.warp_size)
    return replace(config, num_warps=max(config.num_warps, min(warps, most)))


def _fill_parameters(config: Config, blocks: Iterable[str], behind: int) -> Config:
    known = dict(config.meta)
    return replace(config, meta=(*((name, known.get(name, 1)) for name in blocks), (VERSION, behind)))


def _list_largest(numbers: Iterable[Expr]) -> list[Expr]:
    """Return the `numbers` that are not provably exceeded by another."""
    found = list(dict.fromkeys(numbers))
    return [n for n in found if not any(n is not other and provably_le(n, other) for other in found)]


def plan_versions(setting: Setting) -> PlannedVersions | None:
    """Return the kernel of `setting` in several versions; None if one will do."""
    kernel, options = setting.kernel, setting.options
    if setting.draft.topk is not None or not kernel.sizes:
        return None
    if options.batch_invariant or options.index_dtype == "i64":
        return None
    if specialize(setting.draft, setting.analysis.roots) is None:
        return None
    # calls that are unlike the first may be of many more rows
    planned = _plan_for_all(replace(setting, least=UNKNOWN_EXTENT))
    general = planned.shape
    wide = general.index_dtype is DType.I64
    versions: list[PlannedVersion] = []
    classes: tuple[SizeClass, ...] = (_LIKELY, _LONG if _is_along_columns(setting.draft) else _RAGGED, _SHORT)
    if general.vectors is not None and general.vectors.tile.letter == "x":
        # accesses are wide whether or not sizes are multiples of anything
        classes = (_SHORT,)
    for sizes in classes:
        version = _plan_version(setting, sizes, wide=wide)
        if version is None or version.shape.sharing is not None or not has_grid_of(version.shape, general):
            continue
        # the version for all sizes does where nothing is demanded
        if not versions or version.demands not in (versions[-1].demands, frozenset()):
            versions.append(version)
    if not versions or versions[0].name != classes[0].name or general.sharing is not None:
        return None
    if not versions[0].demands:
        return None
    ones = (1,) * len(kernel.sizes)
    versions.append(
        PlannedVersion(
            name="any",
            doc="Any sizes.",
            planned=_leave_room(planned),
            units=ones,
            guard=None,
        )
    )
    flat = any(version.shape.flat_grid for version in versions)
    return PlannedVersions(
        kernel=kernel, versions=tuple(_share_grid(version, flat=flat) for version in versions)
    )


def _share_grid(version: PlannedVersion, *, flat: bool) -> PlannedVersion:
    """`version` with the grid that all have."""
    mapping = flatten_grid(version.planned.mapping, flat=flat)
    return replace(version, planned=replace(version.planned, mapping=mapping))


def _plan_for_all(setting: Setting) -> Planned:
    return OPEN_SIZE_REFINEMENTS.run(propose(setting), setting.options)


def _bound_row_length(kernel: Kernel) -> int | None:
    """Points of the longest row that `kernel` may have; None if there is no bound."""
    return find_bounds(multiply_all(r.extent for r in kernel.ranges if r.kind == "reduction")).hi


def _keeps_likely_rows(setting: Setting) -> bool:
    """Tell if rows do not stay in registers in general, but do if sizes are as they likely are."""
    kernel, known = setting.kernel, setting.draft.likely_sizes
    length = multiply_all(r.extent for r in kernel.ranges if r.kind == "reduction")
    if can_keep_rows(setting, _bound_row_length(kernel)) or not known.keys() >= length.free_symbols:
        return False
    return can_keep_rows(setting, evaluate(length, {size.name: number for size, number in known.items()}))


def _plan_version(setting: Setting, sizes: SizeClass, *, wide: bool) -> PlannedVersion | None:
    """Return the kernel of `setting` as it is for sizes of `kind`; its positions fit 32 bits if anything says
    so. `wide`: in general they do not.
    """
    kernel, options, roots = setting.kernel, setting.options, setting.analysis.roots
    is_shorter = sizes.rows and _keeps_likely_rows(setting)
    found = specialize(setting.draft, roots, multiples=sizes.multiples, rows=is_shorter)
    if found is None:
        return None
    special_kernel = found.draft.kernel
    divided = find_largest_operands(_positions(kernel, roots))
    narrow = divided is not None and not any(
        map(may_leave_32_bits, _positions(special_kernel, list_roots(special_kernel)))
    )
    special = propose(
        replace(
            setting,
            draft=found.draft,
            options=replace(options, index_dtype="i32") if narrow else options,
            least=1 if sizes.rows else UNKNOWN_EXTENT,
            keeps_rows=True if is_shorter else can_keep_rows(setting, _bound_row_length(kernel)),
        )
    )
    kept = special.mapping.find(Keep)
    if sizes is _RAGGED and kept is not None:
        if dict(special.configs[0].meta)[BLOCKS["r"]] > setting.target.machine.grids.longest_odd_row:
            return None
    if kept is None:
        # which lanes of a row in registers are idle is not known when the kernel is built, and to ask for
        # each costs more than vectors gain
        special = OPEN_SIZE_REFINEMENTS.run(special, options)
    numbers: list[Expr] = []
    if wide and special.shape.index_dtype is DType.I32:
        values = _bound_position_values(kernel)
        if values is not None:
            # the guard says that they fit
            short = insert_directive(special.mapping, Values(promised=True), (Index,))
            special = replace(special, mapping=short)
        numbers = [*_numbers_of(setting.draft, divided or ()), *(values or ())]
    conditions = [
        Condition(mod(size, as_expr(unit)), "==", as_expr(0)) for size, unit in found.units if unit > 1
    ]
    conditions += [Condition(size, "<=", as_expr(most)) for size, most in found.most]
    most_points = as_expr(MOST_POINTS)
    conditions += [
        Condition(n, "<=", most_points) for n in _list_largest(numbers) if not provably_le(n, MOST_POINTS)
    ]
    return PlannedVersion(
        name=sizes.name,
        doc=sizes.doc,
        planned=_leave_room(special),
        units=tuple(unit for _, unit in found.units),
        guard=Guard(tuple(conditions)),
    )


def _numbers_of(draft: Draft, divided: Iterable[Expr]) -> list[Expr]:
    """Return the numbers that positions of the kernel of `draft` reach, and the `divided` ones they come
    from.
    """
    tiles = [multiply_all(r.extent for r in ranges) for ranges in draft.group_ranges().values()]
    return [*(arg.span for arg in draft.kernel.args), *tiles, *draft.kernel.sizes, *divided]


def _bound_position_values(kernel: Kernel) -> list[Expr] | None:
    """Return bounds of the positions that are values in `kernel`, and of what they are computed from.

    None if data decide.
    """
    values = [one.expr for one in iterate_postorder(list_roots(kernel)) if isinstance(one, IndexValue)]
    most, operands = list(map(bound_magnitude, values)), find_largest_operands(values)
    known = [one for one in most if one is not None]
    return None if operands is None or len(known) < len(most) else [*known, *operands]


def _is_along_columns(draft: Draft) -> bool:
    """Tell if neighbours in memory are of different rows: multiples alone then decide how wide
    accesses are.
    """
    along = draft.contiguous_range
    return along is None or along.kind != "reduction"


def _positions(kernel: Kernel, roots: tuple[Scalar, ...]) -> list[Expr]:
    """Return the offsets of all loads and stores of `kernel`."""
    loads = [node.index[0] for node in iterate_postorder(roots) if isinstance(node, Load)]
    return [*loads, *(store.index for store in kernel.stores)]


def has_grid_of(shape: Shape, other: Shape) -> bool:
    """Tell if the grid of `shape` is that of `other` but for the sizes of blocks."""

    def describe_tiles(described: Shape) -> list[object]:
        return [
            (t.letter, t.index.name, t.column, tuple(part.name for part, _ in t.parts))
            for t in described.parallel
        ]

    return describe_tiles(shape) == describe_tiles(other) and all(t.column is None for t in shape.tiles)


# A kernel for likely sizes


# Elements in rows of which all begin at multiples of 16 bytes, whatever their type.
WHOLE: Final = 16
_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialDraft:
    """A kernel for likely sizes.

    Attributes:
        draft: the kernel, over size symbols of its own.
        units: what its sizes are, one for each: this size of the general kernel divided by that number.
        most: sizes of the general kernel, and what they are at most.
    """

    draft: Draft
    units: tuple[tuple[Expr, int], ...]
    most: tuple[tuple[Expr, int], ...]


def specialize(
    draft: Draft, values: tuple[Scalar, ...], *, multiples: bool = True, rows: bool = False
) -> SpecialDraft | None:
    """Return the kernel of `draft`, whose roots are `values`, for what its sizes likely are; None if it has
    one version alone.

    `multiples`: sizes are the multiples that they likely are. `rows`: rows are no longer than they likely
    are.
    """
    kernel, likely = draft.kernel, draft.likely
    if not any(likely) or any(isinstance(node, Scan | Sort) for node in iterate_postorder(values)):
        return None
    known = dict(zip(kernel.sizes, likely, strict=True))
    aligning = _find_aligning_sizes(draft, values) if multiples else frozenset()
    bounded = _row_bounds(kernel, likely) if rows else {}
    renewed: dict[Expr, Expr] = {}
    sizes: list[Expr] = []
    numbers: list[int] = []
    units: list[tuple[Expr, int]] = []
    for size in kernel.sizes:
        unit = gcd(known[size], WHOLE) if known[size] and size in aligning else 1
        most = bounded.get(size)
        high = min((end for end in (size.hi, most) if end is not None), default=None)
        if high is not None and size.lo is not None and high < size.lo:
            return None
        part = symbol(
            size.name if unit == 1 else f"{size.name}_by_{unit}",
            lo=None if size.lo is None else -(-size.lo // unit),
            hi=None if high is None else high // unit,
        )
        renewed[size] = unit * part
        sizes.append(part)
        numbers.append(known[size] // unit)
        units.append((size, unit))
    special = replace_sizes(kernel, renewed, tuple(sizes))
    if any(as_int(extent) == 0 for extent in (r.symbol.extent for r in special.ranges) if extent is not None):
        # as n % 16 of multiples of 16: no element is left to write a kernel for
        return None
    return SpecialDraft(
        draft=replace(draft, kernel=special, likely=tuple(numbers)),
        units=tuple(units),
        most=tuple(bounded.items()),
    )


def _row_bounds(kernel: Kernel, likely: tuple[int, ...]) -> dict[Expr, int]:
    """Sizes of rows of any length, and how long rows may be that stand in as many lanes as likely ones."""
    length = multiply_all(r.extent for r in kernel.ranges if r.kind == "reduction")
    if find_bounds(length).hi is not None:
        return {}
    return {
        size: round_up_to_power_of_two(number)
        for size, number in zip(kernel.sizes, likely, strict=True)
        if size in length.free_symbols
    }


def _find_aligning_sizes(draft: Draft, values: tuple[Scalar, ...]) -> frozenset[Expr]:
    """Sizes on which it depends whether rows begin at whole vectors: those in strides, and in the lengths of
    the rows themselves.

    Rows lie along the range of most accesses at unit stride.
    """
    kernel = draft.kernel
    own = frozenset(kernel.sizes)
    found: set[Expr] = set()
    indices = [store.index for store in kernel.stores]
    indices += [node.index[0] for node in iterate_postorder(values) if isinstance(node, Load)]
    ranges = [r.symbol for r in kernel.ranges]
    for index in indices:
        for place in index.free_symbols & frozenset(ranges):
            step = find_stride(index, place)
            if step is None or not provably_divisible(step, WHOLE):
                found |= own & (index.free_symbols if step is None else step.free_symbols)
    rows = draft.contiguous_range
    if rows is not None:
        tile = next(group for group in draft.group_ranges().values() if rows in group)
        if not provably_divisible(tile[-1].extent, WHOLE):
            found |= own & tile[-1].extent.free_symbols
        found |= own & _find_compared_sizes(values, frozenset(r.symbol for r in tile))
    return frozenset(found)


def _find_compared_sizes(values: tuple[Scalar, ...], rows: frozenset[Expr]) -> frozenset[Expr]:
    """Sizes that positions along `rows` are compared with: whole vectors are inside, or outside, if these are
    multiples.
    """
    found: set[Expr] = set()
    for node in iterate_postorder(values):
        if isinstance(node, Op) and node.op in _COMPARISONS:
            sides = [operand.expr for operand in node.operands if isinstance(operand, IndexValue)]
            if len(sides) == 2 and any(not rows.isdisjoint(side.free_symbols) for side in sides):
                found.update(*(side.free_symbols for side in sides if rows.isdisjoint(side.free_symbols)))
    return frozenset(found)
