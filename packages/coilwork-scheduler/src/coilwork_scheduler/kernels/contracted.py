"""Which kernels to be are contractions."""

from __future__ import annotations

from coilwork_ir.scalar import const, contraction_in, range_symbols, rewrite
from coilwork_scheduler.kernels.accesses import scalars_of
from coilwork_scheduler.kernels.compose import Draft


def is_contraction(draft: Draft) -> bool:
    """Whether the kernel `draft` is one contraction, and what becomes of its sums at the same points."""
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
