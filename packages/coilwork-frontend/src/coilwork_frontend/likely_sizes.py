"""How large open sizes are likely to be: up to the power of two that follows those that a graph was traced
with.

What is fused, into how many pieces sums are cut and how kernels walk rows follows from sizes. Where they are
open, those of the call that had the graph compiled are the best guess. Calls of other sizes compute the same;
only a choice that was right for the first may be less so for them. Rounding has calls of about one size share
what a cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch

from coilwork_frontend.torch_compat.sizes import list_traced_values
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.program.nodes import Launch, Program
from coilwork_ir.program.walk import all_kernels, walk

# Elements in rows of which all begin at multiples of 16 bytes, whatever their type.
_ALIGNED_ELEMENTS: Final = 16


def list_likely_sizes(
    symbols: Iterable[tuple[Expr, object]], gm: torch.fx.GraphModule
) -> tuple[tuple[str, int], ...]:
    """Names of size symbols in the IR and their likely values. `symbols` are pairs of one and torch's symbol
    in `gm`.

    Those that data decides have none.
    """
    pairs = list(symbols)
    if not pairs:
        return ()
    traced = list_traced_values(gm)
    return tuple((ours.name, round_size(traced[theirs])) for ours, theirs in pairs if theirs in traced)


def list_likely_arguments(program: Program, known: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Return what kernels of `program` are likely called with, by name: one number for each size, 0 if it is
    unknown.

    `known` are size symbols by name and what they likely are. Of several calls the first one decides. Kernels
    are left out of whose sizes nothing is known.
    """
    values = dict(known)
    found: dict[str, tuple[int, ...]] = {}
    for part in walk(program):
        for instruction in part.instructions:
            if isinstance(instruction, Launch) and instruction.kernel not in found:
                found[instruction.kernel] = tuple(_argument(size, values) for size in instruction.sizes)
    combined = {kernel.name for kernel in all_kernels(program) if kernel.combined is not None}
    return {name: sizes for name, sizes in found.items() if any(sizes) and name not in combined}


def _argument(size: Expr, values: Mapping[str, int]) -> int:
    names = {symbol.name for symbol in size.free_symbols}
    # a number is one call's: calls that differ in it share a kernel
    return evaluate(size, dict(values)) if names and names <= values.keys() else 0


def describe_likely_sizes(gm: torch.fx.GraphModule) -> list[str]:
    """Return what `likely_sizes` can say of the symbols in `gm`, as sorted texts."""
    return sorted(f"{name} ~ {round_size(value)}" for name, value in list_traced_values(gm).items())


def round_size(size: int) -> int:
    """The largest number up to the power of two from `size` on that is, like `size`, a multiple of 16, or
    else of 8, 4, 2 or 1 alone.

    At most 1 stays what it is.
    """
    if size <= 1:
        return size
    power = 1 << (size - 1).bit_length()
    odd = size & -size
    return power if power == size or odd >= _ALIGNED_ELEMENTS else power - odd
