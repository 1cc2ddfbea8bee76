"""Every rewrite, on random expressions and random integers, negative ones too.

Each random expression is kept twice: built through the API, and as a tree that plain ints evaluate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coilwork_ir.index import (
    Expr,
    IndexArithmeticError,
    add_all,
    as_int,
    ceildiv,
    const,
    evaluate,
    find_bounds,
    find_coefficients,
    find_stride,
    floordiv,
    fold,
    format_expr,
    maximum,
    minimum,
    mod,
    multiply_all,
    parse_expr,
    provably_divisible,
    provably_eq,
    provably_le,
    provably_lt,
    provably_nonneg,
    provably_positive,
    substitute,
    symbol,
)

I = symbol("i")
J = symbol("j")
N = symbol("n", lo=0)
P = symbol("p", lo=0, hi=7)
Q = symbol("q", lo=-5, hi=3)
S0 = symbol("s0", lo=1)
S1 = symbol("s1", lo=2)
C = symbol("c", extent=16)
R0 = symbol("r0", extent=S0)
R1 = symbol("r1", extent=S1)
R8 = symbol("r8", extent=8 * S0)
SYMBOLS = (I, J, N, P, Q, S0, S1, C, R0, R1, R8)
BY_NAME = {s.name: s for s in SYMBOLS}

Env = dict[str, int]


@dataclass(frozen=True, slots=True)
class Tree:
    op: str
    parts: tuple[Any, ...]


def leaf(x: int | str) -> Tree:
    return Tree("leaf", (x,))


@st.composite
def envs(draw: st.DrawFn) -> Env:
    """Values that keep every symbol's promise."""
    wide = st.integers(-200, 200)
    s0, s1 = draw(st.integers(1, 40)), draw(st.integers(2, 40))
    return {
        "i": draw(wide),
        "j": draw(wide),
        "n": draw(st.integers(0, 500)),
        "p": draw(st.integers(0, 7)),
        "q": draw(st.integers(-5, 3)),
        "s0": s0,
        "s1": s1,
        "c": draw(st.integers(0, 15)),
        "r0": draw(st.integers(0, s0 - 1)),
        "r1": draw(st.integers(0, s1 - 1)),
        "r8": draw(st.integers(0, 8 * s0 - 1)),
    }


def _nodes(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    divisors = st.one_of(
        st.sampled_from([2, 3, 4, 6, 8, 12, 16, 24, 64, -1, -3, -8]).map(leaf),
        st.sampled_from(["s0", "s1"]).map(leaf),
        st.sampled_from([(2, "s0"), (8, "s0"), (4, "s1")]).map(lambda p: Tree("*", (leaf(p[0]), leaf(p[1])))),
        st.just(Tree("*", (leaf("s0"), leaf("s1")))),
        st.just(Tree("+", (leaf("s0"), leaf(1)))),
    )
    factors = st.one_of(
        st.sampled_from([-8, -3, -1, 2, 3, 4, 8, 16, 64]).map(leaf), st.sampled_from(["s0", "s1"]).map(leaf)
    )
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda p: Tree("+", p)),
        pair.map(lambda p: Tree("+", p)),
        pair.map(lambda p: Tree("-", p)),
        st.tuples(children, factors).map(lambda p: Tree("*", p)),
        st.tuples(children, divisors).map(lambda p: Tree("//", p)),
        st.tuples(children, divisors).map(lambda p: Tree("%", p)),
        # What recombination looks for, with the wrong factor now and then.
        st.tuples(children, divisors, st.sampled_from([1, 1, 2])).map(_split),
        pair.map(lambda p: Tree("min", p)),
        pair.map(lambda p: Tree("max", p)),
        st.tuples(children, children).map(lambda p: Tree("*", p)),
        st.tuples(children, children).map(lambda p: Tree("//", p)),
    )


def _split(parts: tuple[Tree, Tree, int]) -> Tree:
    x, d, k = parts
    quotient = Tree("*", (Tree("*", (d, leaf(k))), Tree("//", (x, d))))
    return Tree("+", (quotient, Tree("%", (x, d))))


leaves = st.one_of(
    st.sampled_from(sorted(BY_NAME)).map(leaf),
    st.sampled_from(sorted(BY_NAME)).map(leaf),
    st.integers(-20, 20).map(leaf),
    st.tuples(st.sampled_from([2, 4, 8, 16, -4, 64]), st.sampled_from(sorted(BY_NAME))).map(
        lambda p: Tree("*", (leaf(p[0]), leaf(p[1])))
    ),
)
FACTORS: tuple[int | str, ...] = (-8, -1, 2, 8, 64, "s0", "s1")
trees = st.recursive(leaves, _nodes, max_leaves=9)

# Without divisions, minima and maxima: what a view's coordinates are made of.
polynomials = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.tuples(st.sampled_from(["+", "-"]), children, children).map(lambda p: Tree(p[0], p[1:])),
        st.tuples(children, st.sampled_from(FACTORS).map(leaf)).map(lambda p: Tree("*", p)),
    ),
    max_leaves=9,
)

_BUILD: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": minimum,
    "max": maximum,
}
_COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def build(tree: Tree) -> Expr | None:
    """Through the API; None when it divides by the constant zero."""
    try:
        return _build(tree)
    except IndexArithmeticError:
        return None


def _build(tree: Tree) -> Expr:
    if tree.op == "leaf":
        x = tree.parts[0]
        return const(x) if isinstance(x, int) else BY_NAME[x]
    return _BUILD[tree.op](_build(tree.parts[0]), _build(tree.parts[1]))


def compute(tree: Tree, env: Env) -> int | None:
    """By plain Python arithmetic; None when it divides by zero somewhere."""
    try:
        return _compute(tree, env)
    except ZeroDivisionError:
        return None


def _compute(tree: Tree, env: Env) -> int:
    if tree.op == "leaf":
        x = tree.parts[0]
        return x if isinstance(x, int) else env[x]
    return _COMPUTE[tree.op](_compute(tree.parts[0], env), _compute(tree.parts[1], env))


fast = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
few = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
three_envs = st.lists(envs(), min_size=3, max_size=3)


@settings(fast, max_examples=1500)
@given(trees, three_envs)
def test_normal_form_has_the_value_of_the_tree(tree: Tree, some: list[Env]) -> None:
    e = build(tree)
    for env in some:
        expected = compute(tree, env)
        if expected is None:
            continue
        assert e is not None
        assert evaluate(e, env) == expected, format_expr(e)


@fast
@given(trees, three_envs)
def test_bounds_contain_every_value(tree: Tree, some: list[Env]) -> None:
    e = build(tree)
    assume(e is not None)
    assert e is not None
    lo, hi = find_bounds(e)
    for env in some:
        expected = compute(tree, env)
        if expected is not None:
            assert lo is None or lo <= expected
            assert hi is None or expected <= hi


@fast
@given(trees, trees, three_envs)
def test_proofs_are_never_wrong(left: Tree, right: Tree, some: list[Env]) -> None:
    a, b = build(left), build(right)
    assume(a is not None and b is not None)
    assert a is not None and b is not None
    nonneg, positive = provably_nonneg(a), provably_positive(a)
    le, lt, eq = provably_le(a, b), provably_lt(a, b), provably_eq(a, b)
    divisible = {d: provably_divisible(a, d) for d in (2, 8, -3)}
    by_size = provably_divisible(a, S0)
    for env in some:
        x, y = compute(left, env), compute(right, env)
        if x is None or y is None:
            continue
        assert not nonneg or x >= 0
        assert not positive or x > 0
        assert not le or x <= y
        assert not lt or x < y
        assert not eq or x == y
        assert all(not proved or x % d == 0 for d, proved in divisible.items())
        assert not by_size or x % env["s0"] == 0


@fast
@given(trees)
def test_text_reads_back_as_the_same_object(tree: Tree) -> None:
    e = build(tree)
    assume(e is not None)
    assert e is not None
    assert parse_expr(format_expr(e), BY_NAME) is e


@few
@given(trees)
def test_rebuilding_bottom_up_gives_the_same_object(tree: Tree) -> None:
    e = build(tree)
    assume(e is not None)
    assert e is not None
    rebuilt = fold(
        e,
        const=lambda n: add_all([n]),
        symbol=lambda s: s,
        add=add_all,
        mul=multiply_all,
        floordiv=floordiv,
        mod=mod,
        minimum=lambda xs: minimum(*xs),
        maximum=lambda xs: maximum(*xs),
    )
    assert rebuilt is e
    assert substitute(e, {s: s for s in e.free_symbols}) is e


@fast
@given(trees, trees, trees, envs())
def test_substitution_commutes_with_evaluation(tree: Tree, for_i: Tree, for_j: Tree, env: Env) -> None:
    e, new_i, new_j = build(tree), build(for_i), build(for_j)
    i, j = compute(for_i, env), compute(for_j, env)
    assume(i is not None and j is not None)
    assert i is not None and j is not None and new_i is not None and new_j is not None
    expected = compute(tree, {**env, "i": i, "j": j})
    assume(expected is not None and e is not None)
    assert e is not None
    # Simultaneous: an i inside the replacement of j is the old i.
    assert evaluate(substitute(e, {I: new_i, J: new_j}), env) == expected


@few
@given(trees, envs())
def test_substituting_numbers_for_everything_gives_a_constant(tree: Tree, env: Env) -> None:
    e, expected = build(tree), compute(tree, env)
    assume(e is not None and expected is not None)
    assert e is not None
    assert as_int(substitute(e, {s: add_all([env[s.name]]) for s in e.free_symbols})) == expected


@fast
@given(trees, envs())
def test_coefficients_rebuild_the_expression(tree: Tree, env: Env) -> None:
    e = build(tree)
    assume(e is not None and compute(tree, env) is not None)
    assert e is not None
    symbols = (I, J, C, R0)
    affine = find_coefficients(e, symbols)
    if affine is None:
        return
    factors, rest = affine
    for part in (*factors, rest):
        assert part.free_symbols.isdisjoint(symbols)
    value = sum(evaluate(f, env) * env[s.name] for f, s in zip(factors, symbols, strict=True)) + evaluate(
        rest, env
    )
    assert value == evaluate(e, env)
    assert add_all([*(f * s for f, s in zip(factors, symbols, strict=True)), rest]) is e


@fast
@given(trees, envs(), st.sampled_from([I, J]))
def test_stride_is_the_step(tree: Tree, env: Env, sym: object) -> None:
    e = build(tree)
    assume(e is not None)
    assert e is not None
    which = I if sym is I else J
    stride = find_stride(e, which)
    here, there = compute(tree, env), compute(tree, {**env, which.name: env[which.name] + 1})
    if stride is not None and here is not None and there is not None:
        assert which not in stride.free_symbols
        assert evaluate(stride, env) == there - here


@few
@given(trees, trees, envs())
def test_ceildiv_rounds_up(left: Tree, right: Tree, env: Env) -> None:
    a, b = build(left), build(right)
    x, y = compute(left, env), compute(right, env)
    assume(a is not None and b is not None and x is not None and y)
    assert a is not None and b is not None and x is not None and y is not None
    assert evaluate(ceildiv(a, b), env) == -((-x) // y)


@few
@given(trees, st.permutations(range(4)), st.lists(trees, min_size=3, max_size=3))
def test_sums_do_not_depend_on_order(tree: Tree, order: list[int], others: list[Tree]) -> None:
    parts = [build(t) for t in (tree, *others)]
    assume(all(p is not None for p in parts))
    known = [p for p in parts if p is not None]
    assert provably_eq(add_all([known[k] for k in order]), add_all(known))


@fast
@given(trees, three_envs)
def test_quotient_and_remainder_by_a_size(tree: Tree, some: list[Env]) -> None:
    e = build(tree)
    assume(e is not None)
    assert e is not None
    quotient, remainder = e // S0, e % S0
    for env in some:
        expected = compute(tree, env)
        if expected is not None:
            found = evaluate(quotient, env), evaluate(remainder, env)
            assert found == divmod(expected, env["s0"])
    fresh, small = symbol("fresh", extent=S0), symbol("small", lo=0, hi=7)
    assert (S0 * e + fresh) // S0 is e and (S0 * e + fresh) % S0 is fresh
    assert (e * 8 + small) // 8 is e and (e * 8 + small) % 8 is small
    assert (e * S0 * 2 + fresh) % (2 * S0) is fresh


# Not for every tree: a modulo of a modulo by an unrelated divisor, `(c % (s0*s1)) % (2*s0)`, takes a case
# distinction.
@fast
@given(polynomials)
def test_what_a_quotient_and_a_remainder_are_is_provable(tree: Tree) -> None:
    e = _build(tree)
    quotient, remainder = e // S0, e % S0
    assert provably_nonneg(remainder) and provably_lt(remainder, S0)
    assert provably_eq(S0 * quotient + remainder, e)
