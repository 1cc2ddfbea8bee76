"""Iteration domains as index tensors, and index expressions over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, evaluate, fold

Number: TypeAlias = int | Tensor


class Domain:
    """A product of ranges, one tensor dimension per range, in order.

    A value over the domain is a tensor that broadcasts to `shape`: size 1 (or no dimensions at all) along
    ranges that it does not vary along.
    """

    def __init__(
        self, ranges: Sequence[Expr], sizes: Mapping[str, int], device: torch.device | None = None
    ) -> None:
        self.sizes = sizes
        self.position = {value: k for k, value in enumerate(ranges)}
        self.shape = tuple(_extent(value, sizes) for value in ranges)
        self.grid: dict[Expr, Tensor] = {}
        for k, value in enumerate(ranges):
            line = torch.arange(self.shape[k], dtype=torch.int64, device=device)
            self.grid[value] = line.reshape([-1 if d == k else 1 for d in range(len(self.shape))])

    @property
    def empty(self) -> bool:
        """True if there is no point."""
        return 0 in self.shape

    def index(self, expr: Expr, placeholders: Mapping[str, Tensor]) -> Tensor:
        """The value of `expr` at every point; `placeholders` are the values that `@k` stands for."""

        def symbol(value: Expr) -> Number:
            found = self.grid.get(value)
            if found is not None:
                return found
            if value.name in placeholders:
                return placeholders[value.name]
            return evaluate(value, self.sizes)

        result: Number = fold(
            expr,
            const=lambda n: n,
            symbol=symbol,
            add=_chain(_add),
            mul=_chain(_mul),
            floordiv=_floordiv,
            mod=_mod,
            minimum=_chain(_minimum),
            maximum=_chain(_maximum),
        )
        return torch.as_tensor(result, dtype=torch.int64)


def _extent(value: Expr, sizes: Mapping[str, int]) -> int:
    if value.extent is None:
        raise InterpretError("range", f"{value!r} is not a range symbol")
    return max(evaluate(value.extent, sizes), 0)


def _chain(step: Callable[[Number, Number], Number]) -> Callable[[Sequence[Number]], Number]:
    def apply(operands: Sequence[Number]) -> Number:
        result = operands[0]
        for operand in operands[1:]:
            result = step(result, operand)
        return result

    return apply


def _add(a: Number, b: Number) -> Number:
    return a + b


def _mul(a: Number, b: Number) -> Number:
    return a * b


def _floordiv(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return torch.div(torch.as_tensor(a), torch.as_tensor(b), rounding_mode="floor")


def _mod(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return torch.remainder(torch.as_tensor(a), torch.as_tensor(b))


def _minimum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _maximum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
