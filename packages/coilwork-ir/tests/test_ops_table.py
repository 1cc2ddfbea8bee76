"""The op tables are well formed, and cannot be changed."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS, STORE_MODES
from coilwork_ir.scalar import const, op

EXAMPLES = {
    "any": (DType.F32, DType.I64, DType.BOOL),
    "number": (DType.F32, DType.I32, DType.U8),
    "float": (DType.F32, DType.F64),
    "integer": (DType.I64, DType.U8),
    "bits": (DType.I32, DType.BOOL),
    "bool": (DType.BOOL,),
}


@pytest.mark.parametrize("name", SCALAR_OPS)
def test_each_row_of_the_table_of_ops_is_consistent(name: str) -> None:
    row = SCALAR_OPS[name]
    assert row.name == name and name.isidentifier()
    assert 1 <= row.arity <= 3 and row.cost >= 1 and row.doc
    assert (row.rule == "select") == (name == "where")
    assert (row.rule in ("cast", "bitcast")) == (name in ("cast", "bitcast"))


@pytest.mark.parametrize("name", [n for n, r in SCALAR_OPS.items() if r.rule in ("same", "compare", "test")])
def test_result_types_follow_the_rule(name: str) -> None:
    row = SCALAR_OPS[name]
    for dtype in EXAMPLES[row.accepts]:
        value = op(name, *[const(1, dtype)] * row.arity)
        assert value.dtype is (dtype if row.rule == "same" else DType.BOOL)


def test_reductions_name_their_results() -> None:
    for name, row in REDUCE_OPS.items():
        assert row.name == name
        assert row.outputs == len(row.output_names) and row.inputs == 1


def test_tables_are_read_only() -> None:
    for table in (SCALAR_OPS, REDUCE_OPS):
        assert isinstance(table, MappingProxyType)
    assert len(set(SCAN_KINDS)) == len(SCAN_KINDS)
    assert STORE_MODES[0] == "store"
