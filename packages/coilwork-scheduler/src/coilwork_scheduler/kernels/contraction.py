"""Kernels that are one contraction: which drafts are, and the sum as matrix units take it."""

from __future__ import annotations

from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import kernel_roots, replace_roots
from coilwork_ir.scalar import const, range_symbols, rewrite
from coilwork_scheduler.contractions.known import contraction_in
from coilwork_scheduler.kernels.accesses import scalars_of
from coilwork_scheduler.kernels.compose import Draft


def is_contraction(draft: Draft) -> bool:
    """True if the kernel `draft` is one contraction, and what becomes of its sums at the same points."""
    scalars = scalars_of(draft)
    found = contraction_in(scalars, draft.parallel)
    if found is None or draft.walked or draft.bound is not None:
        return False
    node, _ = found
    if frozenset(node.axes) != frozenset(draft.reduced):
        return False
    # what remains once the sums are known
    rest = rewrite(scalars, lambda value: const(0.0, value.dtype) if value is node else value)
    touched = range_symbols(rest).union(*(store.index.free_symbols for store in draft.stores))
    return touched.isdisjoint(draft.reduced)


def contract_kernel(kernel: Kernel) -> Kernel:
    """`kernel`, whose draft is a contraction, with a contraction in the place of its sum of products.

    The factor of the outermost rows or columns in the kernel's order of ranges is the left one.
    """
    roots = kernel_roots(kernel)
    found = contraction_in(roots, [r.symbol for r in kernel.ranges if r.kind == "parallel"])
    if found is None:
        return kernel
    node, factors = found
    return replace_roots(kernel, rewrite(roots, lambda value: factors.node if value is node else value))
