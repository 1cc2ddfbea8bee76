"""Sizes that torch keeps open: their expressions, bounds, hints and guards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


def get_sympy(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """Return the sympy expression of a symbolic number."""
    return value.node.expr


def get_shape_env(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> ShapeEnv:
    """Return the shape environment that `value` belongs to."""
    env: ShapeEnv = value.node.shape_env
    return env


def find_shape_env(gm: torch.fx.GraphModule) -> ShapeEnv | None:
    """Return the shape environment of the sizes in `gm`; None if all of them are known."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return get_shape_env(size)
    return None


def find_shape_env_among(values: Iterable[object]) -> ShapeEnv | None:
    """Return the shape environment of the sizes of tensors, and of sizes, among `values` and lists of them;
    None if all are known.
    """
    for value in values:
        if isinstance(value, list | tuple):
            env = find_shape_env_among(value)
            if env is not None:
                return env
            continue
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return get_shape_env(size)
    return None


def guard_count(env: ShapeEnv) -> int:
    """Return how many guards there are on sizes."""
    return len(env.guards)


def guard_texts(env: ShapeEnv, first: int) -> list[tuple[str, str]]:
    """Return the guards from number `first` on: conditions, and the lines of code that asked for them."""
    guards = [guard for guard in env.guards[first:] if not _always_leaves_a_remainder(env, guard.expr)]
    return [(str(guard.expr), str(guard.sloc)) for guard in guards]


def list_guarded_comparisons(
    env: ShapeEnv, numbers: Collection[sympy.Symbol], known: Collection[sympy.Symbol]
) -> list[tuple[sympy.Basic, str, sympy.Basic]]:
    """Return the comparisons with `numbers` that guards promise: left side, name of the relation, right side.

    Guards that mention symbols which are not `known` are left out. An integer is compared with integers: of a
    float bound that is what it rounds to. Adds no guard.
    """
    import sympy

    kinds = {sympy.Eq: "eq", sympy.Ne: "ne", sympy.Lt: "lt", sympy.Le: "le", sympy.Gt: "gt", sympy.Ge: "ge"}
    comparisons: list[tuple[sympy.Basic, str, sympy.Basic]] = []
    for guard in env.guards:
        for term in sympy.And.make_args(guard.expr):
            name = kinds.get(term.func)
            symbols = term.free_symbols
            if name is not None and not symbols.isdisjoint(numbers) and symbols <= set(known):
                compared = _compare_integers(term.lhs, name, term.rhs)
                comparisons += () if compared is None else (compared,)
    return list(dict.fromkeys(comparisons))


def _compare_integers(
    lhs: sympy.Basic, relation: str, rhs: sympy.Basic
) -> tuple[sympy.Basic, str, sympy.Basic] | None:
    """Return the comparison with an integer in the place of a float bound; None if it holds for all of 64
    bits.
    """
    import sympy
    from torch.utils._sympy.functions import ToFloat

    if isinstance(lhs, sympy.Float):
        lhs, rhs = rhs, lhs
        relation = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(relation, relation)
    if not isinstance(rhs, sympy.Float):
        return lhs, relation, rhs
    if isinstance(lhs, ToFloat):
        (lhs,) = lhs.args
    if not lhs.is_integer:
        return lhs, relation, rhs
    if abs(rhs) >= 2**63 and relation in (("lt", "le", "ne") if rhs > 0 else ("gt", "ge", "ne")):
        return None
    up, down = sympy.ceiling(rhs), sympy.floor(rhs)
    match relation:
        case "lt" | "ge":
            return lhs, relation, up
        case "gt" | "le":
            return lhs, relation, down
    return (lhs, relation, down) if up == down else None


def _always_leaves_a_remainder(env: ShapeEnv, condition: sympy.Basic) -> bool:
    """Tell if `condition` is of a number that is not divisible by another, larger one, whatever the sizes.

    Torch asks that when it splits a dimension into parts, `n` into `n // 2` by 2, and does not know the
    answer.
    """
    import sympy
    from torch.utils._sympy.functions import Mod, PythonMod

    if not isinstance(condition, sympy.Ne) or condition.rhs != 0:
        return False
    if not isinstance(condition.lhs, Mod | PythonMod | sympy.Mod):
        return False
    number, divisor = condition.lhs.args
    least, _ = find_expression_bounds(env, number)
    least_rest, _ = find_expression_bounds(env, divisor - number)
    return least is not None and least > 0 and least_rest is not None and least_rest > 0


def hint_of(value: int | torch.SymInt) -> int | None:
    """Return the number that a size was traced with; None if it depends on data. Adds no guard."""
    if isinstance(value, int):
        return int(value)
    hint: int | None = value.node.hint
    return hint


def find_integer_bounds(env: ShapeEnv, symbol: sympy.Symbol) -> tuple[int | None, int | None]:
    """Inclusive bounds of `symbol`; None where it is unbounded. Adds no guard."""
    bounds = env.var_to_range.get(symbol)
    if bounds is None:
        return (None, None)
    return (_finite(bounds.lower), _finite(bounds.upper))


def list_multiples(env: ShapeEnv) -> list[tuple[sympy.Basic, sympy.Basic]]:
    """Expressions that guards or assertions hold to be multiples, and of what. Adds no guard."""
    return sorted(((multiple.args[0], multiple.args[1]) for multiple in env.divisible), key=str)


def find_expression_bounds(env: ShapeEnv, expression: sympy.Basic) -> tuple[int | None, int | None]:
    """Inclusive bounds of an integer expression; None where it is unbounded. Adds no guard."""
    bounds = env.bound_sympy(expression)
    return (_finite(bounds.lower), _finite(bounds.upper))


def require(condition: Any, message: Callable[[], str]) -> None:
    """Raise `message()` at run time where `condition`, a boolean or a symbolic one, does not hold, while a
    graph is traced.
    """
    torch._check(condition, message)


def is_surely(condition: bool | torch.SymBool) -> bool:
    """Tell if a condition on sizes holds whatever they are. Adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return condition if isinstance(condition, bool) else statically_known_true(condition)


def is_true_when_traced(condition: bool | torch.SymBool) -> bool:
    """Tell if a condition holds for the sizes that are traced, which adds a guard; False where
    data decides.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return condition if isinstance(condition, bool) else guard_or_false(condition)


def is_unequal(condition: object, size: torch.SymInt, number: int) -> bool:
    """Tell if `condition` is written as `size != number`. Adds no guard."""
    import sympy

    return isinstance(condition, torch.SymBool) and get_sympy(condition) == sympy.Ne(get_sympy(size), number)


def is_from_data(size: float | torch.SymInt | torch.SymFloat) -> bool:
    """Tell whether a size, or another number, depends on values that only run time knows."""
    # loaded on use: it brings sympy, and graphs of known sizes need neither
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(size, torch.SymInt | torch.SymFloat) and bool(free_unbacked_symbols(size))


def is_truth_value(number: torch.SymInt | torch.SymFloat) -> bool:
    """Tell if a condition on sizes decides a number, as it does 1.0 where it holds and 0.0 elsewhere."""
    # loaded on use, as above
    from sympy.core.relational import Relational

    return bool(get_sympy(number).has(Relational))


def make_integer_symbol(name: str) -> sympy.Symbol:
    """Return a new integer symbol."""
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    import sympy

    return sympy.Symbol(name, integer=True)


def make_floor_division(number: sympy.Basic, divisor: sympy.Basic) -> sympy.Basic:
    """`number // divisor` as torch writes it in sizes; `divisor` is a number other than 0."""
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(-number, -divisor) if divisor < 0 else FloorDiv(number, divisor)


def find_plain_symbol(value: torch.SymInt) -> sympy.Symbol | None:
    """torch's symbol if `value` is one and nothing more."""
    import sympy

    expression = get_sympy(value)
    return expression if isinstance(expression, sympy.Symbol) else None


def find_plain_symbols(values: Iterable[object]) -> set[sympy.Symbol]:
    """torch's symbols that are `values` by themselves, with nothing more."""
    symbols = (find_plain_symbol(value) for value in values if isinstance(value, torch.SymInt))
    return {name for name in symbols if name is not None}


def find_plain_number(value: int | torch.SymInt) -> int | None:
    """Return the number that `value` is whatever the sizes are; None if it is one of them. Adds no guard."""
    if isinstance(value, int):
        return int(value)
    expression = get_sympy(value)
    return int(expression) if expression.is_number else None


def find_plain_float(value: object) -> float | None:
    """Return the number that a symbolic float is, if a guard holds it to one."""
    if not isinstance(value, torch.SymFloat):
        return None
    expression = get_sympy(value)
    return float(expression) if expression.is_number else None


def is_part_of_sizes(number: torch.SymFloat, gm: torch.fx.GraphModule) -> bool:
    """Tell whether `number` is part of an integer in `gm` or of the size of a tensor."""
    own = get_sympy(number).free_symbols
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and own & get_sympy(size).free_symbols:
                return True
    return False


def unify_symbols(size: torch.SymInt, known: torch.SymInt) -> None:
    """Torch's symbol for `size`, if it is one that data decides and has no other name yet, is from now on
    that of `known`.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    old, new = find_plain_symbol(size), find_plain_symbol(known)
    if old is not None and new is not None and old != new:
        if free_unbacked_symbols(old) and free_unbacked_symbols(new):
            get_shape_env(size)._rename_unbacked_to(old, new)


def create_count(env: ShapeEnv) -> torch.SymInt:
    """Return a new symbol for a number that data decides, at least 0, which no result of a traced call
    shows.
    """
    with env.ignore_fresh_unbacked_symbols():
        count = env.create_unbacked_symint()
    env.constrain_symbol_range(get_sympy(count), 0, 2**62)
    return count


def _finite(bound: sympy.Basic | int) -> int | None:
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    import sympy

    if isinstance(bound, sympy.Integer | int):
        value = int(bound)
        # torch writes "no bound" as infinities or as the largest machine integer
        return value if abs(value) < 2**62 else None
    return None


def has_measured_results(node: torch.fx.Node) -> bool:
    """Return True if a size of a tensor that `node` returns is known from the tensor alone."""
    from torch.fx.experimental.symbolic_shapes import CallMethodKey

    paths = (node.meta.get("unbacked_bindings") or {}).values()
    return any(isinstance(step, CallMethodKey) for path in paths for step in path)
