"""Walking and rewriting scalar graphs, deep ones too."""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.scalar import (
    Const,
    Load,
    Scalar,
    Scan,
    combine,
    const,
    find_index_symbols,
    index_value,
    iterate_postorder,
    list_loads,
    load,
    op,
    parameter,
    placeholder,
    reduce,
    replace_operands,
    rewrite,
    scan,
    sort,
    substitute_ranges,
)

N = symbol("n", lo=1)
I, J, R, S = (symbol(name, extent=N) for name in ("i0", "i1", "r0", "r1"))
X = load("x", [I], DType.F32)
AT = index_value(I)
Y = load("y", [placeholder(0) + J], DType.F32, indirect=[AT], mask=op("isnan", X), other=1.0)


def test_postorder_visits_operands_first_and_once() -> None:
    root = op("add", op("mul", X, X), Y)
    order = list(iterate_postorder([root, X]))
    assert len(order) == len(set(order))
    for node in order:
        assert all(order.index(o) < order.index(node) for o in node.operands)
    assert order[-1] is root and order == list(iterate_postorder([root, X]))


def test_a_graph_of_20000_levels_is_walked_and_rewritten() -> None:
    value: Scalar = X
    one = const(1.0, DType.F32)
    for _ in range(20_000):
        value = op("add", value, one)
    assert sum(1 for _ in iterate_postorder([value])) == 20_002
    (changed,) = rewrite([value], lambda n: const(2.0, DType.F32) if n is one else n)
    assert changed is not value and sum(1 for _ in iterate_postorder([changed])) == 20_002
    (moved,) = substitute_ranges([value], {I: J})
    assert [access.index for access in list_loads([moved])] == [(J,)]


def test_rewrite_sees_rewritten_operands() -> None:
    def fold(node: Scalar) -> Scalar:
        if node.dtype is DType.F32 and node.operands and all(isinstance(o, Const) for o in node.operands):
            return const(5.0, DType.F32)
        return node

    three = op("add", const(1.0, DType.F32), const(2.0, DType.F32))
    (result,) = rewrite([op("mul", op("neg", three), op("exp", three))], fold)
    assert result is const(5.0, DType.F32)


def test_with_operands_keeps_the_rest() -> None:
    other = op("neg", X)
    assert replace_operands(Y, Y.operands) is Y
    moved = replace_operands(Y, [index_value(J), Y.operands[1]])
    assert isinstance(moved, Load) and moved.operands[0] is index_value(J) and moved.other == 1.0
    total = reduce("welford", [X], [R], output=1)
    assert replace_operands(total, [other]) is reduce("welford", [other], [R], output=1)
    running = scan("max", X, R, output=1, reverse=True)
    assert replace_operands(running, [other]) is scan("max", other, R, output=1, reverse=True)
    function = combine([parameter(1, DType.F32), op("add", parameter(1, DType.F32), parameter(3, DType.F32))])
    pair = scan(function, X, R, others=[Y], output=1)
    assert replace_operands(pair, [Y, other]) is scan(function, Y, R, others=[other], output=1)
    assert substitute_ranges([pair], {R: S})[0] is scan(function, X, S, others=[Y], output=1)
    ordered = sort(X, R, output=1, descending=True)
    assert replace_operands(ordered, [other]) is sort(other, R, output=1, descending=True)
    narrow = op("cast", X, dtype=DType.BF16)
    assert replace_operands(narrow, [other]).dtype is DType.BF16


def test_ranges_are_substituted_everywhere() -> None:
    root = op("add", Y, reduce("sum", [load("z", [R, I], DType.F32)], [R]))
    (moved,) = substitute_ranges([root], {I: J, J: I, R: S})
    assert find_index_symbols([moved]) == {I, J, S}
    (back,) = substitute_ranges([moved], {I: J, J: I, S: R})
    assert back is root
    running = scan("sum", X, R)
    (moved,) = substitute_ranges([running], {R: S})
    assert isinstance(moved, Scan) and moved.axis is S
    assert substitute_ranges([sort(X, R, descending=True)], {R: S})[0] is sort(X, S, descending=True)


def test_loads_and_symbols() -> None:
    assert list_loads([Y]) == (X, Y)
    assert find_index_symbols([Y, index_value(N + 1)]) == {I, J, N}
