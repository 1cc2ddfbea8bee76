"""The numbers of a mapping as the parameters of a launch: each has a name, and its place in the kernel's signature.

tile x0 by 1            XBLOCK
tile x1 by 16           YBLOCK: tiles are the axes of the grid, innermost first
loop r0 by 1024 stages 3    R0_BLOCK, STAGES
warps 4                 (what the launcher is told beside them)
"""

from __future__ import annotations

from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    Keep,
    Loop,
    Mapping,
    Number,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Tile,
    Warps,
    find_all,
)
from coilwork_ir.mapping.numbers import values_of
from coilwork_triton.facts.kernel_analysis import roots_of
from coilwork_triton.facts.ragged import is_ragged
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
    next_power_of_two,
)


def parameters_of(kernel: Kernel, mapping: Mapping) -> dict[str, Number]:
    """The parameters of `kernel` as `mapping` runs it, in the order of its signature."""
    tiles = tuple(find_all(mapping.directives, Tile))
    found: dict[str, Number] = {
        BLOCKS[letter]: tile.by for letter, tile in reversed(list(zip("xyz", tiles, strict=False)))
    }
    walked, loop = mapping.find(Sequential), mapping.find(Loop)
    keep, share = mapping.find(Keep), mapping.find(Share)
    if walked is not None:
        found[BLOCKS["w"]] = walked.by
    if keep is not None:
        found[BLOCKS["r"]] = keep.by
    if loop is not None:
        found[BLOCKS["r"]] = loop.by
    if share is not None:
        found[BLOCKS["r"]] = next_power_of_two(chosen(share.by))
    if walked is not None:
        found[STAGES] = walked.stages
    if loop is not None and not is_ragged(roots_of(kernel)):
        # a loop that data end has none: how many blocks are ahead is not known
        found[STAGES] = loop.stages
    runs, sort, select = mapping.find(Runs), mapping.find(Sort), mapping.find(Select)
    if runs is not None:
        found[RUN] = runs.by
    if sort is not None:
        found |= {SORT_THREADS: sort.threads, SORT_WIDTH: sort.width}
    if select is not None:
        names = (SORT_SHARE, SORT_GROUPS, SORT_ROOM, SORT_SPREAD)
        found |= dict(zip(names, (select.share, select.groups, select.room, select.spread), strict=True))
    return found


def config_of(kernel: Kernel, mapping: Mapping) -> Config:
    """The configuration that launches `kernel` as the closed `mapping` says."""
    warps = mapping.find(Warps)
    return Config(
        meta=tuple((name, chosen(number)) for name, number in parameters_of(kernel, mapping).items()),
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
