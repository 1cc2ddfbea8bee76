"""How fast products of matrices run: measured on an H200, read by whoever weighs one way of computing a product against another.

Rates are floating point operations, an addition and a multiplication for each term, per microsecond of large products of 16-bit
floats. What decides in a library is of how many numbers the sizes that are consecutive in memory are a multiple: kernels for matrix
units read and write rows by vectors of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

VECTOR_BYTES: Final = 16
"""What kernels for matrix units read at once. Rows that start between vectors are read by others, several times slower."""

HALVES_PER_VECTOR: Final = VECTOR_BYTES // 2
"""Numbers of 16 bits in a vector: sizes that are a multiple of it are whole vectors."""

SKINNY: Final = 64
"""Rows, or columns, up to which a product is bound by reading the other factor."""

ALIGNED_RATE: Final = 7.2e8
"""Of a library, where sizes are whole vectors: 8192 x 768 x 50264 in bf16."""

UNALIGNED_RATES: Final[Mapping[int, float]] = MappingProxyType({1: 9.5e7, 2: 1.8e8, 4: 3.6e8})
"""Of a library, where a size that decides is a multiple of so many numbers and no more: of 1 and 2 measured with sizes 50257 and
30522, of 4 in proportion."""

KERNEL_RATE: Final = 5.2e8
"""Of a generated kernel, whatever the columns of its result are a multiple of."""
