"""What the kernels of this generator can do, and how they go through rows: `capabilities_of`."""

from __future__ import annotations

from coilwork_ir.target import Capabilities, RowWalks, Sorting, Target


def capabilities_of(target: Target) -> Capabilities:
    """Return what kernels for `target`, a CPU, can do."""
    return Capabilities(
        # nothing is kept, but a row is read again at no cost from the share of the cache that a core has
        rows=RowWalks(kept_bytes=target.l2_bytes // target.multiprocessors),
        sorting=Sorting(longest=None, most_bytes=8),
        cuts_rows=True,
        opens_extents=True,
        takes_candidates=True,
    )
