"""A proposal as an open mapping, and the refinements that follow from its tiles and masks.

    tile x0 by ?XBLOCK in 1 2 4
    keep r0 by 8192
    lanes r0 by 4
    warps ?num_warps in 8 4 16
    index i32
    contract

`propose` has `PROPOSALS` decide and writes the mapping; `plan_mapping` takes one that a user gives.
`REFINEMENTS` are the decisions that need the shape. A `Planned` kernel has its mapping and its candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from coilwork_ir.device_traits import FAST_F64
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, ceildiv, get_extent, provably_le
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.mapping import (
    Choose,
    Coarsen,
    Contract,
    Directive,
    Evict,
    FlatGrid,
    Index,
    Invariant,
    Keep,
    Lanes,
    Limit,
    Loop,
    Mapping,
    Number,
    Privatise,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Straddle,
    Tile,
    Vector,
    Warps,
    find_all,
)
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.target import Target
from coilwork_triton.iteration.mapping_parameters import (
    get_single_value,
    iterate_parameter_places,
    launch_parameters,
    make_mapping_config,
    plan_choices,
)
from coilwork_triton.iteration.refusals import GRID_AXIS_MAX, check_mapping
from coilwork_triton.iteration.row_straddling_blocks import choose_straddled_rows, limit_blocks, limit_space
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.shape_builder import build_shape, build_tiles
from coilwork_triton.iteration.vector_peeling import choose_peeled_vectors, should_loop
from coilwork_triton.launch.configs import LEAST_BLOCK
from coilwork_triton.launch.parameters import (
    BLOCKS,
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    STAGES,
    WARPS,
    Letter,
)
from coilwork_triton.launch.search_space import Side, build_search_space, open_numbers, search_limits
from coilwork_triton.launch.sorts import MOST_WARPS
from coilwork_triton.options import TritonOptions
from coilwork_triton.proposals.decisions import PROPOSALS, WHOLE_VECTOR
from coilwork_triton.proposals.proposal import Proposal, Setting

# Plans


# Points of a program whose rows leave lanes empty: of one point there are none to leave.
_PADDED: Final = 2


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A kernel and how it may run.

    Attributes:
        setting: the kernel, and where it runs.
        mapping: how it runs: open where candidates differ, and where a search may try others.
        configs: launch candidates, best guess first: choices of the open numbers.
        space: what else a search may try.
        program: the variable that counts its programs, where others share its grid.
    """

    setting: Setting
    mapping: Mapping
    configs: tuple[Config, ...]
    space: SearchSpace
    program: str = ""

    @property
    def kernel(self) -> Kernel:
        """The kernel that is computed."""
        return self.setting.kernel

    @cached_property
    def shape(self) -> Shape:
        """Tiles, masks and the like, as the mapping says."""
        return build_shape(self.kernel, self.mapping, self.setting.target, program=self.program)

    @cached_property
    def least_row(self) -> int:
        """Lanes of the least block along rows; 0 if there are no rows."""
        return min(list_values(launch_parameters(self.setting.kernel, self.mapping).get(BLOCKS["r"], 0)))


def propose(setting: Setting) -> Planned:
    """Return how the kernel of `setting` is to run, as `coilwork_triton.proposals.decisions` has it.

    Raises:
        EmitError: a tensor has a type that Triton lacks, or tiles are inconsistent.
    """
    return plan_proposal(setting, PROPOSALS.run(Proposal(), setting))


def plan_proposal(setting: Setting, proposal: Proposal) -> Planned:
    """Return how the kernel of `setting` runs by `proposal`."""
    configs = proposal.configs
    first = open_numbers(configs, SearchSpace())
    candidates = outline(setting, proposal, first)
    space = SearchSpace()
    if not proposal.is_invariant:
        space = make_space_around(setting, candidates, configs, staged=proposal.loads_ahead)
    numbers = open_numbers(configs, space)
    found = candidates if numbers == first else outline(setting, proposal, numbers)
    limits = search_limits(numbers, configs, space)
    mapping = replace(found, directives=(*found.directives, *limits))
    return Planned(setting=setting, mapping=mapping, configs=configs, space=space)


def plan_mapping(
    setting: Setting, mapping: Mapping, *, check: Callable[[Mapping], None], program: str = ""
) -> Planned:
    """Return how the kernel of `setting` runs as `mapping` says, whoever chose that. `check` judges it, and
    each of its choices if it is open; `program` counts the kernel's programs where others share its grid.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    kernel, target = setting.kernel, setting.target

    def check_choice(choice: Mapping) -> None:
        check(choice)
        check_mapping(kernel, choice, target)

    check(mapping)
    found, configs = plan_choices(
        kernel,
        mapping,
        places=tuple(iterate_parameter_places(mapping)),
        launch=lambda one: make_mapping_config(kernel, one),
        limits=lambda one, configs: make_space_around(setting, one, configs, staged=False).limits,
        check=check_choice,
        max_configs=setting.options.max_configs,
    )
    check_mapping(kernel, found, target)
    planned = Planned(setting=setting, mapping=found, configs=configs, space=SearchSpace(), program=program)
    # what there is no text for is refused here
    assert planned.shape is not None
    return planned


def make_space_around(
    setting: Setting, mapping: Mapping, configs: tuple[Config, ...], *, staged: bool
) -> SearchSpace:
    """Return the search space around `configs`, which launch the kernel of `setting` as `mapping` says.

    With `staged` several iterations of its loop may be in flight.
    """
    work, kernel, looped = setting.analysis.work, setting.kernel, mapping.find(Loop) is not None
    flat = mapping.find(FlatGrid) is not None
    widths = [
        max(list_values(one.by))
        for one in mapping.directives
        if isinstance(one, Lanes) and not one.narrow and looped
    ]
    is_padded = any(tile.padded for tile in find_all(mapping.directives, Tile))
    sides = [
        Side(
            block=tile.block,
            numel=tile.numel,
            fixed=tile.axis is None or (tile.letter == "r" and not looped),
            whole=not tile.masked,
            programs=GRID_AXIS_MAX if tile.letter in "yz" and not flat else None,
            reduced=tile.letter == "r",
            least=_PADDED if tile.letter == "x" and is_padded else 1,
        )
        for tile in build_tiles(kernel, mapping, launch_parameters(kernel, mapping))
    ]
    return build_search_space(
        sides,
        configs,
        target=setting.target,
        chunk=max(widths, default=1),
        scans=work.scan_words > 0,
        staged=staged,
        most_warps=MOST_WARPS if work.sort_key_bytes else None,
        least_block=LEAST_BLOCK if mapping.find(Privatise) is not None else 1,
    )


# Mappings that are changed


def insert_directive(mapping: Mapping, directive: Directive, behind: tuple[type[Directive], ...]) -> Mapping:
    """`mapping` with `directive` behind the last one of the classes `behind`; first of all if
    there is none.
    """
    at = max((k + 1 for k, one in enumerate(mapping.directives) if isinstance(one, behind)), default=0)
    return replace(mapping, directives=(*mapping.directives[:at], directive, *mapping.directives[at:]))


def remove_directives(mapping: Mapping, unwanted: Callable[[Directive], bool]) -> Mapping:
    """`mapping` without the directives that are `unwanted`."""
    return replace(mapping, directives=tuple(one for one in mapping.directives if not unwanted(one)))


def flatten_grid(mapping: Mapping, *, flat: bool) -> Mapping:
    """`mapping` with all programs along one axis of the grid, or along one for each tile."""
    found = remove_directives(mapping, lambda one: isinstance(one, FlatGrid))
    tiled = any(isinstance(one, Tile) for one in found.directives)
    return insert_directive(found, FlatGrid(), (Tile,)) if flat and tiled else found


def change_candidates(planned: Planned, configs: tuple[Config, ...], space: SearchSpace) -> Planned:
    """`planned`, whose blocks are tiles alone, with other candidates, and another space around them."""
    numbers = open_numbers(configs, space)
    found: list[Directive] = []
    letters = iter("xyz")
    for one in planned.mapping.directives:
        if isinstance(one, Tile):
            found.append(replace(one, by=numbers[BLOCKS[next(letters)]]))
        elif isinstance(one, Warps):
            found.append(replace(one, count=numbers[WARPS]))
        elif not isinstance(one, Limit | Choose):
            found.append(one)
    mapping = Mapping(directives=(*found, *search_limits(numbers, configs, space)))
    return replace(planned, mapping=mapping, configs=configs, space=space)


# What follows from tiles and masks


def _loop_over_shifted_rows(planned: Planned, options: TritonOptions) -> Planned:
    setting = planned.setting
    if options.batch_invariant or not should_loop(
        setting.kernel, planned.shape, setting.analysis.roots, planned.least_row
    ):
        return planned
    return propose(replace(setting, keeps_rows=False))


def _use_whole_vectors(planned: Planned, options: TritonOptions) -> Planned:
    if options.batch_invariant:
        # which elements are added first depends on where a row begins
        return planned
    setting = planned.setting
    found = choose_peeled_vectors(setting.kernel, planned.shape, setting.analysis.roots, planned.least_row)
    if found is None:
        return planned
    vector = Vector(range=found.tile.inner.name, by=found.widest, shifted=found.shifted, tail="peel")
    # some accesses are to be wide, after all
    mapping = remove_directives(
        planned.mapping, lambda one: isinstance(one, Lanes) and one.by == 1 and not one.narrow
    )
    warps = next(k for k, one in enumerate(mapping.directives) if isinstance(one, Warps))
    directives = (*mapping.directives[:warps], vector, *mapping.directives[warps:])
    return replace(planned, mapping=replace(mapping, directives=directives))


def _cut_blocks_to_rows(planned: Planned, options: TritonOptions) -> Planned:
    setting = planned.setting
    found = choose_straddled_rows(setting.kernel, planned.shape, setting.analysis.roots)
    if found is None:
        return planned
    configs = limit_blocks(planned.configs, found.tile.block, found.length)
    space = limit_space(planned.space, found.tile.block, found.length)
    straddle = Straddle(range=found.tile.inner.name)
    mapping = insert_directive(planned.mapping, straddle, (Tile, FlatGrid, Coarsen))
    return change_candidates(replace(planned, mapping=mapping), configs, space)


REFINEMENTS: Final[PassTable[Planned, TritonOptions]] = PassTable(
    passes=(
        Pass(
            name="loop-over-shifted-rows",
            run=_loop_over_shifted_rows,
            why=(
                "long rows that begin anywhere, and fill their block but for a "
                "vector, are read in whole vectors in a loop"
            ),
        ),
        Pass(
            name="use-whole-vectors",
            run=_use_whole_vectors,
            why=(
                "rows that begin or end within 16 bytes are accessed 16 bytes "
                "at a time if lanes stand on whole vectors"
            ),
        ),
        Pass(
            name="cut-blocks-to-rows",
            run=_cut_blocks_to_rows,
            why=(
                "a block no longer than a row has points of two rows at most, "
                "so that none needs a division to know its own"
            ),
        ),
    ),
    order=(
        Before("loop-over-shifted-rows", "use-whole-vectors", "only a loop has room for shifted lanes"),
        Before(
            "use-whole-vectors", "cut-blocks-to-rows", "lines of which lanes are shifted stay as they are"
        ),
    ),
)
# PlannedVersions for open sizes share their grid, whatever the length of rows.
OPEN_SIZE_REFINEMENTS: Final[PassTable[Planned, TritonOptions]] = REFINEMENTS.select("use-whole-vectors")


# Directives


_INNERMOST_FIRST: Final[tuple[Letter, ...]] = ("x", "y", "z")


def outline(setting: Setting, proposal: Proposal, numbers: MappingOf[str, Number]) -> Mapping:
    """Return the kernel of `setting` as `proposal` runs it, with `numbers` for the parameters of its
    launch.
    """
    return Mapping(
        directives=(
            *_cuts(setting, proposal, numbers),
            *_rows(setting, proposal, numbers),
            *_threads(setting, proposal),
            Warps(count=numbers[WARPS]),
            *_memory(setting, proposal),
            *([Contract()] if proposal.configs[0].fp_fusion else []),
        )
    )


def _cuts(setting: Setting, proposal: Proposal, numbers: MappingOf[str, Number]) -> Iterator[Directive]:
    """Directives that say which points a program has."""
    groups = proposal.groups
    for letter in _INNERMOST_FIRST:
        if letter in groups:
            yield Tile(ranges=_names(groups[letter]), by=numbers[BLOCKS[letter]], padded=proposal.lanes)
    # programs that share rows count along one axis in any case
    if _is_crowded(proposal) if proposal.sharing is None else len(groups) > 2:
        yield FlatGrid()
    if setting.draft.coarsening > 1:
        yield Coarsen(range=setting.kernel.ranges[-1].symbol.name, by=setting.draft.coarsening)


def _is_crowded(proposal: Proposal) -> bool:
    """Tell if an axis of the grid that is not its first one may not have room for all programs."""
    for letter in _INNERMOST_FIRST[1:]:
        if letter in proposal.groups:
            least = min(dict(config.meta)[BLOCKS[letter]] for config in proposal.configs)
            if not provably_le(ceildiv(proposal.numels[letter], least), GRID_AXIS_MAX):
                return True
    return False


def _rows(setting: Setting, proposal: Proposal, numbers: MappingOf[str, Number]) -> Iterator[Directive]:
    """Directives that say how rows are walked, scanned and sorted."""
    groups, stages = proposal.groups, numbers.get(STAGES, 1)
    if "w" in groups:
        yield Sequential(ranges=_names(groups["w"]), by=numbers[BLOCKS["w"]], stages=stages)
    if "r" not in groups:
        return
    ranges, block, sharing = _names(groups["r"]), numbers[BLOCKS["r"]], proposal.sharing
    if sharing is not None:
        yield Share(ranges=ranges, by=sharing.length, workspace=sharing.workspace)
    elif proposal.walk == "persistent":
        yield Keep(ranges=ranges, by=block, first=proposal.axes[0] == "r" and len(groups) > 1)
    else:
        yield Loop(ranges=ranges, by=block, stages=stages)
    if proposal.is_invariant:
        yield Invariant(lanes=get_single_value(block), block=get_single_value(block))
    yield from _order(setting, ranges[-1], numbers)


def _order(setting: Setting, axis: str, numbers: MappingOf[str, Number]) -> Iterator[Directive]:
    """Yield how rows are scanned and sorted along `axis`."""
    if RUN in numbers:
        yield Runs(range=axis, by=numbers[RUN])
    if SORT_THREADS in numbers:
        fast = setting.target.has(FAST_F64)
        keys: Final = "float" if fast else "integer"
        yield Sort(range=axis, threads=numbers[SORT_THREADS], width=numbers[SORT_WIDTH], keys=keys)
    if setting.draft.topk is not None:
        yield Select(
            range=axis,
            first=as_int(get_extent(setting.draft.topk)) or 0,
            share=numbers[SORT_SHARE],
            groups=numbers[SORT_GROUPS],
            room=numbers[SORT_ROOM],
            spread=numbers[SORT_SPREAD],
        )


def _threads(setting: Setting, proposal: Proposal) -> Iterator[Directive]:
    """Directives that say how many neighbours a thread has together, and accesses at once."""
    groups = proposal.groups
    rows = _names(groups.get("r", ()))[-1:]
    chunk = min(proposal.width, _chunk(proposal.configs, setting.target))
    if proposal.width == 1:
        along = rows or next((_names(groups[one])[-1:] for one in _INNERMOST_FIRST if one in groups), ())
        if along:
            yield Lanes(ranges=along, by=1)
    if chunk > 1:
        yield Lanes(ranges=rows, by=chunk)
    if proposal.narrow_width:
        yield Lanes(ranges=rows, by=proposal.narrow_width, narrow=True)


def _chunk(configs: tuple[Config, ...], target: Target) -> int:
    """Elements of 4 bytes in 16, which a thread loads at once, if all threads of every candidate then have
    some.
    """
    blocks = [(dict(c.meta).get(BLOCKS["r"], 1), c.num_warps * target.warp_size) for c in configs]
    return WHOLE_VECTOR if all(block >= WHOLE_VECTOR * threads for block, threads in blocks) else 1


def _memory(setting: Setting, proposal: Proposal) -> Iterator[Directive]:
    """Directives for memory: histograms, eviction, the type of positions."""
    kernel = setting.kernel
    if setting.draft.bins:
        args = tuple(dict.fromkeys(store.buffer for store in kernel.stores))
        yield Privatise(args=args, bins=setting.draft.bins)
    if setting.streamed_args:
        yield Evict(
            args=tuple(a.name for a in kernel.args if a.name in setting.streamed_args), priority="first"
        )
    if proposal.index_dtype is DType.I64:
        yield Index(dtype="i64")
    else:
        yield Index(dtype="i32", promised=setting.options.index_dtype == "i32")


def _names(ranges: Sequence[Range]) -> tuple[str, ...]:
    return tuple(r.symbol.name for r in ranges)
