"""Cases of the other families once more, of which all sizes are left open: `torch.compile(...,
dynamic=True)`.

Called with the sizes that they were compiled for, and with others: a little less, no multiples of anything,
and far more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from benchmarks.memory_bound.case import Case

# Few long rows, sums over all or over columns, rows that stay on chip where their length is known, and what
# has no reduction.
_NAMES: Final = (
    "softmax 4096x8192",
    "softmax 64x262144 f32",
    "cross-entropy fwd+bwd 8192x50304",
    "layer norm fwd+bwd 16384x4096",
    "RMS norm fwd+bwd 16384x4096",
    "batch norm fwd+bwd NCHW 256x64x56x56",
    "sum of 64M f32",
    "column sums 16384x4096",
    "row sums 4000000x32",
    "argmax 8192x32768",
    "pointwise chain 16384x4096",
    "x + y.t() 8192x8192",
)


def with_open_sizes(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return those of `cases` that are tried with open sizes, as cases of their own."""
    return tuple(
        replace(case, name=f"{case.name}, open sizes", set="open", dynamic=True)
        for case in cases
        if case.name in _NAMES
    )


def with_other_sizes(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return those of `cases` that are tried with open sizes, called with sizes unlike those that they are
    compiled for.

    And, beside those, with such sizes known.
    """
    chosen = [case for case in cases if case.name in _NAMES]
    odd = [
        replace(
            case,
            name=f"{case.name}, each size 3 less",
            set="unlike",
            dynamic=True,
            traced=case.size,
            size=tuple(map(_less, case.size)),
        )
        for case in chosen
    ]
    known = [
        replace(
            case,
            name=f"{case.name}, each size 3 less and known",
            set="unlike",
            size=tuple(map(_less, case.size)),
        )
        for case in chosen
    ]
    grown = [
        replace(
            case,
            name=f"{case.name}, compiled for quarters",
            set="unlike",
            dynamic=True,
            traced=tuple(map(_quarter, case.size)),
        )
        for case in chosen
    ]
    return (*odd, *known, *grown)


def _less(number: int) -> int:
    return number - 3 if number > 8 else number


def _quarter(number: int) -> int:
    return number // 4 if number >= 256 else number
