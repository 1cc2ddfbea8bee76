"""Index tensors whose values are known never to decrease: the rows in which `nonzero` found something, and
counted positions.

Elements that are added at such positions lie in the order of their rows as they come, and need no sort. A
mixture of experts adds up its tokens so, and an embedding of positions its gradients.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.known_positions import known_values
from coilwork_lowering.torch_compat.fakes import use_real_tensors
from coilwork_lowering.torch_compat.operators import Overload

_aten: Final = torch.ops.aten


def is_in_order(given: Any) -> bool:
    """Tell if the FX value `given` is a row of positions, none negative, each at least the one before, in
    every run.

    Of its dimensions at most one is of another size than 1, unless all its values are known when compiling.
    """
    if not isinstance(given, torch.fx.Node):
        return False
    values = known_values(given)
    if values is not None:
        with use_real_tensors():
            row = values.reshape(-1)
            return bool((row[0] >= 0) & (row[1:] >= row[:-1]).all())
    if not _is_row(given):
        return False
    if given.target is operator.getitem:
        return _is_first_of_unbound(given)
    if given.op != "call_function" or not isinstance(given.target, Overload):
        return False
    name, source = given.target._schema.name.rpartition("::")[2], given.args[0]
    if name in ("arange", "iota"):
        return _counts_up(given, name)
    if name == "add":
        more = given.args[1]
        return type(more) is int and more >= 0 and not given.kwargs and is_in_order(source)
    if name == "select":
        return _is_found(source) and given.args[1:3] in ((1, 0), (-1, 0))
    if name == "slice":
        step = given.args[4] if len(given.args) > 4 else 1
        return isinstance(step, int) and step > 0 and is_in_order(source)
    info = find_info(name)
    if info.is_reshape and _is_found(source):
        return _is_column(source)
    return (info.is_identity or info.is_reshape) and is_in_order(source)


def step_from_zero(given: Any) -> int | None:
    """The step, above zero, of a row of positions that an `arange` counts up from 0; None of
    anything else.
    """
    while isinstance(given, torch.fx.Node) and isinstance(given.target, Overload) and _is_row(given):
        name = given.target._schema.name.rpartition("::")[2]
        if name in ("arange", "iota"):
            start, step = _range_of(given, name)
            return step if type(start) is int and start == 0 and type(step) is int and step > 0 else None
        info = find_info(name)
        if not info.is_identity and not info.is_reshape:
            return None
        given = given.args[0]
    return None


def _is_row(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64:
        return False
    return value.dim() > 0 and sum(type(size) is not int or size != 1 for size in value.shape) <= 1


def _counts_up(node: torch.fx.Node, name: str) -> bool:
    """Tell whether a range of so many positions begins at 0 or later, and goes up."""
    start, step = _range_of(node, name)
    return type(start) is int and start >= 0 and type(step) is int and step > 0


def _range_of(node: torch.fx.Node, name: str) -> tuple[Any, Any]:
    """The first number of a call of `arange` or `iota`, and its step."""
    overload = node.target
    assert isinstance(overload, Overload)
    if name == "iota":
        return node.kwargs.get("start"), node.kwargs.get("step")
    if overload is _aten.arange.default:
        return 0, 1
    return node.args[0], node.args[2] if len(node.args) > 2 else 1


def _is_found(given: Any) -> bool:
    """Return what `nonzero` gives: coordinates row by row, in row-major order, as its documentation says."""
    return isinstance(given, torch.fx.Node) and given.target is _aten.nonzero.default


def _is_column(found: Any) -> bool:
    columns = found.meta["val"].shape[1]
    return type(columns) is int and columns == 1


def _is_first_of_unbound(node: torch.fx.Node) -> bool:
    source, number = node.args
    if not isinstance(source, torch.fx.Node) or source.target is not _aten.unbind.int:
        return False
    return _is_found(source.args[0]) and (*source.args[1:], number) in ((1, 0), (-1, 0))
