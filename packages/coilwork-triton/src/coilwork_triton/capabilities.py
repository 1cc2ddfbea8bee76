"""What the kernels of this generator can do, and how they go through rows: `capabilities_of`."""

from __future__ import annotations

from typing import Final

from coilwork_ir.capabilities import Capabilities, RowWalks, Sorting
from coilwork_ir.target import Target

# All of it was measured on an H200, and holds for the GPUs that Triton compiles for.
_ROWS: Final = RowWalks(
    kept_bytes=65536,
    kept_across=512,
    # whole sectors of memory
    columns=32,
    loop_row=8192,
    loop_threads=512,
    loop_elements=8,
    loop_sums=64,
    loop_values=112,
)
_SORTING: Final = Sorting(
    longest=4096,
    most_bytes=4,
    # digits sort longer ones faster, in passes through memory
    longest_whole=2048,
    # a program has a row to itself, which takes too long if rows are few
    short=512,
    many=8,
)
_CAPABILITIES: Final = Capabilities(
    rows=_ROWS, sorting=_SORTING, shares_rows=True, contracts=True, combines=True, versions_by_size=True
)


def capabilities_of(target: Target) -> Capabilities:
    """What kernels for `target`, a GPU, can do."""
    return _CAPABILITIES
