"""How fast products of matrices run, for who has no target at hand: an H200's figures (`coilwork_ir.machine`).

What weighs layouts before targets are known reads it. What has a target asks `target.machine.products`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.machine import TUNING, read_model

_H200: Final = read_model(TUNING / "sm_90.toml").products

VECTOR_BYTES: Final = _H200.vector_bytes
"""What kernels for matrix units read at once. Rows that start between vectors are read by others, several times slower."""

HALVES_PER_VECTOR: Final = _H200.halves_per_vector
"""Numbers of 16 bits in a vector: sizes that are a multiple of it are whole vectors."""

ALIGNED_RATE: Final = 7.2e8
"""Of a library, where sizes are whole vectors, in operations per microsecond: 8192 x 768 x 50264 in bf16."""

UNALIGNED_RATES: Final[Mapping[int, float]] = MappingProxyType(
    {multiple: _H200.unaligned_rate(multiple) for multiple in (1, 2, 4)}
)
"""Of a library, where a size that decides is a multiple of so many numbers and no more."""
