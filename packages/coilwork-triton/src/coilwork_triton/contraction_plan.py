"""Plan a matrix product: its legal mappings, its launches, its shape, and the mapping that is proposed.

    tile x1 by 256      columns
    tile x0 by 128      rows
    tile x2 by 1        each other range: a program has one point of the batch
    flat
    order x0, x1 grouped 8
    loop r0 by 64 stages 3
    unit mma
    warps 8    index i32    contract

The left factor lies in blocks of rows (y) by the sum's positions (r), the right one of r by columns (x),
results of y by x. Blocks follow from sizes and the device, or from the template that made the kernel. Each
mapping that no text is written for is refused by the directive's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError, ParseError, VerifyError
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    multiply_all,
    provably_divisible,
    symbol,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.mapping import (
    Contract,
    Fetch,
    FlatGrid,
    Index,
    Loop,
    Mapping,
    Number,
    Open,
    Order,
    Resident,
    Specialise,
    Warps,
    find_all,
    parse_mapping,
    verify_mapping,
)
from coilwork_ir.mapping import Tile as TileOf
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.mapping.product_blocks import (
    COPY_ENGINE,
    LEAST_SIDE,
    MOST_STAGES,
    RESULTS_PER_THREAD,
    Blocks,
    Factors,
    Work,
    compute_work,
    find_whole_sides,
    fit_registers,
    get_contraction,
    is_skinny,
    list_names,
    propose_blocks,
)
from coilwork_ir.mapping.stored_matrix import StoredMatrix, find_stored_matrix
from coilwork_ir.mapping.user_mappings import refuse_candidate
from coilwork_ir.scalar import Contraction, Scalar
from coilwork_ir.target import Target
from coilwork_triton.iteration.mapping_parameters import (
    ParameterPlace,
    get_single_value,
    launch_config,
    plan_choices,
)
from coilwork_triton.iteration.mapping_parameters import iterate_parameter_places as find_places
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.iteration.shape import Shape, Tile, build_flat_tile, must_use_64_bits
from coilwork_triton.launch.parameters import BLOCKS, GROUP, STAGES, WARPS, Letter, iterate_powers_of_two
from coilwork_triton.launch.search_space import open_numbers, search_limits
from coilwork_triton.options import TritonOptions
from coilwork_triton.product_refusals import (
    MOST_DEPTH,
    MOST_FETCHED,
    MOST_RESULTS,
    MOST_WARPS,
    check_product,
    find_tile,
)
from coilwork_triton.product_roles import Roles, find_roles

# The plan


@dataclass(frozen=True, kw_only=True)
class PlannedProduct:
    """A matrix product and how it may run.

    Attributes:
        kernel: the product.
        mapping: how it runs: open where candidates differ, and where a search may try others.
        configs: launch candidates, best guess first: choices of the open numbers.
        target: what it runs on.
    """

    kernel: Kernel
    mapping: Mapping
    configs: tuple[Config, ...]
    target: Target

    @cached_property
    def shape(self) -> ContractionShape:
        """Tiles and masks, as the mapping says."""
        return get_product_shape(self.kernel, self.mapping, self.target)


def propose_product(kernel: Kernel, target: Target, options: TritonOptions) -> PlannedProduct:
    """Return how `kernel`, which contracts, is to run.

    Raises:
        EmitError: it is no product that Triton multiplies.
    """
    factors, invariant = get_contraction(kernel), options.batch_invariant
    work = compute_work(factors)
    fetched = () if invariant else find_fetched(kernel, factors, work, target)
    resident = target.multiprocessors if fetched else 0

    def outline(numbers: MappingOf[str, Number], roles: Specialise | None) -> Mapping:
        return outline_product(kernel, factors, numbers, options, fetched, resident, roles)

    def check(launch: Launch) -> None:
        mapping = outline(open_numbers((launch.config,), SearchSpace()), launch.roles)
        verify_mapping(kernel, mapping)
        check_product(kernel, factors, mapping, target)

    if invariant:
        found: tuple[Launch, ...] = (make_invariant_product_launch(work, target),)
    elif options.candidates:
        found = read_candidates(kernel, factors, options.candidates, check)
    else:
        found = propose_product_launches(work, target, check)
    # all have the roles of the first: they are one text
    roles = found[0].roles
    configs = tuple(
        replace(one.config, fp_fusion=kernel.numerics == "fast") for one in found if one.roles == roles
    )[: options.max_configs]
    space = (
        SearchSpace()
        if invariant or roles is not None
        else make_product_search_space(
            work, target, whole=_find_unmasked_sides(factors, configs), configs=configs
        )
    )
    numbers = open_numbers(configs, space)
    mapping = outline(numbers, roles)
    limits = search_limits(numbers, configs, space)
    mapping = replace(mapping, directives=(*mapping.directives, *limits))
    return PlannedProduct(kernel=kernel, mapping=mapping, configs=configs, target=target)


def plan_product_mapping(
    kernel: Kernel, mapping: Mapping, target: Target, *, check: Callable[[Mapping], None], max_configs: int
) -> PlannedProduct:
    """Return how `kernel`, which contracts, runs as `mapping` says, whoever chose that. `check` judges it,
    and each of its choices if it is open; of these `max_configs` are the first.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    factors = get_contraction(kernel)

    def check_choice(choice: Mapping) -> None:
        check(choice)
        check_product(kernel, factors, choice, target)

    def launch(closed: Mapping) -> Config:
        numbers = list_product_parameters(kernel, factors, closed)
        return launch_config({name: get_single_value(number) for name, number in numbers.items()}, closed)

    check_choice(mapping)
    work = compute_work(factors)
    found, configs = plan_choices(
        kernel,
        mapping,
        places=tuple(iterate_product_places(kernel, factors, mapping)),
        launch=launch,
        limits=lambda one, configs: make_product_search_space(work, target, whole={}, configs=configs).limits,
        check=check_choice,
        max_configs=max_configs,
    )
    return PlannedProduct(kernel=kernel, mapping=found, configs=configs, target=target)


def outline_product(
    kernel: Kernel,
    factors: Factors,
    numbers: MappingOf[str, Number],
    options: TritonOptions,
    fetched: tuple[str, ...] = (),
    resident: int = 0,
    roles: Specialise | None = None,
) -> Mapping:
    """Return the product `kernel` in blocks, with `numbers` for the parameters of its launch.

    The copy engine brings those of the arguments `fetched`, and `resident` programs go through all of them if
    it is not 0. Warps may have `roles`.
    """
    rows, columns, others = (
        list_names(kernel, side) for side in (factors.rows, factors.columns, factors.others)
    )
    if options.index_dtype == "auto":
        numels = tuple(find_whole_sides(factors).values())
        wide = must_use_64_bits(kernel, numels, [store.value for store in kernel.stores])
    else:
        wide = options.index_dtype == "i64"
    return Mapping(
        directives=(
            TileOf(ranges=columns, by=numbers[BLOCKS["x"]]),
            TileOf(ranges=rows, by=numbers[BLOCKS["y"]]),
            *([TileOf(ranges=others, by=1)] if others else []),
            FlatGrid(),
            *([Resident(count=resident)] if resident else []),
            Order(ranges=(*rows, *columns), by=numbers[GROUP]),
            Loop(ranges=list_names(kernel, factors.axes), by=numbers[BLOCKS["r"]], stages=numbers[STAGES]),
            factors.unit,
            *([Fetch(args=fetched)] if fetched else []),
            *([] if roles is None else [roles]),
            Warps(count=numbers[WARPS]),
            Index(dtype="i64") if wide else Index(dtype="i32", promised=options.index_dtype == "i32"),
            *([Contract()] if kernel.numerics == "fast" else []),
        )
    )


def find_fetched(kernel: Kernel, factors: Factors, work: Work, target: Target) -> tuple[str, ...]:
    """Return the arguments whose blocks the copy engine brings: all factors of a product that arithmetic
    bounds.
    """
    few = is_skinny(work.rows, work.columns, target)
    # the engine takes a while to learn of a matrix: one for all tiles, but not one for each of a batch
    is_batched = any(as_int(r.extent) != 1 for r in factors.others)
    if few or is_batched or factors.unit.unit != "mma" or not target.has(COPY_ENGINE):
        return ()
    found = dict(list_matrices(kernel, factors))
    every = [factor for node in factors.nodes for factor in (node.left, node.right)]
    names = tuple(dict.fromkeys(matrix.buffer for matrix in found.values()))
    return names if all(factor in found for factor in every) else ()


def list_matrices(kernel: Kernel, factors: Factors) -> Iterator[tuple[Scalar, StoredMatrix]]:
    """Yield the factors that are matrices in memory, as the copy engine takes them."""
    for node in factors.nodes:
        for factor in (node.left, node.right):
            matrix = find_stored_matrix(kernel, node, factor)
            if matrix is not None:
                yield factor, matrix


def _find_unmasked_sides(factors: Factors, configs: tuple[Config, ...]) -> dict[str, Expr]:
    """Return the points of sides that all blocks divide, by letter."""
    return {
        letter: numel
        for letter, numel in find_whole_sides(factors).items()
        if letter != "z" and all(provably_divisible(numel, dict(c.meta)[BLOCKS[letter]]) for c in configs)
    }


# Launches


# Rows of blocks that programs go through together, so that they share columns in the cache.
GROUPED: Final = 8
_WARPS: Final = 4
_NAMED: Final = (TileOf, Loop, Specialise, Warps, Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A configuration, and the roles that warps have in it."""

    config: Config
    roles: Specialise | None = None


def read_candidates(
    kernel: Kernel, factors: Factors, texts: Sequence[str], check: Callable[[Launch], None]
) -> tuple[Launch, ...]:
    """Return the launches of `kernel` that `texts` name, as far as `check` takes them.

    Raises:
        EmitError: there is none, for the reason that the first text is none.
    """
    found: dict[Launch, None] = {}
    faults: list[EmitError] = []
    for text in texts:
        try:
            one = _read_candidate(kernel, factors, text)
            check(one)
            found.setdefault(one)
        except (EmitError, VerifyError, ParseError) as error:
            faults.append(refuse_candidate(kernel, text, error))
    if not found and faults:
        raise faults[0]
    return tuple(found)


def _read_candidate(kernel: Kernel, factors: Factors, text: str) -> Launch:
    """Return the launch that `text` names: both tiles, the loop over terms, and perhaps warps and an
    order.
    """
    mapping = parse_mapping(text)
    odd = next((one for one in mapping.directives if not isinstance(one, _NAMED)), None)
    if odd is not None:
        raise refuse(kernel, odd.keyword(), f"a product's template names no `{odd.text}`")
    sides = {"y": factors.rows, "x": factors.columns}
    tiles = {letter: find_tile(kernel, mapping, side) for letter, side in sides.items()}
    loop, order, warps = mapping.find(Loop), mapping.find(Order), mapping.find(Warps)
    wanted: dict[str, Number] = {}
    for letter, tile in tiles.items():
        if tile is None:
            names = ", ".join(list_names(kernel, sides[letter]))
            raise refuse(kernel, "tile", f"it names no block of {names}")
        wanted[BLOCKS[letter]] = tile.by
    if loop is None or loop.ranges != list_names(kernel, factors.axes):
        raise refuse(kernel, "loop", "it names no block of terms")
    wanted |= {BLOCKS["r"]: loop.by, GROUP: order.by if order else GROUPED, STAGES: loop.stages}
    count = warps.count if warps else _WARPS
    if any(isinstance(number, Open) for number in (*wanted.values(), count)):
        raise refuse(kernel, "choose", "a candidate leaves nothing open")
    meta = tuple((name, get_single_value(number)) for name, number in wanted.items())
    config = Config(meta=meta, num_warps=get_single_value(count), num_stages=1)
    return Launch(config=config, roles=mapping.find(Specialise))


def propose_product_launches(
    work: Work, target: Target, check: Callable[[Launch], None]
) -> tuple[Launch, ...]:
    """Return the candidates. Each block fits the device's shared memory with all its stages, and `check`
    takes roles of warps.
    """
    found: list[Launch] = []
    for block in propose_blocks(work, target):
        one = _launch(block)
        if one.roles is not None:
            try:
                check(one)
            except (EmitError, VerifyError):
                continue
        found.append(one)
    return tuple(found)


def make_invariant_product_launch(work: Work, target: Target) -> Launch:
    """Return the one configuration of `batch_invariant`. It depends on the element type and on the work of
    a term, and not on the number of rows and columns.
    """
    block = Blocks(rows=64, columns=64, depth=32, warps=4, stages=2)
    if work.dtype is not DType.F32:
        block = Blocks(rows=64, columns=128, depth=64, warps=4, stages=3)
    each = block.depth * max(4 * (block.rows + block.columns), work.term_bytes(block.rows, block.columns))
    block = replace(block, stages=max(1, min(block.stages, target.shared_memory_bytes // each)))
    return _launch(fit_registers(block, work, target))


def make_product_search_space(
    work: Work, target: Target, *, whole: MappingOf[str, Expr], configs: tuple[Config, ...]
) -> SearchSpace:
    """Return the search space around `configs`. Sides that are `whole` have no mask: their blocks divide
    these numbers of points.
    """
    values: dict[str, tuple[int, ...]] = {}
    deepest = MOST_FETCHED if target.has(COPY_ENGINE) else MOST_DEPTH
    for letter, most in (("y", MOST_RESULTS), ("x", MOST_RESULTS), ("r", deepest)):
        name = BLOCKS[letter]
        proposed = [dict(c.meta)[name] for c in configs]
        numel = whole.get(letter)
        sizes = [
            n
            for n in iterate_powers_of_two(LEAST_SIDE, most)
            if numel is None or provably_divisible(numel, n)
        ]
        values[name] = tuple(sorted({*proposed, *sizes}))
    values[GROUP] = (1, 4, 8, 16)
    values[STAGES] = tuple(range(1, MOST_STAGES + 1))
    values[WARPS] = tuple(iterate_powers_of_two(1, MOST_WARPS))
    y, x, r = (symbol(BLOCKS[letter], lo=1) for letter in "yxr")
    warps, stages = symbol(WARPS, lo=1), symbol(STAGES, lo=1)
    limits: tuple[tuple[Expr, Expr], ...] = (
        (y * x * work.sums, warps * (target.warp_size * RESULTS_PER_THREAD)),
        (stages * r * (y * work.left_bytes + x * work.right_bytes), as_expr(target.shared_memory_bytes)),
    )
    return SearchSpace(values=tuple(values.items()), limits=limits)


def _launch(block: Blocks) -> Launch:
    sides = (("y", block.rows), ("x", block.columns), ("r", block.depth))
    meta = (*((BLOCKS[letter], size) for letter, size in sides), (GROUP, GROUPED), (STAGES, block.stages))
    return Launch(config=Config(meta=meta, num_warps=block.warps, num_stages=1), roles=block.roles)


# The shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionShape:
    """Tiles of a contraction, and what follows from them.

    Attributes:
        nodes: the contractions.
        left, right, results: the spaces of the factors' blocks and of the results'.
        rows, columns, axis: the tiles.
        batch: the tile of the batch; None if there is none.
        resident: programs that go through all tiles; 0: each tile has one of its own.
        fetched: factors whose blocks the copy engine brings, as matrices.
        roles: of a program's warps; None if all do the same.
        index_dtype: type of offsets and sizes, `i32` or `i64`.
    """

    nodes: tuple[Contraction, ...]
    left: Shape
    right: Shape
    results: Shape
    rows: Tile
    columns: Tile
    axis: Tile
    batch: Tile | None
    resident: int
    fetched: tuple[tuple[Scalar, StoredMatrix], ...]
    roles: Roles | None
    index_dtype: DType

    def find_fetched(self, factor: Scalar) -> StoredMatrix | None:
        """Return the matrix that the copy engine takes blocks of `factor` from; None if threads load it."""
        return next((matrix for one, matrix in self.fetched if one is factor), None)

    @property
    def grid(self) -> tuple[Expr, ...]:
        """One extent, over sizes and block names."""
        if self.resident:
            return (as_expr(self.resident),)
        return (self.tiles,)

    @property
    def tiles(self) -> Expr:
        """Return how many tiles there are, over sizes and block names."""
        blocks = [ceildiv(t.numel, symbol(t.block, lo=1)) for t in (self.rows, self.columns)]
        return multiply_all([*blocks, *(() if self.batch is None else (self.batch.numel,))])


def get_product_shape(kernel: Kernel, mapping: Mapping, target: Target) -> ContractionShape:
    """Return the shape of `kernel`, a product, as `mapping` runs it on `target`.

    Raises:
        EmitError: there is no text for a directive, which the error names, or for the product.
    """
    factors = get_contraction(kernel)
    check_product(kernel, factors, mapping, target)
    numbers = list_product_parameters(kernel, factors, mapping)
    rows = _tile("y", factors.rows, numbers)
    columns = _tile("x", factors.columns, numbers)
    axis = _tile("r", factors.axes, numbers)
    batch = build_flat_tile("z", list(factors.others), None, False) if factors.others else None
    index, resident = mapping.find(Index), mapping.find(Resident)
    index_dtype = DType.I32 if index is not None and index.dtype == "i32" else DType.I64

    def blocks(first: Tile, second: Tile) -> Shape:
        return Shape(
            grids=target.machine.grids,
            tiles=(*(() if batch is None else (batch,)), replace(first, axis=0), replace(second, axis=1)),
            walk="looped",
            parameters=tuple(numbers),
            index_dtype=index_dtype,
            flat_grid=True,
            scalar_access=False,
            zeros="r" in (first.letter, second.letter),
        )

    return ContractionShape(
        nodes=factors.nodes,
        left=blocks(rows, axis),
        right=blocks(axis, columns),
        results=blocks(rows, columns),
        rows=rows,
        columns=columns,
        axis=axis,
        batch=batch,
        resident=0 if resident is None else resident.count,
        fetched=tuple(_list_fetched(kernel, factors, mapping)),
        roles=find_roles(mapping),
        index_dtype=index_dtype,
    )


def _list_fetched(
    kernel: Kernel, factors: Factors, mapping: Mapping
) -> Iterator[tuple[Scalar, StoredMatrix]]:
    fetched = {arg for one in find_all(mapping.directives, Fetch) for arg in one.args}
    for factor, matrix in list_matrices(kernel, factors):
        if matrix.buffer in fetched:
            yield factor, matrix


def list_product_parameters(kernel: Kernel, factors: Factors, mapping: Mapping) -> dict[str, Number]:
    """Return the parameters of a product's launch as `mapping` says, in the order of its signature."""
    found: dict[str, Number] = {
        place.name: getattr(mapping.directives[place.at], place.field)
        for place in iterate_product_places(kernel, factors, mapping)
    }
    return {name: found[name] for name in (BLOCKS["y"], BLOCKS["x"], BLOCKS["r"], GROUP, STAGES)}


def iterate_product_places(kernel: Kernel, factors: Factors, mapping: Mapping) -> Iterator[ParameterPlace]:
    """Yield the numbers of `mapping` that are parameters of a product's launch."""
    letters = {list_names(kernel, factors.rows): "y", list_names(kernel, factors.columns): "x"}
    for place in find_places(mapping):
        one = mapping.directives[place.at]
        if not isinstance(one, TileOf):
            yield place
        elif one.ranges in letters:
            # that of the batch is none
            yield replace(place, name=BLOCKS[letters[one.ranges]])


def _tile(letter: Letter, ranges: tuple[Range, ...], numbers: dict[str, Number]) -> Tile:
    numel = multiply_all(r.extent for r in ranges)
    masked = not all(provably_divisible(numel, size) for size in list_values(numbers[BLOCKS[letter]]))
    return build_flat_tile(letter, list(ranges), 0, masked)
