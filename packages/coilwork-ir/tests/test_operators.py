"""The table of ATen's operators."""

from __future__ import annotations

import dataclasses

from coilwork_ir.operators import OPERATORS, OpInfo, find_info, find_target_info, list_operators
from coilwork_ir.operators.table import _ROWS
from coilwork_ir.ops import SCALAR_OPS


def test_every_operator_has_one_row_in_the_order_of_the_alphabet() -> None:
    names = [row.name for row in _ROWS]
    assert len(names) == len(set(names)) == len(OPERATORS)
    assert names == sorted(names, key=lambda name: (name.strip("_").lower(), name))


def test_every_row_says_something() -> None:
    assert [row.name for row in _ROWS if row == OpInfo(row.name)] == []


def test_every_fact_is_stated_of_some_operator() -> None:
    facts = [field for field in dataclasses.fields(OpInfo) if field.name != "name"]
    unused = [f.name for f in facts if all(getattr(row, f.name) == f.default for row in _ROWS)]
    assert unused == []


def test_scalar_ops_of_rows_exist() -> None:
    assert {row.scalar_op for row in _ROWS if row.scalar_op} <= set(SCALAR_OPS)


def test_nothing_holds_of_an_operator_without_a_row() -> None:
    assert find_info("no_such_operator") == OpInfo("")
    assert find_target_info("aten.no_such_operator.default") == OpInfo("")


def test_facts_are_found_by_the_name_of_an_overload() -> None:
    assert find_target_info("aten.view.default").is_view
    assert find_target_info("prims.iota.default").is_cheap
    assert not find_target_info("mylib.view.default").is_view
    assert find_target_info("mkldnn._linear_pointwise.default").packed_argument == 1
    assert find_target_info("aten._linear_pointwise.default") == find_target_info("mylib._linear_pointwise")


def test_a_row_of_an_overload_stands_in_the_stead_of_its_operators() -> None:
    assert find_target_info("aten.sym_size.int").is_size_query
    assert not find_target_info("aten.sym_size.default").is_size_query
    # what holds of an operator holds of its overload with a row of its own, too
    assert find_info("div").is_foldable
    assert find_target_info("aten.div.Tensor_mode").is_foldable
    assert find_target_info("aten.div.Tensor_mode").limits.rejects_wide_unsigned
    assert not find_target_info("aten.div.Tensor").limits.rejects_wide_unsigned


def test_operators_are_listed_without_their_overloads() -> None:
    listed = list_operators(lambda info: info.is_foldable)
    assert "div" in listed
    assert not any("." in name for name in listed)
