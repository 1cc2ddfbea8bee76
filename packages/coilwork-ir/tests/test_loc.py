"""Origins: text and union."""

from __future__ import annotations

from coilwork_ir.loc import UNKNOWN, Origin, merge_origins

A = Origin(node="mul", op="aten.mul.Tensor", file="m.py", line=3, code="a * b", module="layers.0")
B = Origin(node="add", op="aten.add.Tensor")


def test_an_origin_prints_its_operator_place_and_module() -> None:
    assert str(A) == "aten.mul.Tensor at m.py:3 (layers.0)"
    assert str(B) == "aten.add.Tensor at ?"


def test_merging_keeps_the_first_seen_order() -> None:
    assert merge_origins((A, B), (B,), (A,)) == (A, B)
    assert merge_origins() == merge_origins(UNKNOWN) == ()
