"""The bridge to sympy agrees on integers, in both directions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

sympy = pytest.importorskip("sympy", reason="the bridge is to it")

from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from coilwork_ir.index import Expr, IndexArithmeticError, const, evaluate, maximum, minimum, symbol  # noqa: E402
from coilwork_ir.index.sympy_bridge import (  # noqa: E402
    SympyFunctions,
    UnsupportedSympyError,
    from_sympy,
    to_sympy,
)

NAMES = ("i", "j", "n")
OURS = {"i": symbol("i"), "j": symbol("j"), "n": symbol("n", lo=1)}
THEIRS = {
    "i": sympy.Symbol("i", integer=True),
    "j": sympy.Symbol("j", integer=True),
    "n": sympy.Symbol("n", integer=True, positive=True),
}
Env = dict[str, int]
envs = st.fixed_dictionaries({"i": st.integers(-60, 60), "j": st.integers(-60, 60), "n": st.integers(1, 30)})
Pair = tuple[Expr, Any]

leaves: st.SearchStrategy[Pair] = st.one_of(
    st.sampled_from(NAMES).map(lambda n: (OURS[n], THEIRS[n])),
    st.integers(-9, 9).map(lambda n: (const(n), sympy.Integer(n))),
)


def _grow(children: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    pair = st.tuples(children, children)
    divisor = st.sampled_from([2, 3, 8, -4])
    by_number = st.tuples(children, divisor)
    return st.one_of(
        pair.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
        pair.map(lambda p: (p[0][0] * p[1][0], p[0][1] * p[1][1])),
        pair.map(lambda p: (minimum(p[0][0], p[1][0]), sympy.Min(p[0][1], p[1][1]))),
        pair.map(lambda p: (maximum(p[0][0], p[1][0]), sympy.Max(p[0][1], p[1][1]))),
        by_number.map(lambda p: (p[0][0] // p[1], sympy.floor(p[0][1] / p[1]))),
        by_number.map(lambda p: (-(-p[0][0] // p[1]), sympy.ceiling(p[0][1] / p[1]))),
        by_number.map(lambda p: (p[0][0] % p[1], sympy.Mod(p[0][1], p[1]))),
        children.map(lambda p: (p[0] // OURS["n"], sympy.floor(p[1] / THEIRS["n"]))),
        children.map(lambda p: (p[0] % OURS["n"], sympy.Mod(p[1], THEIRS["n"]))),
    )


pairs = st.recursive(leaves, _grow, max_leaves=5)
quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def sympy_value(e: Any, env: Env) -> int:
    return int(sympy.sympify(e).subs({THEIRS[name]: value for name, value in env.items()}))


@quick
@given(pairs, envs)
def test_from_sympy_keeps_the_value(pair: Pair, env: Env) -> None:
    ours, theirs = pair
    assert evaluate(from_sympy(theirs, OURS), env) == evaluate(ours, env)


@quick
@given(pairs, envs)
def test_to_sympy_keeps_the_value(pair: Pair, env: Env) -> None:
    ours, _ = pair
    assert sympy_value(to_sympy(ours, THEIRS), env) == evaluate(ours, env)


@quick
@given(pairs, envs)
def test_there_and_back(pair: Pair, env: Env) -> None:
    back = from_sympy(to_sympy(pair[0], THEIRS), OURS)
    assert evaluate(back, env) == evaluate(pair[0], env)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_torch_functions_by_name(i: int, j: int, n: int) -> None:
    torch_functions = pytest.importorskip("torch.utils._sympy.functions", reason="functions of torch's sizes")
    f: Any = torch_functions
    a, b = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("i", "j"))
    c = THEIRS["n"]
    ours = {"i": symbol("i", lo=0), "j": symbol("j", lo=0), "n": OURS["n"]}
    env = {"i": i, "j": j, "n": n}
    cases: list[tuple[Any, int]] = [
        (f.FloorDiv(a + 3 * b, c), (i + 3 * j) // n),
        (f.Mod(a + b, c), (i + j) % n),
        (f.PythonMod(a - b, c), (i - j) % n),
        (f.ModularIndexing(a + 5 * b, 4, 6), (i + 5 * j) // 4 % 6),
        (f.CleanDiv(a * c, c), i),
        (f.CeilDiv(a + b, c), -(-(i + j) // n)),
        (f.CeilToInt(f.IntTrueDiv(a + b, c)), -(-(i + j) // n)),
        (f.FloorToInt(f.IntTrueDiv(a - b, c)), (i - j) // n),
        (f.TruncToInt(f.IntTrueDiv(a + b, c)), (i + j) // n),
        (f.TruncToInt(f.ToFloat(a) * 2.0), 2 * i),
        (f.FloorToInt(sympy.Float(1.5) * f.ToFloat(a - b)), (3 * (i - j)) // 2),
        (f.Max(a, b + 2), max(i, j + 2)),
        (f.Min(a, b, 7), min(i, j, 7)),
        (f.Identity(a * 4), i * 4),
        (f.PowByNatural(a, 2), i * i),
        (f.LShift(a, 3), i << 3),
        (f.RShift(a, 3), i >> 3),
    ]
    for theirs, expected in cases:
        assert evaluate(from_sympy(theirs, ours), env) == expected, theirs


@given(st.integers(-4, 4), st.integers(-4, 4))
@settings(max_examples=60, deadline=None)
def test_cases_become_minima_and_maxima(i: int, j: int) -> None:
    a, b, env = THEIRS["i"], THEIRS["j"], {"i": i, "j": j, "n": 1}
    conditions = [a < b, a <= b, a > b, a >= b, sympy.Eq(a, b + 1), sympy.Ne(a, b), sympy.And(a < 0, b > 1)]
    conditions += [sympy.Or(a < 0, b > 1), sympy.Not(sympy.And(a < b, sympy.Eq(a, 2)))]
    for condition in conditions:
        cases = sympy.Piecewise((5 * a, condition), (b, a > 2), (7, True)) + a
        assert evaluate(from_sympy(cases, OURS), env) == sympy_value(cases, env), condition


def test_to_sympy_with_other_functions() -> None:
    calls: list[str] = []

    def spy(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(name)
            return sympy.Function(name)(*args)

        return call

    functions = SympyFunctions(floordiv=spy("FD"), mod=spy("PM"), minimum=spy("MN"), maximum=spy("MX"))
    i, j = OURS["i"], OURS["j"]
    text = str(to_sympy(minimum(i // 8, maximum(j, 3) % 5), THEIRS, functions))
    assert sorted(calls) == ["FD", "MN", "MX", "PM"]
    assert "FD(i, 8)" in text and "MX(j, 3)" in text


@pytest.mark.parametrize(
    ("expr", "node"),
    [
        (THEIRS["i"] / 2, "Mul"),
        (sympy.sqrt(THEIRS["n"]), "Pow"),
        (sympy.Symbol("unknown"), "Symbol"),
        (sympy.sin(THEIRS["i"]), "sin"),
        (sympy.Float(1.5), "Float"),
        (sympy.floor(THEIRS["i"] * sympy.Float(0.6)), "Float"),
        (THEIRS["i"] < THEIRS["j"], "StrictLessThan"),
        (sympy.Piecewise((THEIRS["i"], THEIRS["i"] > 0)), "Piecewise"),
        (sympy.Piecewise((1, sympy.Symbol("flag")), (0, True)), "Symbol"),
    ],
    ids=str,
)
def test_the_error_names_the_node(expr: Any, node: str) -> None:
    with pytest.raises(UnsupportedSympyError) as caught:
        from_sympy(expr, OURS)
    assert caught.value.node == node and node in str(caught.value)


def test_truncation_of_negative_values_is_refused() -> None:
    f: Any = pytest.importorskip("torch.utils._sympy.functions", reason="functions of torch's sizes")
    with pytest.raises(UnsupportedSympyError, match="TruncToInt"):
        from_sympy(f.TruncToInt(f.IntTrueDiv(THEIRS["i"], THEIRS["n"])), OURS)


def test_missing_sympy_symbol() -> None:
    with pytest.raises(IndexArithmeticError, match="no sympy symbol"):
        to_sympy(OURS["i"], {})


def test_index_does_not_import_sympy() -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import coilwork_ir.index; print('sympy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    )


@quick
@given(pairs)
def test_rational_sums_inside_floor(pair: Pair) -> None:
    ours, theirs = pair
    assume(ours.free_symbols)
    inside = sympy.floor(theirs / 4 + sympy.Rational(1, 2))
    for env in ({"i": -7, "j": 5, "n": 3}, {"i": 22, "j": -1, "n": 8}):
        assert evaluate(from_sympy(inside, OURS), env) == (evaluate(ours, env) + 2) // 4
