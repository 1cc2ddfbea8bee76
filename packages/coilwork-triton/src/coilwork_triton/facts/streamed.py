"""Tensors that pass through the second-level cache: larger than it, and read once by a kernel.

Their lines are the first to be evicted, so that others stay: what the kernel writes, or reads again, and what kernels before it left
there, of which some has yet to be written to memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coilwork_ir.index import as_int, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, Scalar, postorder
from coilwork_ir.target import Target
from coilwork_triton.iteration.tiles import extent_of


def streamed(kernel: Kernel, roots: Sequence[Scalar], target: Target) -> frozenset[str]:
    """The arguments of `kernel` that it reads once, element by element, and that `target`'s cache does not hold."""
    loads = [node for node in postorder(tuple(roots)) if isinstance(node, Load)]
    times = Counter(node.buffer for node in loads)
    once = {node.buffer: node for node in loads if times[node.buffer] == 1 and not node.indirect}
    extents = {r.symbol: extent_of(r) for r in kernel.ranges}
    found = set[str]()
    for argument in kernel.args:
        node, span = once.get(argument.name), as_int(argument.span)
        if argument.role != "in" or node is None or span is None:
            continue
        others = product(e for r, e in extents.items() if r not in node.index[0].free_symbols)
        if as_int(others) == 1 and span * argument.dtype.itemsize > target.l2_bytes:
            found.add(argument.name)
    return frozenset(found)
