"""Sizes: torch's symbolic integers as index expressions, with the bounds that torch knows, and no
new guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from coilwork_ir.index import Expr, as_expr, substitute, symbol
from coilwork_ir.scalar import Scalar
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.sizes.computed import compute_rounded, is_rounded
from coilwork_lowering.sizes.multiples import as_multiple, make_bounded_symbol, residue
from coilwork_lowering.sizes.solved import solved_by
from coilwork_lowering.torch_compat.sizes import (
    expression_bounds,
    hint_of,
    integer_bounds,
    known_multiples,
    plain_integer,
    plain_symbol,
    shape_env_of,
    surely,
    sympy_of,
)

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class SizeTable:
    """The size symbols of one graph: sympy symbol -> IR symbol, filled as sizes are met.

    Sizes without an integer form, `int(0.7 * n)`, get symbols of their own. The program computes them before
    the first node that mentions them: whoever appends nodes asks `take_undefined` what is missing.
    """

    def __init__(
        self, passed: Iterable[sympy.Symbol] = (), solved: Mapping[sympy.Basic, sympy.Basic] | None = None
    ) -> None:
        """`passed` are those that the graph is given as integers: others are read off shapes, where they must
        stand alone.

        Terms of sizes that are keys of `solved` are written as its values.
        """
        self._passed = frozenset(passed)
        self._solved = dict(solved or {})
        self._known: dict[sympy.Symbol, Expr] = {}
        # the same as what they are multiples of
        self._written: dict[sympy.Symbol, Expr] = {}
        # of those that data decides: symbols of the same names without bounds
        self._unpromised: dict[Expr, Expr] = {}
        self._computed: dict[sympy.Basic, tuple[sympy.Symbol, Expr]] = {}
        self._undefined: dict[Expr, Scalar] = {}
        self._floats: dict[sympy.Basic, Scalar] = {}
        # of the sizes that are more than a symbol, those that are 1
        self._asked: set[sympy.Basic] = set()
        self._ones: dict[sympy.Basic, sympy.Basic] = {}

    @property
    def pairs(self) -> tuple[tuple[Expr, sympy.Symbol], ...]:
        """Every symbol met so far, in order of first use."""
        return tuple((ours, theirs) for theirs, ours in self._known.items())

    def knows(self, name: sympy.Symbol) -> bool:
        """Tell if `name` was met before."""
        return name in self._written

    def name_of(self, size: torch.SymInt) -> sympy.Symbol | None:
        """The symbol that `size` is, if it is no more than one."""
        expression = self._substitute_told(sympy_of(size))
        return expression if expression.is_Symbol else None

    def tells(self, size: torch.SymInt, name: str) -> bool:
        """Tell whether `size`, which a result shows, is told by nothing before it: it, or a symbol called
        `name`, is a new one.
        """
        expression = self._substitute_told(sympy_of(size))
        unknown = expression.free_symbols - self._written.keys()
        if unknown and not expression.is_Symbol:
            self._solved |= {sympy_of(size): plain_integer(name)}
            self._solved |= solved_by(expression, plain_integer(name), unknown)
        return bool(unknown)

    def _substitute_told(self, expression: sympy.Basic) -> sympy.Basic:
        """`expression` over symbols that inputs tell."""
        return expression.xreplace(self._solved) if self._solved else expression

    def unmet(self, numbers: Iterable[object]) -> frozenset[sympy.Basic]:
        """Torch's symbols in the integers among `numbers` that were not met before."""
        sizes = (
            self._substitute_told(sympy_of(number)) for number in numbers if isinstance(number, torch.SymInt)
        )
        found = (size.free_symbols for size in sizes)
        return frozenset(name for names in found for name in names if name not in self._written)

    def expr(self, size: int | torch.SymInt | Expr) -> Expr:
        """`size` as an index expression.

        Raises:
            LoweringError[symbol]: the expression has no integer form (it divides exactly), and cannot be
                computed.
        """
        if isinstance(size, Expr):
            return size
        if isinstance(size, int):
            return as_expr(size)
        return self.from_sympy(self._substitute_ones(size), shape_env_of(size))

    def _substitute_ones(self, size: torch.SymInt) -> sympy.Basic:
        """The expression of `size` with 1 in the place of what torch knows to be 1: what broadcasts is seen
        by that.
        """
        expression = sympy_of(size)
        if expression.args and expression not in self._asked:
            self._asked.add(expression)
            if hint_of(size) in (1, None) and surely(size == 1):
                self._ones[expression] = expression**0
        return expression.xreplace(self._ones) if self._ones else expression

    def exprs(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Expr, ...]:
        """`expr` of each."""
        return tuple(self.expr(size) for size in sizes)

    def symbol(self, name: sympy.Symbol, env: ShapeEnv) -> Expr:
        """The IR symbol for torch's `name`. In sizes it stands as `from_sympy` writes it."""
        if name not in self._known:
            lo, hi = integer_bounds(env, name)
            modulus, remainder = residue(name, known_multiples(env)) if name in self._passed else (1, 0)
            self._known[name] = make_bounded_symbol(name.name, lo, hi, modulus, remainder)
            self._written[name] = as_multiple(self._known[name], modulus, remainder)
        return self._known[name]

    def decided(self, ours: Expr) -> None:
        """The program finds the value of the symbol `ours` in a result."""
        self._unpromised[ours] = symbol(str(ours))

    def depends_on_data(self, size: Expr) -> bool:
        """Tell if `size` mentions a symbol whose value the program finds in a result."""
        return not size.free_symbols.isdisjoint(self._unpromised)

    def unpromised(self, size: Expr) -> Expr:
        """`size` without what the graph's own assertions promise of the numbers that data decides."""
        return substitute(size, self._unpromised) if self._unpromised else size

    def equate(self, size: int | torch.SymInt, value: Expr) -> None:
        """A size that data decides is `value`, if it is a symbol that was not met before: it is written as
        that from now on.
        """
        name = plain_symbol(size) if isinstance(size, torch.SymInt) else None
        if name is not None and not self.knows(name):
            self._written.setdefault(name, value)

    def _as_written(self, name: sympy.Symbol, env: ShapeEnv) -> Expr:
        if name not in self._written:
            self.symbol(name, env)
        return self._written[name]

    def from_sympy(self, expression: sympy.Basic, env: ShapeEnv) -> Expr:
        """`expression` over torch's symbols as an index expression."""
        expression = self._substitute_told(expression)
        # what is a float has an integer form once it is rounded
        integers = (name for name in expression.free_symbols if name.is_integer)
        free = sorted(integers, key=lambda s: s.name)
        mapping = {s.name: self._as_written(s, env) for s in free}
        try:
            return _convert_sympy(expression, mapping)
        except (TypeError, ValueError):
            pass
        try:
            named = self._name_rounded(expression, mapping, env)
            mapping |= {theirs.name: ours for theirs, ours in self._computed.values()}
            return _convert_sympy(named, mapping)
        except (TypeError, ValueError) as cause:
            raise LoweringError(
                "symbol",
                f"size {expression} has no integer form",
                reason=str(cause),
                remedy="mark fewer dimensions dynamic, or keep this part out of the compiled region",
            ) from cause

    def _name_rounded(
        self, expression: sympy.Basic, mapping: Mapping[str, Expr], env: ShapeEnv
    ) -> sympy.Basic:
        """`expression` with symbols in place of what is rounded and has no integer form."""
        if _integer_form(expression, mapping) is not None or not expression.args:
            return expression
        if not is_rounded(expression):
            return expression.func(*(self._name_rounded(one, mapping, env) for one in expression.args))
        if expression not in self._computed:
            number = compute_rounded(expression, lambda part: _integer_form(part, mapping), self._floats)
            theirs = plain_integer(f"computed{len(self._computed)}")
            lo, hi = expression_bounds(env, expression)
            ours = symbol(theirs.name, lo=lo, hi=hi)
            self._computed[expression] = (theirs, ours)
            self._undefined[ours] = number
        return self._computed[expression][0]

    # symbols that the program computes

    def float(self, number: torch.SymFloat, value: Scalar) -> None:
        """Sizes may be made of `number`, which is `value` when the program runs."""
        self._floats[sympy_of(number)] = value

    def given(self, sizes: Iterable[Expr]) -> None:
        """An input has these sizes: a symbol among them is known from the start."""
        for size in sizes:
            self._undefined.pop(size, None)

    def take_undefined(self) -> tuple[tuple[Expr, Scalar], ...]:
        """Symbols that the next node may mention and no node has defined, each with the number it is. The
        caller defines them.
        """
        found = tuple(self._undefined.items())
        self._undefined.clear()
        return found

    def undefine(self, ours: Expr, number: Scalar) -> None:
        """What defined the symbol was taken back."""
        self._undefined[ours] = number


def _convert_sympy(expression: sympy.Basic, mapping: Mapping[str, Expr]) -> Expr:
    # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
    from coilwork_ir.index.sympy_bridge import from_sympy

    return from_sympy(expression, mapping)


def _integer_form(expression: sympy.Basic, mapping: Mapping[str, Expr]) -> Expr | None:
    try:
        return _convert_sympy(expression, mapping)
    except (TypeError, ValueError):
        return None
