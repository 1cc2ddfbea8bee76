"""Values before they were rounded, behind selects as well."""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.scalar import cast, const, load, op, where
from coilwork_scheduler.kernels.rounding import elide_rounding, iter_choices

_NONE = (as_expr(0),)
CONDITION = load("c", _NONE, DType.BOOL)
X = op("exp", load("x", _NONE, DType.F32))
STORED = load("y", _NONE, DType.BF16)
ROUNDED = cast(X, DType.BF16)


def test_a_cast_is_undone() -> None:
    assert elide_rounding(ROUNDED, DType.F32) is X


def test_what_was_not_rounded_stays() -> None:
    both = where(CONDITION, STORED, const(0.0, DType.BF16))
    for value in (STORED, both, X, cast(X, DType.F8E4M3), cast(cast(X, DType.F64), DType.BF16)):
        assert elide_rounding(value, DType.F32) is value


def test_a_select_takes_what_was_rounded_as_it_was_and_converts_the_rest() -> None:
    for other, wide in (
        (const(2.0, DType.BF16), const(2.0, DType.F32)),
        (STORED, cast(STORED, DType.F32)),
        (where(CONDITION, STORED, ROUNDED), where(CONDITION, cast(STORED, DType.F32), X)),
    ):
        assert elide_rounding(where(CONDITION, ROUNDED, other), DType.F32) is where(CONDITION, X, wide)
        assert elide_rounding(where(CONDITION, other, ROUNDED), DType.F32) is where(CONDITION, wide, X)


def test_selects_of_selects_are_visited_once() -> None:
    value, wanted = ROUNDED, X
    for step in range(60):
        condition = load(f"c{step}", _NONE, DType.BOOL)
        other = load(f"d{step}", _NONE, DType.BOOL)
        value = where(condition, value, where(other, value, STORED))
        wanted = where(condition, wanted, where(other, wanted, cast(STORED, DType.F32)))
    assert len(list(iter_choices(value))) == 122
    assert elide_rounding(value, DType.F32) is wanted


def test_a_chain_of_selects_may_be_long() -> None:
    value, wanted = ROUNDED, X
    for step in range(3000):
        condition = load(f"c{step}", _NONE, DType.BOOL)
        value, wanted = where(condition, STORED, value), where(condition, cast(STORED, DType.F32), wanted)
    assert elide_rounding(value, DType.F32) is wanted
