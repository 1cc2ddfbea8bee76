"""Comments that say which source lines a piece of code implements."""

from __future__ import annotations

from coilwork_ir.loc import Origin
from coilwork_wrapper.provenance import MOST_LINES, list_origin_lines, shorten_name


def test_operations_of_one_line_share_a_comment() -> None:
    origins = tuple(
        Origin(node=op, op=op, file="/home/me/model.py", line=7, code="y = f(x)", module="L.self.mlp.0")
        for op in ("aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Tensor")
    )
    assert list_origin_lines(origins) == ("model.py:7  y = f(x)  [mlp.0: mul, add]",)


def test_what_is_unknown_is_left_out() -> None:
    assert list_origin_lines(()) == ()
    assert list_origin_lines((Origin(node="a", op="aten.mm.default"),)) == ("mm",)
    assert list_origin_lines((Origin(node="a", op="aten.mm.default", module="L.self.up"),)) == ("up: mm",)


def test_many_lines_are_cut_short() -> None:
    origins = tuple(
        Origin(node="n", op="aten.mul.Tensor", file="m.py", line=k, code=f"x{k}") for k in range(20)
    )
    lines = list_origin_lines(origins)
    assert len(lines) == MOST_LINES
    assert lines[-1] == f"… and {20 - MOST_LINES + 1} more source lines"


def test_names_of_operators_are_shortened() -> None:
    assert shorten_name("aten.mul.Tensor") == "mul"
    assert shorten_name("mylib.attend.default") == "mylib.attend"
    assert shorten_name("cond") == "cond"
