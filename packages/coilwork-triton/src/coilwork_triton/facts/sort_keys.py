"""The integers that stand for values in a sort: which types have them, and how wide they are."""

from __future__ import annotations

from typing import Final, Literal

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError

Family = Literal["half", "float", "short", "word"]
# Positions have 15 bits of a key.
LONGEST_ROW: Final = 1 << 15


def family(dtype: DType) -> Family:
    """The device functions that make keys of values of `dtype`.

    Raises:
        EmitError: there are none.
    """
    if dtype in (DType.BF16, DType.F16):
        return "half"
    if dtype is DType.F32:
        return "float"
    if dtype.is_bool or (dtype.is_integer and dtype.itemsize <= 2):
        return "short"
    if dtype.is_integer and dtype.itemsize == 4:
        return "word"
    raise EmitError("sort-type", f"no sort of {dtype.text} in registers", remedy="run it as an external call")


def key_bytes(dtype: DType) -> int:
    """Size of a key: of the order of a value and its position."""
    return 4 if family(dtype) in ("half", "short") else 8
