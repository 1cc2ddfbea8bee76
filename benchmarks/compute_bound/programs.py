"""All cases, by mode and name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.compute_bound import attention, layers, narrow, products, training
from benchmarks.compute_bound.case import Case

KINDS: Final = MappingProxyType(
    {
        "products": products.CASES,
        "narrow": narrow.CASES,
        "training": training.CASES,
        "attention": attention.CASES,
        "layers": layers.CASES,
    }
)

CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {f"{case.mode}:{case.name}": case for cases in KINDS.values() for case in cases}
)
