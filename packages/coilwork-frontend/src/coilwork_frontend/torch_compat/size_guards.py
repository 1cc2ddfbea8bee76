"""Write what torch's environment of symbolic sizes knows, as text and as JSON, and add guards again.

Tracing adds guards on sizes. Whoever restores a traced graph must add the same ones, so that Dynamo compiles
anew for the calls that the graph does not serve. Expressions are trees of names and numbers: nothing is
evaluated as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions

from coilwork_frontend.torch_compat.sizes import list_symbol_facts

MOST_GUARDS: Final = 200
_HEADS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        head.__name__: head
        for head in (
            sympy.Add,
            sympy.Mul,
            sympy.Pow,
            sympy.Eq,
            sympy.Ne,
            sympy.Lt,
            sympy.Le,
            sympy.Gt,
            sympy.Ge,
            sympy.And,
            sympy.Or,
            sympy.Not,
            functions.CeilDiv,
            functions.CleanDiv,
            functions.FloorDiv,
            functions.Max,
            functions.Min,
            functions.Mod,
            functions.ModularIndexing,
            functions.PowByNatural,
            functions.PythonMod,
        )
    }
)


class SizeError(Exception):
    """Sizes, or guards on them, have no form in which another process can use them."""


def find_size_environment() -> ShapeEnv | None:
    """Return the symbolic sizes of the graph that Dynamo has just captured; None if there can be none."""
    context = TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    environment = None if mode is None else mode.shape_env
    return environment if isinstance(environment, ShapeEnv) else None


def describe_environment(environment: ShapeEnv) -> str:
    """Return text of all that `environment` knows of its sizes: bounds, guards, equalities and settings.

    Raises:
        SizeError: there are sizes from data.
    """
    effect, divisible = describe_effect(environment), sorted(map(str, environment.divisible))
    guards = [str(guard.expr) for guard in environment.guards]
    return "; ".join(
        (str(environment.settings), effect, *divisible, *list_symbol_facts(environment), *guards)
    )


def check_size(size: object, *, whole: bool = True) -> None:
    """Check that a number of a graph is one that inputs have, and not one that run-time data decides.

    Raises:
        SizeError: it is not, or it is no whole number, which it has to be if `whole`.
    """
    if isinstance(size, torch.SymInt | torch.SymBool):
        if not size.node.expr.free_symbols <= set(size.node.shape_env.backed_var_to_val):
            raise SizeError("size from data")
        if any(not isinstance(one, int | sympy.Integer) for one in _list_hints(size)):
            raise SizeError("size of rows that differ")
    elif isinstance(size, torch.SymFloat) and whole:
        raise SizeError("symbolic fraction")


def _list_hints(size: torch.SymInt | torch.SymBool) -> list[object]:
    known = size.node.shape_env.backed_var_to_val
    return [known[symbol] for symbol in size.node.expr.free_symbols]


def write_guards(environment: ShapeEnv, first: int) -> list[Any]:
    """Return the guards of `environment` from number `first` on as JSON.

    Raises:
        SizeError: one has no form as data, or they are too many.
    """
    guards = environment.guards[first:]
    if len(guards) > MOST_GUARDS:
        raise SizeError(f"tracing added {len(guards)} guards on sizes")
    return [_write(guard.expr) for guard in guards]


def hold_guards(guards: Sequence[Any]) -> bool:
    """Tell if guards that were written hold for the sizes of the call at hand.

    Raises:
        SizeError: they are damaged, or name a size that is not there.
    """
    environment = _require_environment()
    values: Mapping[Any, Any] = environment.backed_var_to_val
    return all(one.xreplace(values) == sympy.true for one in _read_all(guards, environment))


def add_guards(guards: Sequence[Any], after: str) -> None:
    """Add guards that were written, and hold, to what is known of the sizes of the graph at hand.

    Guards that follow from others are left out. `after` is `describe_effect` once tracing had added them.

    Raises:
        SizeError: their effect is another one. There are then more guards than are needed.
    """
    environment = _require_environment()
    for condition in _read_all(guards, environment):
        environment.evaluate_expr(condition)
    if describe_effect(environment) != after:
        raise SizeError("the same guards have another effect on sizes")


def describe_effect(environment: ShapeEnv) -> str:
    """Return text of what guards do to other sizes: bounds, and symbols that they replace.

    Raises:
        SizeError: there are sizes from data, whose checks are no guards.
    """
    if environment.deferred_runtime_asserts or environment.pending_fresh_unbacked_symbols:
        raise SizeError("sizes from data")
    ranges = sorted(f"{symbol}:{bounds}" for symbol, bounds in environment.var_to_range.items())
    return "; ".join((*ranges, *sorted(f"{old} = {new}" for old, new in environment.replacements.items())))


def _require_environment() -> ShapeEnv:
    environment = find_size_environment()
    if environment is None:
        raise SizeError("there are no symbolic sizes")
    return environment


def _read_all(guards: Sequence[Any], environment: ShapeEnv) -> list[Any]:
    symbols = {str(symbol): symbol for symbol in environment.backed_var_to_val}
    return [_read(guard, symbols) for guard in guards]


def _write(value: Any) -> Any:
    match value:
        case sympy.Symbol():
            return ["symbol", str(value)]
        case sympy.Integer():
            return int(value)
        case sympy.Rational():
            return ["fraction", int(value.p), int(value.q)]
        case _ if value in (sympy.true, sympy.false):
            return bool(value)
    name = type(value).__name__
    if name not in _HEADS:
        raise SizeError(f"{name} in a guard on sizes")
    return [name, *map(_write, value.args)]


def _read(value: Any, symbols: Mapping[str, Any]) -> Any:
    match value:
        case bool():
            return sympy.true if value else sympy.false
        case int():
            return sympy.Integer(value)
        case ["symbol", str() as name] if name in symbols:
            return symbols[name]
        case ["fraction", int() as over, int() as under]:
            return sympy.Rational(over, under)
        case [str() as name, *args] if name in _HEADS:
            return _HEADS[name](*(_read(one, symbols) for one in args))
        case _:
            raise SizeError(f"{value!r} is no guard on sizes at hand")
