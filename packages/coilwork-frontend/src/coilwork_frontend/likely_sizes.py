"""How large open sizes are likely to be: up to the power of two that follows those that a graph was traced with.

What is fused, into how many pieces sums are cut and how kernels walk rows follows from sizes. Where they are open, those of the
call that had the graph compiled are the best guess. Calls of other sizes compute the same; only a choice that was right
for the first may be less so for them. Rounding has calls of about one size share what a cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from coilwork_frontend.torch_compat.sizes import traced_values
from coilwork_ir.index import Expr

# Elements in rows of which all begin at multiples of 16 bytes, whatever their type.
_WHOLE: Final = 16


def likely_sizes(
    symbols: Iterable[tuple[Expr, object]], gm: torch.fx.GraphModule
) -> tuple[tuple[str, int], ...]:
    """Names of size symbols in the IR and their likely values. `symbols` are pairs of one and torch's symbol in `gm`.

    Those that data decides have none.
    """
    pairs = list(symbols)
    if not pairs:
        return ()
    traced = traced_values(gm)
    return tuple((ours.name, rounded(traced[theirs])) for ours, theirs in pairs if theirs in traced)


def likely_texts(gm: torch.fx.GraphModule) -> list[str]:
    """What `likely_sizes` can say of the symbols in `gm`, as sorted texts."""
    return sorted(f"{name} ~ {rounded(value)}" for name, value in traced_values(gm).items())


def rounded(size: int) -> int:
    """The largest number up to the power of two from `size` on that is, like `size`, a multiple of 16, or else of 8, 4, 2 or 1 alone.

    At most 1 stays what it is.
    """
    if size <= 1:
        return size
    power = 1 << (size - 1).bit_length()
    odd = size & -size
    return power if power == size or odd >= _WHOLE else power - odd
