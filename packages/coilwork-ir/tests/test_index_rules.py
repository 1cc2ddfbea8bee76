"""The simplifications by example, the interface, and identity across threads and processes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from coilwork_ir.index import (
    Add,
    Const,
    Expr,
    FloorDiv,
    IndexArithmeticError,
    IndexSyntaxError,
    Interval,
    Mul,
    Sym,
    add_all,
    as_expr,
    as_int,
    ceildiv,
    const,
    evaluate,
    find_bounds,
    find_coefficients,
    find_run_stride,
    find_stride,
    fold,
    format_expr,
    get_node,
    maximum,
    minimum,
    mod,
    multiply_all,
    parse_expr,
    proofs,
    provably_divisible,
    provably_eq,
    provably_le,
    provably_lt,
    provably_nonneg,
    substitute,
    symbol,
)

i, j, k = symbol("i"), symbol("j"), symbol("k")
s0, s1, u = symbol("s0", lo=1), symbol("s1", lo=1), symbol("u")
i0, i1 = symbol("i0", extent=s1), symbol("i1", extent=s0)
lane = symbol("lane", extent=const(64))

EXAMPLES: tuple[tuple[Expr, str], ...] = (
    ((1024 * i + j) // 1024, "i + j // 1024"),
    ((1024 * i + j) % 1024, "j % 1024"),
    ((4 * i + 2) // 8, "i // 2"),
    ((8 * i + 6) // 12, "(2*i + 1) // 3"),
    ((4 * i) % 8, "4*(i % 2)"),
    ((4 * i + 3) % 8, "4*(i % 2) + 3"),
    ((i // 3) // 5, "i // 15"),
    ((j + i // 3) // 5, "(i + 3*j) // 15"),
    ((i % 64) % 8, "i % 8"),
    ((i % 64) // 8, "(i // 8) % 8"),
    (8 * (i // 8) + i % 8, "i"),
    (24 * (i // 8) + 3 * (i % 8) + j + 1, "3*i + j + 1"),
    (8 * ((i // 8) % 4) + i % 8, "i % 32"),
    (8 * ((j + i // 8) % 4) + i % 8, "(i + 8*j) % 32"),
    (s1 * 8 * (i // 8) + s1 * (i % 8), "i*s1"),
    (s0 * (i // s0) + i % s0, "i"),
    (s0 * ((i // (s0 + 1)) % 3) + (i // (s0 + 1)) % 3 + i % (s0 + 1), "i % (3*s0 + 3)"),
    ((s0 + 1) * s1 * ((j + i // (s0 + 1)) % 3) + s1 * (i % (s0 + 1)), "s1*((j*s0 + i + j) % (3*s0 + 3))"),
    (
        (s0 + 1) * ((i // (s0 + 1)) % 3) + 2 * (i % (s0 + 1)),
        "s0*((i // (s0 + 1)) % 3) + 2*(i % (s0 + 1)) + (i // (s0 + 1)) % 3",
    ),
    ((i0 * s0 + i1) // s0, "i0"),
    ((i0 * s0 + i1) % s0, "i1"),
    ((i0 * (s0 + 1) + i1) // (s0 + 1), "i0"),
    ((64 * i + lane) // 64, "i"),
    ((64 * i + lane) // 128, "i // 2"),
    ((64 * i + lane) % 128, "lane + 64*(i % 2)"),
    (lane // 64, "0"),
    (lane % 64, "lane"),
    (i // -8, "(-i) // 8"),
    (i % -8, "-((-i) % 8)"),
    (s0 // s0, "1"),
    (u // u, "u // u"),
    ((i // s0) // s1, "i // (s0*s1)"),
    ((i % (s0 * s1)) // s0, "(i // s0) % s1"),
    ((i % (s0 * s1)) % s0, "i % s0"),
    ((s0 * i) // (s0 * 4), "i // 4"),
    (minimum(s0, 4, 9, minimum(s0, i)), "min(i, s0, 4)"),
    (maximum(s0, 0, 1), "s0"),
    (minimum(i, i + 1), "i"),
    (minimum(lane, 100), "lane"),
    (ceildiv(i, 4), "-((-i) // 4)"),
    (i * j - j * i, "0"),
    ((i + 1) * (i - 1), "i*i - 1"),
    (add_all([i, 2, j, i]), "2*i + j + 2"),
    (multiply_all([i, 2, j]), "2*i*j"),
)


@pytest.mark.parametrize(("e", "text"), EXAMPLES, ids=[text for _, text in EXAMPLES])
def test_expressions_have_one_normal_form(e: Expr, text: str) -> None:
    assert format_expr(e) == text


def test_equality_is_identity_and_symbols_differ_by_promise() -> None:
    assert symbol("i") is i and symbol("i", lo=0) is not i
    assert (i + j) * 2 is 2 * j + i + i
    assert i + j != j + k and hash(i + j) == hash(j + i)
    assert copy.deepcopy(i + j) is i + j and copy.copy(i) is i


def test_misuse_is_refused() -> None:
    divisions: tuple[Callable[[], Expr], ...] = (
        lambda: i // 0,
        lambda: i % 0,
        lambda: ceildiv(i, 0),
        lambda: 0 % (i - i),
    )
    for divide in divisions:
        with pytest.raises(IndexArithmeticError, match="division by zero"):
            divide()
    with pytest.raises(IndexArithmeticError, match="empty range"):
        symbol("e", lo=3, hi=2)
    with pytest.raises(IndexArithmeticError, match="extent"):
        symbol("e", lo=3, extent=s0)
    with pytest.raises(IndexArithmeticError, match="not a symbol"):
        (i + j).name  # noqa: B018
    with pytest.raises(IndexArithmeticError, match="not a constant"):
        i.value  # noqa: B018
    with pytest.raises(IndexArithmeticError, match="nothing"):
        minimum()
    with pytest.raises(IndexArithmeticError, match="no value"):
        evaluate(i, {})
    with pytest.raises(IndexArithmeticError, match="division by zero in"):
        evaluate(i // u, {"i": 1, "u": 0})
    with pytest.raises(IndexArithmeticError, match="neither"):
        as_expr(json.loads("1.5"))
    with pytest.raises(TypeError, match="truth value"):
        bool(i)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(i)
    with pytest.raises(AttributeError):
        setattr(i, "constant", 3)  # noqa: B010


def test_expressions_tell_their_parts() -> None:
    e = 2 * i * s0 - j + 7
    assert e.terms == ((2, (i, s0)), (-1, (j,))) and e.constant == 7
    assert e.free_symbols == {i, j, s0}
    assert const(5).is_const and const(5).value == 5 and as_int(const(5)) == 5 and as_int(i) is None
    assert i1.is_symbol and (i1.name, i1.lo, i1.hi, i1.extent) == ("i1", 0, None, s0)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (lane, (0, 63)),
        (-2 * lane + 1, (-125, 1)),
        (lane // 8, (0, 7)),
        ((lane + i) % 8, (0, 7)),
        (minimum(i, lane), (None, 63)),
        (maximum(i, lane), (0, None)),
        (i * i, (0, None)),
        (lane * lane, (0, 63 * 63)),
        (s0, (1, None)),
        (i1, (0, None)),
    ],
)
def test_bounds_of_expressions_are_found(e: Expr, expected: tuple[int | None, int | None]) -> None:
    assert find_bounds(e) == Interval(*expected)


def test_inequalities_are_proved_or_left_open() -> None:
    x = symbol("x", extent=8 * s0)
    assert provably_lt(i0 * s0 + i1, s0 * s1)
    assert not provably_lt(i0 * s0 + i1 + 1, s0 * s1)
    assert provably_lt(x // 8, s0) and x // 8 // s0 is const(0)
    assert provably_nonneg(s0 * s1 - s0) and not provably_nonneg(s0 - s1)
    assert provably_nonneg(i0 - i0 // 2)
    assert provably_le(minimum(s0, 8), 8) and not provably_lt(minimum(s0, 8), 8)
    assert minimum(minimum(s0, s1), s0) is minimum(s0, s1)
    assert provably_eq(i - 8 * (i // 8), i % 8)
    assert provably_divisible(8 * i + 16, 8) and not provably_divisible(8 * i + 4, 8)
    assert provably_divisible(s0 * i, s0)


def test_coefficients_of_affine_expressions_are_found() -> None:
    assert find_coefficients(s0 * i0 + 4 * i1 + j // 2 + 7, (i0, i1)) == ((s0, const(4)), j // 2 + 7)
    assert find_coefficients(i0 * i1, (i0, i1)) is None
    assert find_coefficients(i0 // 2, (i0,)) is None
    assert find_coefficients(i, ()) == ((), i)
    assert find_stride(3 * i + j, i) is const(3) and find_stride(j, i) is const(0)
    assert find_stride(i // 2, i) is None and find_stride(i * i, i) is None
    assert find_stride((i * s0) % u, i) is None
    # within runs of 32 values a quotient stays and a remainder moves, but runs of 4 are too short
    place = 5 * j + 64 * (i // 32) + i % 32
    assert find_stride(place, i) is None and find_run_stride(place, i) is const(1)
    assert find_run_stride(i % 4, i) is None and find_run_stride(s0 * (i % 32), i) is s0
    assert find_run_stride((2 * i) % 32, i) is const(2) and find_run_stride(3 * i, i) is const(3)
    with pytest.raises(IndexArithmeticError, match="distinct"):
        find_coefficients(i, (i, i))


def test_substitution_is_simultaneous() -> None:
    assert substitute(i - 2 * j, {i: j, j: i}) is j - 2 * i
    assert substitute(i + j, {k: const(1)}) is i + j
    assert substitute((i0 * s0 + i1) // 64, {i0: const(0), i1: 64 * j}) is j


def test_node_and_fold() -> None:
    assert get_node(const(3)) == Const(3) and get_node(i) == Sym("i", i)
    assert get_node(2 * i + 3) == Add((2 * i, const(3))) and get_node(-i * j) == Mul((const(-1), i, j))
    assert get_node(i // 8) == FloorDiv(i, const(8))
    text = fold(
        2 * i + minimum(j, 4) // s0 - maximum(i % 3, j),
        const=str,
        symbol=lambda s: s.name,
        add=lambda xs: f"({'+'.join(xs)})",
        mul=lambda xs: f"({'*'.join(xs)})",
        floordiv=lambda a, b: f"{a}//{b}",
        mod=lambda a, b: f"{a}%{b}",
        minimum=lambda xs: f"min({','.join(xs)})",
        maximum=lambda xs: f"max({','.join(xs)})",
    )
    assert text == "((2*i)+min(j,4)//s0+(-1*max(j,i%3)))"


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("i + ", "expected an operand", 4),
        ("i $ j", "unexpected character", 2),
        ("i + zz", "unknown symbol 'zz'", 4),
        ("(i + j", "expected ')'", 6),
        ("i // 0", "division by zero", 2),
        ("i j", "expected an operator", 2),
        ("min(i,)", "expected an operand", 6),
        ("", "expected an operand", 0),
    ],
)
def test_syntax_errors_have_a_position(text: str, reason: str, position: int) -> None:
    with pytest.raises(IndexSyntaxError) as caught:
        parse_expr(text, {"i": i, "j": j})
    assert reason in str(caught.value) and caught.value.position == position


def test_parsing_follows_python_precedence() -> None:
    names = {"i": i, "j": j, "min": k}
    for text in ("-i // 8", "i * 3 // 2 % 5", "i - -j", "2*i%7", "-(i - j)*3", "10 - 3 - 2"):
        expected = eval(text, {}, {"i": -13, "j": 5})
        assert evaluate(parse_expr(text, names), {"i": -13, "j": 5}) == expected
    assert parse_expr("min", names) is k and parse_expr(" min( i , 3)", names) is minimum(i, 3)


ORDERED = (
    "from coilwork_ir.index import *\n"
    "s = [symbol(f'{p}{n}', lo=lo) for n in (10, 2, 1) for p in 'ba' for lo in (None, 0)]\n"
    "print(add_all([a * b for a in s for b in s]), add_all([(a + 3 * b) // 4 for a in s for b in s]))\n"
    "print(sorted([x // 3 + y % 5 for x in s for y in s], key=lambda e: e.sort_key))\n"
    "print(minimum(*s), maximum(*[x + y for x in s for y in s]))\n"
)


def test_text_is_the_same_in_every_process() -> None:
    texts = set()
    for seed in ("0", "1", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        run = subprocess.run(
            [sys.executable, "-c", ORDERED], env=env, capture_output=True, text=True, check=True
        )
        texts.add(run.stdout)
    assert len(texts) == 1 and texts.pop().strip()


def _build(barrier: Barrier, number: int) -> list[Expr]:
    barrier.wait()
    a, b = symbol(f"thread{number}a"), symbol(f"thread{number}b", lo=1)
    made: list[Expr] = []
    for n in range(1, 40):
        x = n * a + b
        made += [
            x,
            x // (n + 1),
            mod(x, n + 7),
            x * b,
            minimum(x, n),
            (a % b) * n,
            const(10**6 + number * 100 + n),
        ]
    return made


def test_threads_get_identical_objects() -> None:
    workers = 4
    with ThreadPoolExecutor(workers) as pool:
        for number in range(25):
            barrier = Barrier(workers)
            results = list(pool.map(_build, [barrier] * workers, [number] * workers))
            for other in results[1:]:
                assert all(x is y for x, y in zip(results[0], other, strict=True))


def test_a_remainder_folds_by_the_proof_that_folds_its_quotient() -> None:
    s0, s1, r0 = symbol("s0", lo=1), symbol("s1", lo=2), symbol("r0", extent=symbol("s0", lo=1))
    i, j = symbol("i", lo=0, hi=7), symbol("j", lo=0, hi=7)
    for x, n in (
        ((s1 % (s0 + 1)) // s1, s0),
        ((2 % (2 * s0)) // s1, s0),
        (r0 // s1, s0),
        ((s0 - r0) // 2, s0),
        ((i - j) // 8 + j, const(8)),
    ):
        assert as_int(x // n) == 0
        assert x % n is x
        if n is s0:
            assert provably_nonneg(x) and provably_lt(x, n)


def test_multiples_of_the_divisors_monomial_are_reduced_like_constants() -> None:
    s0, c = symbol("s0", lo=1), symbol("c", extent=16)
    assert (c - s0) % (2 * s0) is (c + s0) % (2 * s0)
    assert (c - s0) // (2 * s0) is (c + s0) // (2 * s0) - 1
    assert (2 * s0) % (3 * s0) is 2 * s0


def test_a_divisor_that_may_be_0_counts_as_positive() -> None:
    n = symbol("n", lo=0, hi=7)
    i, j = symbol("i", extent=3), symbol("j", extent=n)
    assert (i * n + j) // n is i
    assert (i * n + j) % n is j
    assert (i * n) // n is i
    assert provably_nonneg(lane // n) and provably_nonneg(lane % n)
    assert provably_lt(lane % n, n)
    single = symbol("n", lo=0, hi=1)
    assert i // single is i and as_int(i % single) == 0


def test_proofs_about_extrema() -> None:
    least, most = minimum(s0, s1), maximum(s0, s1)
    assert provably_le(least, s0) and provably_le(least, s1) and provably_le(least, most)
    assert provably_le(s0, most) and provably_le(s1, most)
    assert not provably_le(s0, least) and not provably_le(most, s0) and not provably_lt(least, s0)
    assert provably_lt(least, s0 + 1) and provably_lt(s1 - 1, most)
    assert provably_le(s0 * least, s0 * s1) and provably_le(minimum(s0, s1, 8), s1)
    assert provably_le(minimum(s0, s1) + 3, maximum(s0 + 3, 7)) and provably_le(minimum(s0, 8), s0)
    assert provably_le(maximum(i0, 0), i0) and not provably_le(maximum(i, 0), i)
    assert minimum(most, s0) is s0 and maximum(least, s1) is s1


def test_a_proof_that_finds_no_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extremes and quotients of several sizes: every elimination leaves a few that are as hard."""
    steps: list[Expr] = []
    attempt = proofs._positive_after_shift

    def counted(e: Expr) -> bool:
        steps.append(e)
        return attempt(e)

    monkeypatch.setattr(proofs, "_positive_after_shift", counted)
    sizes = [symbol(f"z{n}", lo=2) for n in range(3)]
    quotients = [maximum(4 // size, 1) for size in sizes]
    less = add_all(
        4 * size * least * maximum(size - 2 * ceildiv(size, 3), 1) for size, least in zip(sizes, quotients)
    )
    more = add_all(
        4 * maximum(size, 3) * least + 8 * size * ceildiv(size, 3) for size, least in zip(sizes, quotients)
    )
    assert not provably_le(less, more + 7)
    assert len(steps) < 1000
