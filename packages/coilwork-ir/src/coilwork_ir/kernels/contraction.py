"""Kernels that are one contraction, and what becomes of its sums: those that matrix units may compute.

Nothing in a kernel says so: it is a sum of products like any other, and one that is not computed by matrix units has the same
results. A mapping says by what it is computed.
"""

from __future__ import annotations

from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.roots import kernel_roots
from coilwork_ir.scalar import Contraction, Reduce, const, contraction_in, range_symbols, rewrite


def find_contraction(kernel: Kernel) -> tuple[Reduce, Contraction] | None:
    """The one reduction of `kernel`, as a contraction; None unless all else varies along parallel ranges only.

    None, too, where an output may lie where an input does: threads of a matrix unit do not load, in the layout of a
    product's results, just the elements that they store.
    """
    roots = kernel_roots(kernel)
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    others = frozenset(r.symbol for r in kernel.ranges if r.kind != "parallel")
    found = None if kernel.aliasing else contraction_in(roots, parallel)
    if found is None or frozenset(found[0].axes) != others:
        return None
    node, _ = found
    # what remains once the sums are known
    rest = rewrite(roots, lambda value: const(0.0, value.dtype) if value is node else value)
    touched = range_symbols(rest).union(*(store.index.free_symbols for store in kernel.stores))
    return found if touched.isdisjoint(others) else None
