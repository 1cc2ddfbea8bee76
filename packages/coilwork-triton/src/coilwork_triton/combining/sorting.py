"""How a sort of a row that stays in registers is written: keys from values, a network, values and positions from keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_triton.facts.sort_keys import family, key_bytes
from coilwork_triton.launch.parameters import SORT_KEPT, SORT_SHARE, SORT_THREADS, SORT_WIDTH
from coilwork_triton.text.tree import Call, Expression, Name, Number, Tuple, tl, tl_name
from coilwork_triton.text.types import triton_type
from coilwork_triton.text.writer import Writer

# Greater than all keys.
_LARGEST: Final[Mapping[int, int]] = MappingProxyType({4: (1 << 31) - 1, 8: 1 << 50})


@dataclass(frozen=True, slots=True, kw_only=True)
class SortSite:
    """One sort of a kernel: `value`, of which every row of blocks of extents `shape` is sorted along the last axis.

    `positions` is a block with the position along that axis, `valid` is true where it lies in range. With `count`, a power
    of two, only so many of each row are wanted, in blocks of extents `first`. With `floats`, keys of 64 bits are compared as
    floats are.
    """

    dtype: DType
    descending: bool
    value: Expression
    positions: Expression
    valid: Expression | None
    shape: tuple[str, ...]
    count: int | None
    floats: bool
    first: tuple[str, ...]


def sorted_row(site: SortSite, writer: Writer) -> tuple[Expression, Expression]:
    """The values in order, and the positions where they were."""
    kind = family(site.dtype)
    falls = Number(site.descending)
    keys: Expression = Call(writer.device(f"sort_key_{kind}"), (site.value, site.positions, falls))
    if site.valid is not None:
        # behind the end of the row
        keys = tl("where", site.valid, keys, Number(_LARGEST[key_bytes(site.dtype)]))
    wide = site.floats and key_bytes(site.dtype) == 8
    if wide:
        keys = Call(writer.device("sort_float_keys"), (keys,))
    found = writer.bind("keys", keys)
    length, spread = Name(site.shape[-1]), (Name(SORT_THREADS), Name(SORT_WIDTH))
    if site.count is None:
        ordered: Expression = Call(writer.device("sort_rows"), (found, length, *spread))
    else:
        arguments = (found, length, Number(site.count), *spread, Name(SORT_SHARE), Name(SORT_KEPT))
        ordered = tl("reshape", Call(writer.device("sort_first"), arguments), _extents(site.first))
    if wide:
        ordered = Call(writer.device("sort_integer_keys"), (ordered,))
    keys = writer.bind("ordered", ordered)
    dtype = tl_name("int1") if site.dtype.is_bool else triton_type(site.dtype)
    values = Call(writer.device(f"sorted_{kind}"), (keys, dtype, falls))
    return values, Call(writer.device("sorted_position"), (keys,))


def _extents(shape: tuple[str, ...]) -> Expression:
    return Tuple(tuple(Number(int(s)) if s.isdigit() else Name(s) for s in shape))
