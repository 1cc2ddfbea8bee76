"""Names of variables: other ones for a whole block of statements, and for what two branches both assign."""

from __future__ import annotations

from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Do,
    For,
    If,
    Name,
    Number,
    Statement,
    While,
    call,
    print_module,
)
from coilwork_triton.text.variables import iterate_assigned, keep_used, rename, rename_apart

COUNT = Assign(("count",), call("cdiv", Name("n"), Number(2)))
LOOP = For("k", call("range", Name("count")), (Assign(("sums",), Binary("+", Name("sums"), Name("k"))),))
STORE = Do(call("store", Name("out"), Name("sums")))


def test_a_new_name_reaches_loops_and_branches() -> None:
    lines: tuple[Statement, ...] = (
        COUNT,
        If(Binary("<", Name("count"), Name("n")), (LOOP,), (Assign(("k", "sums"), Name("count")),)),
        While(Name("k"), (Assign(("k",), Name("sums")),)),
        STORE,
    )
    text = print_module(rename(lines, {"count": "blocks", "k": "step", "sums": "total"}))
    assert text == print_module(lines).replace("k", "step").replace("count", "blocks").replace(
        "sums", "total"
    )


def test_branches_assign_no_variable_alike() -> None:
    first = (COUNT, LOOP, STORE)
    second = rename_apart((COUNT, Assign(("sums",), Number(0)), LOOP, STORE), first)
    assert not set(iterate_assigned(first)) & set(iterate_assigned(second))
    assert print_module(second).splitlines() == [
        "count_1 = cdiv(n, 2)",
        "sums_1 = 0",
        "for k_1 in range(count_1):",
        "    sums_1 = sums_1 + k_1",
        "store(out, sums_1)",
    ]


def test_a_name_that_either_branch_has_is_not_given_again() -> None:
    first = (Assign(("a",), Name("a_1")), Assign(("a_2",), Number(0)))
    (line, _) = rename_apart((Assign(("a",), Number(1)), Do(Name("a_3"))), first)
    assert line == Assign(("a_4",), Number(1))


def test_lines_that_nothing_uses_are_left_out() -> None:
    unused = Assign(("idle",), Number(3))
    assert keep_used((COUNT, unused, LOOP), (STORE,)) == (COUNT, LOOP)
