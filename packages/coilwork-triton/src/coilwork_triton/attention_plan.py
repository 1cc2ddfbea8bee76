"""Plan attention and its gradient: launches, the mapping that is proposed, and the roles of ranges.

    tile x0 by 64        columns of values, all at once
    tile y1 by 128       rows
    tile y0 by 1         other ranges: a program has one point of them
    flat
    loop r0 by 64 stages 3    keys, block by block
    keep r1 by 64             the length of products
    unit mma
    warps 4    index i32    contract

A program of the gradient has a block of rows, for which it goes through the keys, or a block of keys, for
which it goes through the rows: the same two numbers say how long both are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_int,
    find_bounds,
    multiply_all,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.attention import (
    AttentionKernelCore,
    Roles,
    find_core,
    find_key_sharing,
    roles_of,
)
from coilwork_ir.kernels.mask_bounds import find_conditions, find_span
from coilwork_ir.kernels.nodes import AttentionGradientCore
from coilwork_ir.mapping import (
    Choose,
    Contract,
    FlatGrid,
    Index,
    Keep,
    Limit,
    Loop,
    Mapping,
    Number,
    Resident,
    Specialise,
    Unit,
    Warps,
    find_all,
)
from coilwork_ir.mapping import Tile as TileOf
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.mapping.product_blocks import LEAST_SIDE, list_names
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, Scalar, iterate_postorder
from coilwork_ir.target import Target
from coilwork_triton.attention_roles import (
    CONSUMER_ROWS,
    MOST_WITH_QUERIES,
    check_roles,
    count_shared_bytes,
    explain_no_roles,
    has_registers_for,
)
from coilwork_triton.attention_scores import shorten_bodies
from coilwork_triton.iteration.mapping_parameters import (
    ParameterPlace,
    get_single_value,
    launch_config,
    plan_choices,
)
from coilwork_triton.iteration.refusals import list_unfit_directives, refuse
from coilwork_triton.iteration.shape import must_use_64_bits
from coilwork_triton.launch.parameters import BLOCKS, STAGES, WARPS, round_up_to_power_of_two
from coilwork_triton.launch.search_space import open_numbers, search_limits
from coilwork_triton.options import TritonOptions, check_likely

# ---- Plans ----


_MOST_BLOCK: Final = 256
_MOST_STAGES: Final = 6
_MOST_WARPS: Final = 8


@dataclass(frozen=True, kw_only=True)
class PlannedAttention:
    """An attention or its gradient, and how it may run.

    Attributes:
        kernel: what is computed.
        mapping: how it runs: open where candidates differ.
        configs: launch candidates, best guess first: choices of the open numbers.
        target: what it runs on.
    """

    kernel: Kernel
    mapping: Mapping
    configs: tuple[Config, ...]
    target: Target

    @cached_property
    def parameters(self) -> dict[str, Number]:
        """The parameters of its launch in the order of the signature."""
        return attention_parameters(self.kernel, self.mapping)

    @property
    def consumers(self) -> int:
        """Groups of warps that multiply what another warp brings; 0 if all warps do the same."""
        found = self.mapping.find(Specialise)
        return 0 if found is None else found.consumers

    @property
    def resident(self) -> int:
        """Programs that go through all tiles; 0: each tile has one of its own."""
        found = self.mapping.find(Resident)
        return 0 if found is None else found.count

    @property
    def index_dtype(self) -> DType:
        """Type of offsets and sizes."""
        index = self.mapping.find(Index)
        return DType.I32 if index is not None and index.dtype == "i32" else DType.I64


def propose_attention(kernel: Kernel, target: Target, options: TritonOptions) -> PlannedAttention:
    """Return how `kernel`, whose core is attention, is to run.

    Raises:
        EmitError: it is no attention that Triton has text for.
    """
    kernel = _shorten(kernel)
    roles = roles_of(kernel)
    likely = dict(zip(kernel.sizes, check_likely(kernel, options), strict=False))
    limit = 1 if options.batch_invariant else options.max_configs
    consumers = 0
    if not _is_wide(kernel, roles, options):
        consumers = _count_consumers(kernel, roles, target, likely)
    found = _propose_launches(kernel, roles, target, likely, consumers)[:limit]
    configs = tuple(replace(c, fp_fusion=kernel.numerics == "fast") for c in found)
    numbers = open_numbers(configs, SearchSpace())
    programs = target.multiprocessors if consumers else 0
    mapping = _outline(kernel, roles, numbers, options, consumers, programs)
    limits = search_limits(numbers, configs, SearchSpace())
    mapping = replace(mapping, directives=(*mapping.directives, *limits))
    return PlannedAttention(kernel=kernel, mapping=mapping, configs=configs, target=target)


def plan_attention_mapping(
    kernel: Kernel, mapping: Mapping, target: Target, *, check: Callable[[Mapping], None], max_configs: int
) -> PlannedAttention:
    """Return how `kernel`, whose core is attention, runs as `mapping` says, whoever chose that. `check`
    judges it, and each of its choices if it is open; of these `max_configs` are the first.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    kernel = _shorten(kernel)
    roles = roles_of(kernel)

    def check_choice(choice: Mapping) -> None:
        check(choice)
        check_attention(kernel, roles, choice, target)

    def launch(closed: Mapping) -> Config:
        numbers = attention_parameters(kernel, closed)
        return launch_config({name: get_single_value(number) for name, number in numbers.items()}, closed)

    check_choice(mapping)
    found, configs = plan_choices(
        kernel,
        mapping,
        places=tuple(_places(kernel, roles, mapping)),
        launch=launch,
        limits=lambda one, configs: (),
        check=check_choice,
        max_configs=max_configs,
    )
    return PlannedAttention(kernel=kernel, mapping=found, configs=configs, target=target)


def _outline(
    kernel: Kernel,
    roles: Roles,
    numbers: MappingOf[str, Number],
    options: TritonOptions,
    consumers: int,
    programs: int,
) -> Mapping:
    others = list_names(kernel, roles.others)
    wide = _is_wide(kernel, roles, options)
    return Mapping(
        directives=(
            TileOf(ranges=(roles.columns.symbol.name,), by=numbers[BLOCKS["x"]]),
            TileOf(ranges=(roles.rows.symbol.name,), by=numbers[BLOCKS["y"]]),
            *([TileOf(ranges=others, by=1)] if others else []),
            FlatGrid(),
            *([Resident(count=programs)] if programs else []),
            Loop(ranges=(roles.keys.symbol.name,), by=numbers[BLOCKS["r"]], stages=numbers[STAGES]),
            Keep(ranges=(roles.length.symbol.name,), by=numbers[BLOCKS["l"]]),
            _unit_of(kernel),
            *([Specialise(consumers=consumers)] if consumers else []),
            Warps(count=numbers[WARPS]),
            Index(dtype="i64") if wide else Index(dtype="i32", promised=options.index_dtype == "i32"),
            *([Contract()] if kernel.numerics == "fast" else []),
        )
    )


def _is_wide(kernel: Kernel, roles: Roles, options: TritonOptions) -> bool:
    """Tell if offsets and sizes have 64 bits."""
    if options.index_dtype != "auto":
        return options.index_dtype == "i64"
    numels = tuple(r.extent for r in (roles.rows, roles.keys, roles.columns, roles.length))
    core = find_core(kernel)
    assert core is not None
    numels = (*numels, multiply_all(r.extent for r in roles.others))
    return must_use_64_bits(kernel, numels, (*core.bodies, *(store.value for store in kernel.stores)))


def _unit_of(kernel: Kernel) -> Unit:
    return Unit(unit="mma" if all(f.itemsize <= 2 for f in _factor_types(kernel)) else "fma")


def _factor_types(kernel: Kernel) -> tuple[DType, ...]:
    core = find_core(kernel)
    assert core is not None
    weights = core.weights
    gradient = (core.gradient.dtype,) if isinstance(core, AttentionGradientCore) else ()
    return (weights.query.dtype, weights.key.dtype, weights.value.dtype, *gradient)


def attention_parameters(kernel: Kernel, mapping: Mapping) -> dict[str, Number]:
    """Return the parameters of a launch as `mapping` says, in the order of its signature."""
    found: dict[str, Number] = {
        place.name: getattr(mapping.directives[place.at], place.field)
        for place in _places(kernel, roles_of(kernel), mapping)
    }
    return {name: found[name] for name in (*(BLOCKS[letter] for letter in "yxlr"), STAGES)}


def _places(kernel: Kernel, roles: Roles, mapping: Mapping) -> Iterator[ParameterPlace]:
    """Yield the numbers of `mapping` that are parameters of a launch."""
    letters = {(roles.rows.symbol.name,): "y", (roles.columns.symbol.name,): "x"}
    for at, one in enumerate(mapping.directives):
        if isinstance(one, TileOf) and one.ranges in letters:
            yield ParameterPlace(BLOCKS[letters[one.ranges]], at, "by")
        elif isinstance(one, Loop):
            yield ParameterPlace(BLOCKS["r"], at, "by")
            yield ParameterPlace(STAGES, at, "stages")
        elif isinstance(one, Keep):
            yield ParameterPlace(BLOCKS["l"], at, "by")
        elif isinstance(one, Warps):
            yield ParameterPlace(WARPS, at, "count")


# ---- Launches ----


# Rows from which on warps have roles, by the width of heads, and the most costly operation of a score. On an
# H200, 2 x 16 x 4096 in bf16: causal heads of 128 columns take 0.23 ms instead of 0.31, and 0.08 instead of
# 0.12 with 8 x 16 x 1024. Those of 64 columns take 0.166 instead of 0.172, but 0.061 instead of 0.058 with
# 1024 rows, and 0.069 instead of 0.056 with a window: a short loop does not last the time that it takes to
# begin. Groups that multiply have no warps to hide a `tanh` behind: 0.32 ms instead of 0.29. Gradients of 128
# columns take 0.74 ms instead of 0.85, and 0.28 instead of 0.33 with 1024 rows; those of 64 columns 0.53
# instead of 0.50. Gradients of windows and documents, and fewer rows, were not measured.
_MANY_ROWS: Final = 1024
_MANY_NARROW_ROWS: Final = 4096
_WIDE_HEAD: Final = 128
# Fewer are a block or two, beside which a loader brings nothing.
_LEAST_KEYS: Final = 512
_CHEAP: Final = 4
_CONSUMERS: Final = 2
_NARROW_CONSUMERS: Final = 4
_NARROW_KEYS: Final = 64
_NARROW_STAGES: Final = 4


def _count_consumers(kernel: Kernel, roles: Roles, target: Target, likely: MappingOf[Expr, int]) -> int:
    """Groups of warps that multiply what another brings; 0 if all warps are to do the same."""
    core = find_core(kernel)
    if core is None or explain_no_roles(kernel, target) is not None:
        return 0
    rows, keys = (_estimate(r.extent, likely) for r in (roles.rows, roles.keys))
    if keys < _LEAST_KEYS:
        return 0
    values = iterate_postorder((core.weights.score,))
    if any(SCALAR_OPS[value.op].cost > _CHEAP for value in values if isinstance(value, Op)):
        return 0
    is_wide = (as_int(roles.columns.extent) or 0) >= _WIDE_HEAD
    reads_first = _reads_first_keys(core.weights.mask, roles)
    if isinstance(core, AttentionGradientCore):
        # one run of narrow heads that share keys ended in an illegal access that was not explained
        shares = any(as_int(one.count) != 1 for one in find_key_sharing(kernel))
        return _CONSUMERS if is_wide and rows >= _MANY_ROWS and reads_first and not shares else 0
    if is_wide:
        return _CONSUMERS if rows >= _MANY_ROWS else 0
    if rows < _MANY_NARROW_ROWS or not reads_first:
        return 0
    meets_lists = _find_list_blocks(kernel)[0] >= CONSUMER_ROWS * _NARROW_CONSUMERS
    has_registers = has_registers_for(kernel, _NARROW_CONSUMERS, _NARROW_KEYS)
    shared = count_shared_bytes(kernel, _NARROW_CONSUMERS, _NARROW_KEYS, _NARROW_STAGES)
    has_room = has_registers and shared <= target.shared_memory_bytes
    return _NARROW_CONSUMERS if meets_lists and has_room else _CONSUMERS


def _reads_first_keys(mask: Scalar | None, roles: Roles) -> bool:
    """Tell if comparisons of positions say which keys count, and the first keys count for all rows: so loops
    are as long as rows are far down, or longer.
    """
    row = roles.rows.symbol
    span = find_span(find_conditions(mask), roles.keys.symbol, row, (row, row), roles.keys.extent)
    return span.exact and as_int(span.first) == 0


def _propose_launches(
    kernel: Kernel, roles: Roles, target: Target, likely: MappingOf[Expr, int], consumers: int
) -> tuple[Config, ...]:
    """Candidates, best guess first. Each fits the device's shared memory."""
    if consumers:
        return tuple(_propose_roles(kernel, roles, target, consumers))
    core = find_core(kernel)
    itemsize = max(dtype.itemsize for dtype in _factor_types(kernel))
    columns, length = _cover_range(roles.columns), _cover_range(roles.length)
    widest = max(columns, length)
    rows, keys = (_estimate(r.extent, likely) for r in (roles.rows, roles.keys))
    if isinstance(core, AttentionGradientCore):
        blocks = _gradient_blocks(widest, itemsize)
    else:
        blocks = _forward_blocks(widest, itemsize)
    row_block, key_block = _find_list_blocks(kernel)
    found: dict[Config, None] = {}
    for y, r, stages, warps in blocks:
        if isinstance(core, AttentionGradientCore):
            # blocks of either side are long or short
            both = gcd(row_block, key_block)
            y, r = min(y, both), min(r, both)
            y, r = (_clip(n, max(rows, keys)) for n in (y, r))
        else:
            y, r = _clip(min(y, row_block), rows), _clip(min(r, key_block), keys)
        warps = max(1, min(warps, y // 16)) if itemsize <= 2 else warps
        kept = columns + length if isinstance(core, AttentionGradientCore) else widest
        room = target.shared_memory_bytes - y * kept * itemsize
        stages = max(1, min(stages, room // (r * (columns + length) * itemsize)))
        meta = {"y": y, "x": columns, "l": length, "r": r}
        named = tuple((BLOCKS[letter], size) for letter, size in meta.items() if letter in "yxlr")
        found.setdefault(Config(meta=(*named, (STAGES, stages)), num_warps=warps, num_stages=1))
    return tuple(found)


def _propose_roles(kernel: Kernel, roles: Roles, target: Target, consumers: int) -> Iterator[Config]:
    meta = {"y": CONSUMER_ROWS * consumers, "x": _cover_range(roles.columns), "l": _cover_range(roles.length)}
    is_gradient = isinstance(kernel.core, AttentionGradientCore)
    wide = [] if is_gradient or consumers > MOST_WITH_QUERIES else [(128, 2)]
    for keys, stages in (*wide, (_NARROW_KEYS, _NARROW_STAGES)):
        if count_shared_bytes(kernel, consumers, keys, stages) <= target.shared_memory_bytes:
            named = tuple((BLOCKS[letter], size) for letter, size in (*meta.items(), ("r", keys)))
            yield Config(meta=(*named, (STAGES, stages)), num_warps=4, num_stages=1)


def _forward_blocks(widest: int, itemsize: int) -> tuple[tuple[int, int, int, int], ...]:
    """Rows, keys, stages and warps."""
    if itemsize > 2:
        return ((32, 32, 1, 4),) if widest > 64 else ((64, 32, 2, 4), (32, 32, 2, 4))
    if widest <= 64:
        return ((64, 64, 3, 4), (128, 64, 3, 8), (64, 128, 2, 4))
    if widest <= 128:
        return ((64, 64, 3, 4), (128, 64, 3, 8), (128, 32, 3, 8))
    if widest <= 256:
        return ((128, 64, 2, 8), (64, 64, 2, 4))
    return ((64, 32, 2, 8),)


def _gradient_blocks(widest: int, itemsize: int) -> tuple[tuple[int, int, int, int], ...]:
    if itemsize > 2:
        return ((32, 32, 1, 4),) if widest > 64 else ((32, 32, 1, 4), (64, 32, 1, 4))
    if widest <= 64:
        return ((64, 64, 3, 4), (64, 128, 2, 8), (128, 64, 3, 4))
    if widest <= 128:
        return ((128, 64, 3, 8), (128, 64, 1, 8), (64, 64, 2, 4))
    return ((64, 32, 1, 8), (32, 32, 1, 4))


def _find_list_blocks(kernel: Kernel) -> tuple[int, int]:
    """Return the sizes that blocks of rows and of keys must divide, so that a list's blocks are whole."""
    core = find_core(kernel)
    lists = None if core is None else core.weights.blocks
    if core is None or lists is None or _knows_keys(core, roles_of(kernel)):
        return _MOST_BLOCK, _MOST_BLOCK
    found = [size & -size for size in (lists.row_block, lists.key_block)]
    if min(found) < LEAST_SIDE:
        return _MOST_BLOCK, _MOST_BLOCK
    return found[0], found[1]


def _knows_keys(core: AttentionKernelCore, roles: Roles) -> bool:
    """Tell if comparisons of positions say which keys count, so that lists do not matter."""
    conditions, row, key = find_conditions(core.weights.mask), roles.rows.symbol, roles.keys.symbol
    of_rows = find_span(conditions, key, row, (row, row), roles.keys.extent)
    of_keys = find_span(conditions, row, key, (key, key), roles.rows.extent)
    return of_rows.exact and (of_keys.exact or not isinstance(core, AttentionGradientCore))


def _cover_range(r: Range) -> int:
    return max(LEAST_SIDE, round_up_to_power_of_two(as_int(r.extent) or 1))


def _clip(size: int, points: int) -> int:
    return min(size, max(LEAST_SIDE, round_up_to_power_of_two(points)))


def _estimate(extent: Expr, likely: MappingOf[Expr, int]) -> int:
    known = as_int(extent)
    if known is None and extent in likely and likely[extent]:
        known = likely[extent]
    if known is None:
        known = find_bounds(extent).hi
    return _MOST_BLOCK if known is None else known


# ---- Refusals ----


_TAKES: Final = (
    TileOf, FlatGrid, Resident, Loop, Keep, Unit, Specialise, Warps, Index, Contract, Limit, Choose,
)  # fmt: skip
_NEEDS: Final = (FlatGrid, Loop, Keep, Unit)


def check_attention(kernel: Kernel, roles: Roles, mapping: Mapping, target: Target) -> None:
    """Refuse what no attention is written with.

    Raises:
        EmitError: by the name of the directive.
    """
    for keyword, reason in _reasons(kernel, roles, mapping, target):
        raise refuse(kernel, keyword, reason)


def _reasons(kernel: Kernel, roles: Roles, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    yield from list_unfit_directives(mapping, "attention", takes=_TAKES, needs=_NEEDS)
    yield from _check_tiles(kernel, roles, mapping)
    unit, loop, keep, warps = (mapping.find(kind) for kind in (Unit, Loop, Keep, Warps))
    if isinstance(unit, Unit) and unit != _unit_of(kernel):
        yield "unit", f"these factors are multiplied by `{_unit_of(kernel).text}`"
    if isinstance(loop, Loop):
        if loop.ranges != (roles.keys.symbol.name,):
            yield "loop", "keys are gone through in blocks, and nothing else"
        yield from _check_sizes("loop", loop.by, _find_list_blocks(kernel)[1])
        if any(not 1 <= n <= _MOST_STAGES for n in list_values(loop.stages)):
            yield "loop", f"1 to {_MOST_STAGES} blocks are on their way at a time"
    if isinstance(keep, Keep):
        if keep.ranges != (roles.length.symbol.name,) or set(list_values(keep.by)) != {
            _cover_range(roles.length)
        }:
            yield "keep", "a block has whole terms of its products"
    if isinstance(warps, Warps) and any(n > _MOST_WARPS or n & (n - 1) for n in list_values(warps.count)):
        yield "warps", f"a program has 1, 2, 4 or {_MOST_WARPS}"
    yield from check_roles(kernel, mapping, target)


def _check_tiles(kernel: Kernel, roles: Roles, mapping: Mapping) -> Iterator[tuple[str, str]]:
    others = list_names(kernel, roles.others)
    wanted = [(roles.columns.symbol.name,), (roles.rows.symbol.name,), *([others] if others else [])]
    tiles = list(find_all(mapping.directives, TileOf))
    if [tile.ranges for tile in tiles] != wanted:
        told = ", ".join(" ".join(names) for names in wanted)
        yield "tile", f"programs have blocks of {told}, in this order"
        return
    columns, rows, *rest = tiles
    if set(list_values(columns.by)) != {_cover_range(roles.columns)}:
        yield "tile", "a block has whole columns"
    row_block, key_block = _find_list_blocks(kernel)
    is_gradient = isinstance(kernel.core, AttentionGradientCore)
    yield from _check_sizes("tile", rows.by, gcd(row_block, key_block) if is_gradient else row_block)
    if any(set(list_values(tile.by)) != {1} for tile in rest):
        yield "tile", "a program has one point of the others"
    if any(tile.padded or tile.to != "program" for tile in tiles):
        yield "tile", "tiles are of programs, without padding"


def _check_sizes(keyword: str, number: Number, most: int) -> Iterator[tuple[str, str]]:
    odd = [n for n in list_values(number) if n & (n - 1) or not LEAST_SIDE <= n <= most]
    if odd:
        yield keyword, f"blocks are powers of two from {LEAST_SIDE} to {most}, and {odd[0]} is none"


# ---- Bodies ----


def _shorten(kernel: Kernel) -> Kernel:
    """`kernel` with shorter bodies of its core."""
    core = find_core(kernel)
    assert core is not None
    is_exact = any(dtype.itemsize > 2 for dtype in _factor_types(kernel))
    return shorten_bodies(kernel, core, is_exact=is_exact)
