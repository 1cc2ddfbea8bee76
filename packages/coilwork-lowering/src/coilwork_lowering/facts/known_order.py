"""Index tensors whose values are known never to decrease: the rows in which `nonzero` found something.

Elements that are added at such positions lie in the order of their rows as they come, and need no sort. A mixture of experts adds up
its tokens so.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat.operators import Overload

_aten: Final = torch.ops.aten
_SAME: Final = frozenset({"alias", "detach", "clone", "contiguous", "lift_fresh_copy"})
_RESHAPES: Final = frozenset({"view", "_unsafe_view", "reshape", "squeeze"})


def in_order(given: Any) -> bool:
    """Whether the FX value `given` is a vector of positions, none negative, each at least the one before, in every run."""
    if not isinstance(given, torch.fx.Node) or not _is_vector(given):
        return False
    if given.target is operator.getitem:
        return _is_first_of_unbound(given)
    if given.op != "call_function" or not isinstance(given.target, Overload):
        return False
    name, source = given.target._schema.name.rpartition("::")[2], given.args[0]
    if name == "select":
        return _is_found(source) and given.args[1:3] in ((1, 0), (-1, 0))
    if name == "slice":
        step = given.args[4] if len(given.args) > 4 else 1
        return isinstance(step, int) and step > 0 and in_order(source)
    if name in _RESHAPES and _is_found(source):
        return _is_column(source)
    return (name in _SAME or name in _RESHAPES) and in_order(source)


def _is_vector(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype == torch.int64


def _is_found(given: Any) -> bool:
    """What `nonzero` gives: coordinates row by row, in row-major order, as its documentation says."""
    return isinstance(given, torch.fx.Node) and given.target is _aten.nonzero.default


def _is_column(found: Any) -> bool:
    columns = found.meta["val"].shape[1]
    return type(columns) is int and columns == 1


def _is_first_of_unbound(node: torch.fx.Node) -> bool:
    source, number = node.args
    if not isinstance(source, torch.fx.Node) or source.target is not _aten.unbind.int:
        return False
    return _is_found(source.args[0]) and (*source.args[1:], number) in ((1, 0), (-1, 0))
