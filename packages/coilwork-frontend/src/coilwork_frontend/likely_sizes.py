"""Estimate open sizes: the sizes that a graph was traced with, rounded up towards a power of two.

Fusion, splits of reductions and tiles depend on sizes. Where a size is open, that of the call that had the
graph compiled is the best guess. Other sizes give the same results, perhaps with a slower choice. Because of
the rounding, calls of similar sizes share a cache entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch

from coilwork_frontend.torch_compat.sizes import list_traced_values
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.program.nodes import Launch, Program
from coilwork_ir.program.walk import list_kernels, walk

# Rows of a multiple of so many elements start at multiples of 16 bytes, whatever their dtype.
_ALIGNED_ELEMENTS: Final = 16


def list_likely_sizes(
    symbols: Iterable[tuple[Expr, object]], gm: torch.fx.GraphModule
) -> tuple[tuple[str, int], ...]:
    """Return names of size symbols in the IR with their likely values; unbacked symbols have none.

    `symbols` are pairs of a symbol of the IR and torch's symbol in `gm`.
    """
    pairs = list(symbols)
    if not pairs:
        return ()
    traced = list_traced_values(node.meta.get("val") for node in gm.graph.nodes)
    return tuple((ours.name, round_size(traced[theirs])) for ours, theirs in pairs if theirs in traced)


def list_likely_arguments(program: Program, known: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Return likely size arguments of the kernels of `program`, by kernel: one number per size, 0 if unknown.

    `known` are names of size symbols with their likely values. The first of several launches of a kernel
    counts. Kernels without a known size are left out.
    """
    values = dict(known)
    arguments: dict[str, tuple[int, ...]] = {}
    for part in walk(program):
        for instruction in part.instructions:
            if isinstance(instruction, Launch) and instruction.kernel not in arguments:
                arguments[instruction.kernel] = tuple(_argument(size, values) for size in instruction.sizes)
    combined = {kernel.name for kernel in list_kernels(program) if kernel.combined is not None}
    return {name: sizes for name, sizes in arguments.items() if any(sizes) and name not in combined}


def _argument(size: Expr, values: Mapping[str, int]) -> int:
    names = {symbol.name for symbol in size.free_symbols}
    # a size that is a number in one call may differ in another call of the same kernel
    return evaluate(size, dict(values)) if names and names <= values.keys() else 0


def describe_likely_sizes(values: Iterable[object]) -> list[str]:
    """Return the likely values of all symbols in `values`, as sorted texts."""
    return sorted(f"{name} ~ {round_size(value)}" for name, value in list_traced_values(values).items())


def round_size(size: int) -> int:
    """Round `size` up to the next power of two, but keep its largest power-of-two divisor if below 16.

    A size that is a multiple of 8 and not of 16, for example, becomes the power of two minus 8. 0 and 1 stay.
    """
    if size <= 1:
        return size
    power = 1 << (size - 1).bit_length()
    odd = size & -size
    return power if power == size or odd >= _ALIGNED_ELEMENTS else power - odd
