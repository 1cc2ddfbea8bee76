"""Index expressions as C++ over `i64`."""

from __future__ import annotations

from coilwork_cpp.values.block import index_code
from coilwork_ir.index import as_expr, maximum, minimum, symbol
from coilwork_ir.syntax.cpp import CppPrinter, Name


def test_index_expressions_are_written_for_c() -> None:
    n, m = symbol("n0", lo=0), symbol("m0")
    i = symbol("x0", extent=n)
    names = {n: Name("n0"), m: Name("m0"), i: Name("x0")}
    shown = {
        "x0 * 8 + 3": i * 8 + 3,
        "x0 / 4": i // 4,
        "(x0 % 4) * n0": (i % 4) * n,
        "floor_div<i64>(m0, 4)": m // 4,
        "floor_mod<i64>(m0, 4)": m % 4,
        "-m0": -m,
        "3 - m0": as_expr(3) - m,
        "min_i64(m0, 5)": minimum(m, 5),
        "max_i64(m0, 5)": maximum(m, 5),
    }
    for text, expr in shown.items():
        assert CppPrinter(clear=True).code(index_code(expr, names)) == text
