"""Loops of a known number of rounds, as calls in FX graphs.

`scan` and `map` become calls of `run_rounds`. The body takes a row of a tensor by `take_row` and puts one
into a stack of results by `store_row`. Both name the row by the number of the round, which is a size: rows
are views, and their places in memory need no check. None of the functions is ever run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from coilwork_ir.index import Expr, as_expr
from coilwork_lowering.building import values
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.slice_updates import store_part


@dataclass(frozen=True, slots=True)
class RoundNumber:
    """The metadata of a body's last placeholder: the number of the round, one of `rounds`."""

    rounds: int | torch.SymInt


def run_rounds(
    rounds: int, body: torch.fx.GraphModule, carried: tuple[Any, ...], extra: tuple[Any, ...]
) -> NoReturn:
    """Call `body(*carried, *extra, number)` for each `number` below `rounds`; it returns what the next round
    carries.
    """
    raise AssertionError("lowering replaces this call")


def take_row(rows: torch.Tensor, number: int, is_reversed: bool) -> NoReturn:
    """Row `number` of `rows`; counted from the end if `is_reversed`."""
    raise AssertionError("lowering replaces this call")


def store_row(stack: torch.Tensor, number: int, row: torch.Tensor, is_reversed: bool) -> NoReturn:
    """Overwrite row `number` of `stack`; counted from the end if `is_reversed`."""
    raise AssertionError("lowering replaces this call")


def lower_row_access(builder: Builder, target: object, arguments: tuple[Value, ...]) -> Value:
    """Lower a call of `take_row` or `store_row`, whose arguments are given."""
    rows, number, *row, is_reversed = arguments
    assert isinstance(rows, TensorValue) and isinstance(number, Expr | int)
    position = rows.shape[0] - 1 - as_expr(number) if is_reversed else as_expr(number)
    chosen = values.select(rows, 0, position)
    if target is take_row:
        return chosen
    (given,) = row
    assert isinstance(given, TensorValue)
    store_part(builder, chosen, given)
    return None
