"""Tensors that pass through the second-level cache: larger than it, and read once by a kernel that writes
little.

Their lines are the first to be evicted, so that what kernels before left in the cache stays there: some of it
has yet to be written to memory, which takes time from reading. On an H200 sums of columns of 134 MB take 38.4
us instead of 42.3 after a kernel that filled the cache with zeros. But reading so is a few percent slower:
537 MB take 134.8 us instead of 128.8, and kernels that write as much as they read take up to 7 % longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coilwork_ir.index import as_int, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, Scalar, Sort, postorder
from coilwork_ir.target import Target


def streamed(kernel: Kernel, roots: Sequence[Scalar], target: Target) -> frozenset[str]:
    """The arguments of `kernel` that it reads once, element by element, and whose lines had better not stay
    in `target`'s cache.
    """
    memory = target.machine.memory
    size = {a.name: (as_int(a.span) or 0) * a.dtype.itemsize for a in kernel.args}
    read = sum(size[a.name] for a in kernel.args if a.role == "in")
    written = sum(size[a.name] for a in kernel.args if a.role != "in")
    if read > memory.streamed_caches * target.l2_bytes or written > memory.streamed_written_share * read:
        return frozenset()
    values = tuple(postorder(tuple(roots)))
    if any(isinstance(node, Sort) for node in values):
        # memory is not what sorts wait for
        return frozenset()
    loads = [node for node in values if isinstance(node, Load)]
    times = Counter(node.buffer for node in loads)
    extents = {r.symbol: r.extent for r in kernel.ranges}
    found = set[str]()
    for node in loads:
        if times[node.buffer] > 1 or node.indirect or size[node.buffer] <= target.l2_bytes:
            continue
        others = product(e for r, e in extents.items() if r not in node.index[0].free_symbols)
        if as_int(others) == 1:
            found.add(node.buffer)
    return frozenset(found)
