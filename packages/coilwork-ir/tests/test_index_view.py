"""The size of expressions, written out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coilwork_ir.index import (
    Expr,
    TreeSize,
    as_expr,
    fold,
    maximum,
    measure_tree,
    minimum,
    substitute,
    symbol,
)

I, J, N = symbol("i", extent=18), symbol("j", extent=12), symbol("n", lo=1)


def counted(e: Expr) -> int:
    """Nodes of `e` as a tree, a minus sign not counted."""

    def joined(parts: Iterable[tuple[int, bool]]) -> tuple[int, bool]:
        kept = [size for size, is_minus in parts if not is_minus]
        return sum(kept) + len(kept) - 1, False

    count, _ = fold(
        e,
        const=lambda value: (1, value == -1),
        symbol=lambda s: (1, False),
        add=joined,
        mul=joined,
        floordiv=lambda a, b: joined([a, b]),
        mod=lambda a, b: joined([a, b]),
        minimum=joined,
        maximum=joined,
    )
    return count


@pytest.mark.parametrize(
    ("expr", "nodes", "symbols"),
    [
        (as_expr(7), 1, 0),
        (I, 1, 1),
        (I + 3, 3, 1),
        (15 - I, 3, 1),
        (12 * I + J, 5, 2),
        (I * N * 4, 5, 2),
        ((6 * I + J) // 7, 7, 2),
        ((I + J) % 5 + (I + J) // 5, 11, 4),
        (minimum(I, J, 3), 5, 2),
        (maximum(I - 4, 0) * N, 7, 2),
    ],
    ids=str,
)
def test_every_operation_symbol_and_number_counts_as_often_as_it_is_written(
    expr: Expr, nodes: int, symbols: int
) -> None:
    assert measure_tree(expr) == TreeSize(nodes, symbols)
    assert counted(expr) == nodes


def test_what_is_substituted_counts_at_each_symbol() -> None:
    outer, inner = (I + 4 * J) // 9, (J + 5) % 7
    made = substitute(outer, {I: inner, J: (J + 5) % 11})
    assert measure_tree(made) == measure_tree(outer).bound_substitution(measure_tree(inner))


def test_sizes_of_what_doubles_at_each_step_are_found_in_one_visit_per_node() -> None:
    x = I
    for k in range(80):
        x = (x + 1) // (k + 19) + (x + 1) % (k + 19) * (k + 3)
    size = measure_tree(x)
    assert size.nodes == size.symbols == 1 << 40  # as far as they are told apart
