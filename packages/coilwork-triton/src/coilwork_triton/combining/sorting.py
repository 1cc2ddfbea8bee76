"""How a sort of a row that stays in registers is written: keys from values, a network, values and positions
from keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.syntax.python import Call, Expression, Name, Number
from coilwork_triton.facts.kernel_analysis import family, key_bytes
from coilwork_triton.launch.parameters import (
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
)
from coilwork_triton.text.language import tl, tl_name
from coilwork_triton.text.types import extents, triton_type
from coilwork_triton.text.writer import Writer

# Greater than all keys.
_LARGEST: Final[Mapping[int, int]] = MappingProxyType({4: (1 << 31) - 1, 8: 1 << 50})


@dataclass(frozen=True, slots=True, kw_only=True)
class SortSite:
    """One sort of a kernel: `value`, of which every row of blocks of extents `shape` is sorted along the last
    axis.

    `positions` is a block with the position along that axis, `valid` is true where it lies in range, and
    `rows` in lanes that are rows. With `count`, a power of two, only so many of each row are wanted, in
    blocks of extents `first`. With `floats`, keys of 64 bits are compared as floats are.
    """

    dtype: DType
    descending: bool
    value: Expression
    positions: Expression
    valid: Expression | None
    rows: Expression | None
    shape: tuple[str, ...]
    count: int | None
    floats: bool
    first: tuple[str, ...]


def sorted_row(site: SortSite, writer: Writer) -> tuple[Expression, Expression]:
    """The values in order, and the positions where they were."""
    kind = family(site.dtype)
    falls = Number(site.descending)
    key, value = writer.device(f"sort_key_{kind}"), writer.device(f"sorted_{kind}")
    # behind the end of the row
    largest = Number(_LARGEST[key_bytes(site.dtype)])
    dtype = tl_name("int1") if site.dtype.is_bool else triton_type(site.dtype)
    wide = site.floats and key_bytes(site.dtype) == 8
    length, spread = Name(site.shape[-1]), (Name(SORT_THREADS), Name(SORT_WIDTH))
    if site.count is not None:
        valid = Name("None") if site.valid is None else site.valid
        rows: Expression = Name("None")
        if site.rows is not None:
            rows = tl("broadcast_to", site.rows, extents((*site.shape[:-1], "1")))
        what = (site.value, site.positions, valid, rows, key, value, dtype, Number(wide), largest, falls)
        how = (*spread, Name(SORT_SHARE), Name(SORT_GROUPS), Name(SORT_ROOM), Name(SORT_SPREAD))
        found = Call(writer.device("sort_first"), (*what, length, Number(site.count), *how))
        values, positions = writer.bind_all(("firsts", "places"), found)
        first = extents(site.first)
        return tl("reshape", values, first), tl("reshape", positions, first)
    keys: Expression = Call(key, (site.value, site.positions, falls))
    if site.valid is not None:
        keys = tl("where", site.valid, keys, largest)
    if wide:
        keys = Call(writer.device("sort_float_keys"), (keys,))
    ordered: Expression = Call(writer.device("sort_rows"), (writer.bind("keys", keys), length, *spread))
    if wide:
        ordered = Call(writer.device("sort_integer_keys"), (ordered,))
    keys = writer.bind("ordered", ordered)
    return Call(value, (keys, dtype, falls)), Call(writer.device("sorted_position"), (keys,))
