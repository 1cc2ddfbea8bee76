"""Sizes: torch's symbolic integers as index expressions, with the bounds that torch knows, and no new guards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.torch_compat import integer_bounds, shape_env_of, sympy_of

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class SizeTable:
    """The size symbols of one graph: sympy symbol -> IR symbol, filled as sizes are met."""

    def __init__(self) -> None:
        self._known: dict[sympy.Symbol, Expr] = {}

    @property
    def pairs(self) -> tuple[tuple[Expr, sympy.Symbol], ...]:
        """Every symbol met so far, in order of first use."""
        return tuple((ours, theirs) for theirs, ours in self._known.items())

    def knows(self, name: sympy.Symbol) -> bool:
        """Whether `name` was met before."""
        return name in self._known

    def expr(self, size: int | torch.SymInt | Expr) -> Expr:
        """`size` as an index expression.

        Raises:
            LoweringError[symbol]: the expression has no integer form (it divides exactly, or uses floats).
        """
        if isinstance(size, Expr):
            return size
        if isinstance(size, int):
            return as_expr(size)
        return self.from_sympy(sympy_of(size), shape_env_of(size))

    def exprs(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Expr, ...]:
        """`expr` of each."""
        return tuple(self.expr(size) for size in sizes)

    def symbol(self, name: sympy.Symbol, env: ShapeEnv) -> Expr:
        """The IR symbol for torch's `name`."""
        if name not in self._known:
            lo, hi = integer_bounds(env, name)
            self._known[name] = symbol(name.name, lo=lo, hi=hi)
        return self._known[name]

    def from_sympy(self, expression: sympy.Basic, env: ShapeEnv) -> Expr:
        """`expression` over torch's symbols as an index expression."""
        # sympy takes longer to load than this package; whoever has symbolic sizes has loaded it
        from coilwork_ir.index.sympy_bridge import from_sympy

        free = sorted(expression.free_symbols, key=lambda s: s.name)
        mapping = {s.name: self.symbol(s, env) for s in free}
        try:
            return from_sympy(expression, mapping)
        except (TypeError, ValueError) as cause:
            raise LoweringError(
                "symbol",
                f"size {expression} has no integer form",
                reason=str(cause),
                remedy="mark fewer dimensions dynamic, or keep this part out of the compiled region",
            ) from cause
