"""Likely values of symbolic sizes: for costs and preferences only, never for correctness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int, evaluate
from coilwork_scheduler.options import ScheduleOptions


@dataclass(slots=True)
class SizeHints:
    """Estimates sizes; remembers what it has estimated. Lives for one call of `schedule`."""

    known: Mapping[str, int]
    default: int
    _values: dict[Expr, int] = field(default_factory=dict)

    def value(self, expr: Expr) -> int:
        """The likely value of `expr`, in which range symbols count as half their extent."""
        plain = as_int(expr)
        if plain is not None:
            return plain
        found = self._values.get(expr)
        if found is None:
            env = {s.name: self._symbol(s) for s in expr.free_symbols}
            try:
                found = evaluate(expr, env)
            except ArithmeticError:
                found = self.default
            self._values[expr] = found
        return found

    def _symbol(self, symbol: Expr) -> int:
        if symbol.extent is not None:
            return self.value(symbol.extent) // 2
        value = self.known.get(symbol.name, self.default)
        if symbol.lo is not None:
            value = max(value, symbol.lo)
        if symbol.hi is not None:
            value = min(value, symbol.hi)
        return value

    def numel(self, extents: tuple[Expr, ...]) -> int:
        """The likely number of points of a domain with these extents."""
        count = 1
        for extent in extents:
            count *= max(self.value(extent), 0)
        return count

    def size_bytes(self, buffer: Buffer) -> int:
        """The likely size of a buffer's elements, expanded dimensions counted once."""
        count = buffer.dtype.itemsize
        for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
            if as_int(stride) != 0:
                count *= max(self.value(extent), 0)
        return count


def hints_of(options: ScheduleOptions) -> SizeHints:
    """The estimator that `options` describe."""
    return SizeHints(known=dict(options.size_hints), default=options.default_size_hint)
