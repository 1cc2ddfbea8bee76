"""The numbers of a mapping as the parameters of a launch: each has a name, and its place in the kernel's
signature.

tile x0 by 1            XBLOCK
tile x1 by 16           YBLOCK: tiles are the axes of the grid, innermost first
loop r0 by 1024 stages 3    R0_BLOCK, STAGES
warps 4                 (what the launcher is told beside them)
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    Directive,
    Keep,
    Loop,
    Mapping,
    Number,
    Order,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Tile,
    Warps,
)
from coilwork_ir.mapping.numbers import values_of
from coilwork_triton.facts.kernel_analysis import is_ragged, roots_of
from coilwork_triton.launch.parameters import (
    BLOCKS,
    GROUP,
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    STAGES,
    WARPS,
    next_power_of_two,
)

# The parameters that directives' numbers are, by class and field; those of tiles follow from their order.
_FIELDS: Final[MappingOf[type[Directive], tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        Sequential: ((BLOCKS["w"], "by"), (STAGES, "stages")),
        Keep: ((BLOCKS["r"], "by"),),
        Loop: ((BLOCKS["r"], "by"), (STAGES, "stages")),
        Share: ((BLOCKS["r"], "by"),),
        Runs: ((RUN, "by"),),
        Sort: ((SORT_THREADS, "threads"), (SORT_WIDTH, "width")),
        Select: (
            (SORT_SHARE, "share"),
            (SORT_GROUPS, "groups"),
            (SORT_ROOM, "room"),
            (SORT_SPREAD, "spread"),
        ),
        Order: ((GROUP, "by"),),
        Warps: ((WARPS, "count"),),
    }
)
# A kernel's signature; that of a product is `contraction.shape.parameters_of`.
_SIGNATURE: Final = (
    *(BLOCKS[letter] for letter in "zyxwr"),
    STAGES,
    RUN,
    SORT_THREADS,
    SORT_WIDTH,
    SORT_SHARE,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SPREAD,
)


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a mapping that is the parameter `name` of a launch: in the field `field` of directive
    `at`.
    """

    name: str
    at: int
    field: str


def places_of(mapping: Mapping) -> Iterator[Place]:
    """The numbers of `mapping` that are parameters, in the order of its directives."""
    letters = iter("xyz")
    for at, one in enumerate(mapping.directives):
        if isinstance(one, Tile):
            letter = next(letters, None)
            if letter is not None:
                yield Place(BLOCKS[letter], at, "by")
        for name, field in _FIELDS.get(type(one), ()):
            yield Place(name, at, field)


def parameters_of(kernel: Kernel, mapping: Mapping) -> dict[str, Number]:
    """The parameters of `kernel` as `mapping` runs it, in the order of its signature."""
    found: dict[str, Number] = {}
    for place in places_of(mapping):
        found[place.name] = getattr(mapping.directives[place.at], place.field)
    share = mapping.find(Share)
    if share is not None:
        found[BLOCKS["r"]] = next_power_of_two(chosen(share.by))
    if STAGES in found and mapping.find(Loop) is not None and is_ragged(roots_of(kernel)):
        # a loop that data end has none: how many blocks are ahead is not known
        del found[STAGES]
    return {name: found[name] for name in _SIGNATURE if name in found}


def config_of(kernel: Kernel, mapping: Mapping) -> Config:
    """The configuration that launches `kernel` as the closed `mapping` says."""
    return launch_config(
        {name: chosen(number) for name, number in parameters_of(kernel, mapping).items()}, mapping
    )


def launch_config(meta: MappingOf[str, int], mapping: Mapping) -> Config:
    """The configuration with these parameters, and what the closed `mapping` says beside them."""
    warps = mapping.find(Warps)
    return Config(
        meta=tuple(meta.items()),
        num_warps=1 if warps is None else chosen(warps.count),
        num_stages=1,
        fp_fusion=mapping.find(Contract) is not None,
    )


def chosen(number: Number) -> int:
    """The one value of `number`.

    Raises:
        ValueError: it may have others.
    """
    found = set(values_of(number))
    if len(found) != 1:
        raise ValueError(f"{number} is not chosen")
    return found.pop()
