"""Results that are Python's numbers, in their own types: a program returns tensors and integers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[list[Any]], Sequence[Any]]
_Conversion = Callable[[Any], Any]


def with_numbers(gm: torch.fx.GraphModule, call: Call) -> Call:
    """`call`, whose results get the types that they have in `gm`: booleans, floats, constants."""
    conversions = _conversions(gm)
    if not conversions:
        return call

    def converted(args: list[Any]) -> Sequence[Any]:
        results = list(call(args))
        for position, conversion in conversions:
            results[position] = conversion(results[position])
        return results

    return converted


def _conversions(gm: torch.fx.GraphModule) -> tuple[tuple[int, _Conversion], ...]:
    (items,) = gm.graph.output_node().args
    listed: Sequence[Any] = items if isinstance(items, list | tuple) else (items,)
    found = ((position, _conversion(item)) for position, item in enumerate(listed))
    return tuple((position, conversion) for position, conversion in found if conversion is not None)


def _conversion(item: Any) -> _Conversion | None:
    if isinstance(item, bool | float):
        return lambda result: item
    value = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
    if isinstance(value, bool | torch.SymBool):
        return lambda result: bool(_number(result))
    if isinstance(value, float | torch.SymFloat):
        return lambda result: float(_number(result))
    return None


def _number(result: Any) -> Any:
    return result.item() if isinstance(result, torch.Tensor) else result
