"""Rows in order: what is filled with a row's elements, sorted after the pass that does so, and read by later
ones.

```
for r: records[r] = record of element r and of its position
ordered = sort_records(records, spare, n)
for r: ... value of ordered[r], position of ordered[r]
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coilwork_cpp.planning.reduction_passes import Pass, count_read_elements
from coilwork_cpp.prelude.sort_functions import LONGEST_TOPK
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import get_value_type, get_word_type
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, find_bounds, get_extent, minimum
from coilwork_ir.scalar import Scalar, Sort
from coilwork_ir.syntax.cpp import Assign, Call, Code, Declare, Element, Literal, Name

# Bits of infinity, below which those of numbers lie.
_INFINITY: Final[Mapping[DType, str]] = {
    DType.F64: "0x7ff0000000000000ull",
    DType.F32: "0x7f800000u",
    DType.F16: "0x7c00",
    DType.BF16: "0x7f80",
}
_RECORD_BITS: Final = 64


def group_sorts(sorts: Iterable[Sort]) -> list[list[Sort]]:
    """`sorts` by what they have in order: values and positions of one row are two of them."""
    rows: dict[tuple[Scalar, bool, int], list[Sort]] = {}
    for sort in sorts:
        rows.setdefault((sort.operands[0], sort.descending, sort.topk), []).append(sort)
    return list(rows.values())


def record_type(sort: Sort) -> str:
    """Return the C++ type that holds a key, a position, and a bit for the sign of zero.

    Raises:
        EmitError: there are no keys for values of this type.
    """
    dtype = sort.operands[0].dtype
    if dtype.is_float and dtype not in _INFINITY:
        raise EmitError("sort", f"no C++ code for a sort of {dtype.text}")
    key_bits = 8 * dtype.itemsize
    if key_bits <= 16:
        return "u64"  # no memory holds a row with more positions than fit
    high = find_bounds(get_extent(sort.axis)).hi
    fits = high is not None and key_bits + high.bit_length() < _RECORD_BITS
    return "u64" if fits else "u128"


def fill_rows(point: Block, step: Pass, kept: Mapping[Scalar, Name], position: Code) -> None:
    """Put the elements at this point into the rows that `step` fills, as records."""
    for sort, *_ in group_sorts(step.sorts):
        point.add(Assign(Element(kept[sort], position), _encode_record(point, sort, position)))


def _encode_record(point: Block, sort: Sort, position: Code) -> Code:
    source = sort.operands[0]
    dtype, value = source.dtype, point.name_value(source)
    form = f"{record_type(sort)}, {_key_arguments(sort)}"
    if not dtype.is_float:
        # the type is said: a constant's literal is an int, which has a sign where the elements may have none
        return Call(f"integer_record<{form}, {get_value_type(dtype)}>", (value, position))
    bits = (
        value if dtype.is_low_precision else Call("__builtin_bit_cast", (Name(get_word_type(dtype)), value))
    )
    return Call(f"float_record<{form}>", (bits, Literal(_INFINITY[dtype]), position))


def _key_arguments(sort: Sort) -> str:
    """Return the type of keys, and whether they are in descending order."""
    return f"{get_word_type(sort.operands[0].dtype)}, {'true' if sort.descending else 'false'}"


def sort_rows(block: Block, step: Pass, kept: Mapping[Scalar, Name], passes: Sequence[Pass]) -> None:
    """Sort the rows that `step` filled, or find their first elements, if these are all that `passes` read."""
    for sort, *_ in group_sorts(step.sorts):
        records, key = kept[sort], get_word_type(sort.operands[0].dtype)
        row = (records, get_spare_name(records), block.index(get_extent(sort.axis)))
        first = count_read_elements(sort, passes)
        if sort.topk:
            _require_short_row(sort)
            in_order = Call(f"topk_records<{key}>", (*row, Literal(str(sort.topk))))
        elif first is None:
            in_order = Call(f"sort_records<{key}>", row)
        else:
            in_order = Call(f"first_records<{key}>", (*row, Literal(str(first))))
        block.add(Declare(f"const {record_type(sort)}* const", get_result_name(records).text, in_order))


def _require_short_row(sort: Sort) -> None:
    """Raise EmitError unless `topk_records` has room for the row."""
    longest = find_bounds(get_extent(sort.axis)).hi
    if longest is None or longest > LONGEST_TOPK:
        raise EmitError("sort", f"topk's choice among equals in rows of more than {LONGEST_TOPK} elements")


def get_spare_name(records: Name) -> Name:
    """Memory that sorting `records` needs."""
    return Name(f"{records.text}_spare")


def get_result_name(records: Name) -> Name:
    """Return the name of the array that holds `records` in order."""
    return Name(f"{records.text}_ordered")


def recall_rows(point: Block, step: Pass, kept: Mapping[Scalar, Name], position: Code) -> None:
    """Make known what earlier passes sorted."""
    for sort in step.finished_sorts:
        point.known[sort] = _decode_record(sort, Element(get_result_name(kept[sort]), position))


def _decode_record(sort: Sort, record: Code) -> Code:
    dtype = sort.operands[0].dtype
    if sort.output == 1:
        return Call(f"record_position<{get_word_type(dtype)}>", (record,))
    if not dtype.is_float:
        return Call(f"integer_value<{get_value_type(dtype)}, {_key_arguments(sort)}>", (record,))
    bits = Call(f"float_bits<{_key_arguments(sort)}>", (record,))
    return bits if dtype.is_low_precision else Call("__builtin_bit_cast", (Name(get_value_type(dtype)), bits))


def count_spare_records(sort: Sort, passes: Sequence[Pass]) -> Expr:
    """Return the number of records that sorting needs beside a row's; see `first_records`."""
    length, first = get_extent(sort.axis), count_read_elements(sort, passes)
    return length if first is None else minimum(length, max(2 * first, 32) + 32)
