"""Which keys a mask lets count for a block of rows, and which surely do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, evaluate, symbol
from coilwork_ir.kernels.mask_bounds import find_conditions, find_span
from coilwork_ir.scalar import Scalar, const, index_value, op

ROW, KEY = symbol("q", extent=64), symbol("k", extent=64)


def compare(relation: str, left: Expr, right: Expr) -> Scalar:
    return op(relation, index_value(left), index_value(right))


MASKS: dict[str, tuple[Scalar, Callable[[int, int], bool]]] = {
    "causal": (compare("ge", ROW, KEY), lambda q, k: q >= k),
    "strict": (compare("lt", KEY, ROW), lambda q, k: k < q),
    "window": (
        op(
            "bitwise_and",
            compare("ge", ROW, KEY),
            op("le", op("sub", index_value(ROW), index_value(KEY)), const(9, DType.I64)),
        ),
        lambda q, k: 0 <= q - k <= 9,
    ),
    "ahead": (compare("ge", KEY, ROW + 3), lambda q, k: k >= q + 3),
    "mirrored": (compare("le", KEY, 63 - ROW), lambda q, k: k <= 63 - q),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("side", ["keys of rows", "rows of keys"])
def test_spans_hold_just_the_points_that_count(name: str, side: str) -> None:
    mask, holds = MASKS[name]
    of_keys = side == "keys of rows"
    along, other = (KEY, ROW) if of_keys else (ROW, KEY)
    for start in (0, 16, 48):
        span = find_span(
            find_conditions(mask), along, other, (as_expr(start), as_expr(start + 15)), as_expr(64)
        )
        assert span.exact
        first, full_first, full_last, last = (
            evaluate(e, {}) for e in (span.first, span.full_first, span.full_last, span.last)
        )
        for point in range(64):
            counts = [
                holds(block, point) if of_keys else holds(point, block) for block in range(start, start + 16)
            ]
            assert any(counts) <= (first <= point < last), (point, span)
            assert (full_first <= point < full_last) <= all(counts), (point, span)


def test_masks_that_no_comparison_says_are_not_exact() -> None:
    same = op("eq", index_value(ROW), index_value(KEY))
    both = op("bitwise_and", compare("ge", ROW, KEY), same)
    assert not find_conditions(same).exact and not find_conditions(same).expressions
    assert not find_conditions(both).exact and len(find_conditions(both).expressions) == 1
