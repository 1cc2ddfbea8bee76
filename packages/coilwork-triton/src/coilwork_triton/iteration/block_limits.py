"""Refuse blocks that a program cannot hold: elements of a thread, and bytes of shared memory.

Triton writes out the code of every element of a thread, so a large block of few threads compiles for hours. A
block is in shared memory while it changes hands between threads, and while a loop has it brought ahead; a GPU
does not launch what takes more than there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from coilwork_ir.index import Expr, as_expr, find_stride
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Keep, Loop, Mapping, Sequential, Share, Tile, Warps
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.facts.vectorization import Access, list_accesses

# Code of 512 elements takes minutes to compile, and no proposal has more than 128.
_MOST_PER_THREAD: Final = 256
# Triton's, where a mapping names none.
_WARPS: Final = 4

Walk = Tile | Sequential | Keep | Loop | Share
Axis = tuple[frozenset[Expr], int]


def explain_oversized_blocks(
    kernel: Kernel, mapping: Mapping, walks: Sequence[Walk], target: Target
) -> Iterator[tuple[str, str]]:
    """Yield keywords of directives whose blocks a program of `kernel` cannot hold, each with a reason. Of
    open numbers some choice is right.
    """
    warps = mapping.find(Warps)
    threads = target.warp_size * (_WARPS if warps is None else max(list_values(warps.count)))
    sizes = [min(list_values(one.by)) for one in walks]
    points = prod(sizes)
    if points > threads * _MOST_PER_THREAD:
        largest = max(zip(sizes, walks, strict=True), key=lambda pair: pair[0])[1]
        yield (
            largest.keyword(),
            f"{points} points are more than {_MOST_PER_THREAD} for each of {threads} threads",
        )
    ranges = {r.symbol.name: r.symbol for r in kernel.ranges}
    axes = [
        (frozenset(ranges[name] for name in one.ranges if name in ranges), size)
        for one, size in zip(walks, sizes, strict=True)
        if size > 1
    ]
    accesses = list_accesses(kernel, list_roots(kernel))
    moved = _count_moved_bytes(axes, accesses)
    room = target.shared_memory_bytes
    if moved > room:
        yield walks[-1].keyword(), f"a block that is turned takes {moved} bytes of {room} of shared memory"
    loop = mapping.find(Loop)
    stages = 1 if loop is None else min(list_values(loop.stages))
    if loop is not None and stages > 1:
        rows = {ranges[name] for name in loop.ranges if name in ranges}
        ahead = (stages - 1) * sum(
            one.itemsize * _count_points(axes, one)
            for one in accesses
            if not one.store and not rows.isdisjoint(one.index.free_symbols)
        )
        if moved + ahead > room:
            yield "loop", f"{stages} stages take {moved + ahead} bytes of {room} of shared memory"


def _count_points(axes: Sequence[Axis], access: Access) -> int:
    return prod(size for symbols, size in axes if not symbols.isdisjoint(access.index.free_symbols))


def _count_moved_bytes(axes: Sequence[Axis], accesses: Sequence[Access]) -> int:
    """Return the bytes of a whole block that is accessed along one axis here, and along another one there."""
    whole = [
        one for one in accesses if all(not symbols.isdisjoint(one.index.free_symbols) for symbols, _ in axes)
    ]
    inner = {
        position
        for one in whole
        for position, (symbols, _) in enumerate(axes)
        if any(find_stride(one.index, symbol) is as_expr(1) for symbol in symbols)
    }
    if len(inner) < 2:
        return 0
    return prod(size for _, size in axes) * max(one.itemsize for one in whole)
