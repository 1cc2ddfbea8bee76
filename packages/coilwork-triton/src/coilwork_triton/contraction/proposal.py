"""How a matrix product is to run, as an open mapping: blocks by its sizes and the device, and what a search
may try around them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import cached_property, partial

from coilwork_ir.index import Expr, provably_divisible
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    FlatGrid,
    Index,
    Loop,
    Mapping,
    Number,
    Order,
    Tile,
    Warps,
    verify_mapping,
)
from coilwork_ir.mapping.product_blocks import Factors, factors_of, names_of, whole_sides, work_of
from coilwork_ir.target import Target
from coilwork_triton.contraction.configs import fixed, propose, read_candidates, space_of
from coilwork_triton.contraction.refusals import check_product
from coilwork_triton.contraction.shape import ContractionShape, parameters_of, places_of, shape_of
from coilwork_triton.iteration.mapping_parameters import chosen, launch_config, plan_choices
from coilwork_triton.iteration.shape import needs_64_bits
from coilwork_triton.launch.parameters import BLOCKS, GROUP, STAGES, WARPS
from coilwork_triton.launch.search_space import limits_between, open_numbers
from coilwork_triton.options import TritonOptions


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
        return shape_of(self.kernel, self.mapping, self.target)


def propose_product(kernel: Kernel, target: Target, options: TritonOptions) -> PlannedProduct:
    """How `kernel`, which contracts, is to run.

    Raises:
        EmitError: it is no product that Triton multiplies.
    """
    factors, invariant = factors_of(kernel), options.batch_invariant
    work = work_of(factors)
    if invariant:
        found = fixed(work, target)
    elif options.candidates:
        check = partial(_check_launch, kernel, factors, target, options)
        found = read_candidates(kernel, factors, options.candidates, check)[: options.max_configs]
    else:
        found = propose(work, target, options.max_configs)
    configs = tuple(replace(c, fp_fusion=kernel.numerics == "fast") for c in found)
    space = (
        SearchSpace()
        if invariant
        else space_of(work, target, whole=_whole(factors, configs), configs=configs)
    )
    numbers = open_numbers(configs, space)
    mapping = outline(kernel, factors, numbers, options)
    limits = limits_between(numbers, configs, space)
    mapping = replace(mapping, directives=(*mapping.directives, *limits))
    return PlannedProduct(kernel=kernel, mapping=mapping, configs=configs, target=target)


def _check_launch(
    kernel: Kernel, factors: Factors, target: Target, options: TritonOptions, config: Config
) -> None:
    """Refuse a launch that is not legal, or has no text.

    Raises:
        VerifyError, EmitError: by the name of the directive.
    """
    mapping = outline(kernel, factors, open_numbers((config,), SearchSpace()), options)
    verify_mapping(kernel, mapping)
    check_product(kernel, factors, mapping, target)


def plan_given_product(
    kernel: Kernel, mapping: Mapping, target: Target, *, check: Callable[[Mapping], None], most: int
) -> PlannedProduct:
    """How `kernel`, which contracts, runs as `mapping` says, whoever chose that. `check` judges it, and each
    of its choices if it is open; of these `most` are the first.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    factors = factors_of(kernel)

    def check_choice(one: Mapping) -> None:
        check(one)
        check_product(kernel, factors, one, target)

    def launch(closed: Mapping) -> Config:
        numbers = parameters_of(kernel, factors, closed)
        return launch_config({name: chosen(number) for name, number in numbers.items()}, closed)

    check_choice(mapping)
    work = work_of(factors)
    found, configs = plan_choices(
        kernel,
        mapping,
        places=tuple(places_of(kernel, factors, mapping)),
        launch=launch,
        limits=lambda one, configs: space_of(work, target, whole={}, configs=configs).limits,
        check=check_choice,
        most=most,
    )
    return PlannedProduct(kernel=kernel, mapping=found, configs=configs, target=target)


def outline(
    kernel: Kernel, factors: Factors, numbers: MappingOf[str, Number], options: TritonOptions
) -> Mapping:
    """The product `kernel` in blocks, with `numbers` for the parameters of its launch."""
    rows, columns, others = (
        names_of(kernel, side) for side in (factors.rows, factors.columns, factors.others)
    )
    if options.index_dtype == "auto":
        numels = tuple(whole_sides(factors).values())
        wide = needs_64_bits(kernel, numels, [store.value for store in kernel.stores])
    else:
        wide = options.index_dtype == "i64"
    return Mapping(
        directives=(
            Tile(ranges=columns, by=numbers[BLOCKS["x"]]),
            Tile(ranges=rows, by=numbers[BLOCKS["y"]]),
            *([Tile(ranges=others, by=1)] if others else []),
            FlatGrid(),
            Order(ranges=(*rows, *columns), by=numbers[GROUP]),
            Loop(ranges=names_of(kernel, factors.axes), by=numbers[BLOCKS["r"]], stages=numbers[STAGES]),
            factors.unit,
            Warps(count=numbers[WARPS]),
            Index(dtype="i64") if wide else Index(dtype="i32", promised=options.index_dtype == "i32"),
            *([Contract()] if kernel.numerics == "fast" else []),
        )
    )


def _whole(factors: Factors, configs: tuple[Config, ...]) -> dict[str, Expr]:
    """The points of sides that all blocks divide, by letter."""
    return {
        letter: numel
        for letter, numel in whole_sides(factors).items()
        if letter != "z" and all(provably_divisible(numel, dict(c.meta)[BLOCKS[letter]]) for c in configs)
    }
