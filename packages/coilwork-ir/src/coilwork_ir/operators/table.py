"""One row per ATen operator of which something is to be known. Rows stand in the order of the alphabet, underscores aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.operators.info import OpInfo

_NOTHING: Final = OpInfo("")
_ROWS: Final[tuple[OpInfo, ...]] = (
    OpInfo("alias", is_view=True, is_identity=True),
    OpInfo("amax", is_reduction=True),
    OpInfo("amin", is_reduction=True),
    OpInfo("arange", is_elementwise=True),
    OpInfo("clone", is_identity=True, is_elementwise=True),
    OpInfo("constant_pad_nd", is_elementwise=True),
    OpInfo("contiguous", is_identity=True),
    OpInfo("convert_element_type", is_elementwise=True),
    OpInfo("detach", is_view=True, is_identity=True),
    OpInfo("empty", is_uninitialized=True),
    OpInfo("empty_like", is_uninitialized=True),
    OpInfo("empty_permuted", is_uninitialized=True),
    OpInfo("empty_strided", is_uninitialized=True),
    OpInfo("expand", is_view=True),
    OpInfo("full", is_elementwise=True),
    OpInfo("full_like", is_filled=True),
    OpInfo("gather", is_reduction=True),
    OpInfo("index", is_reduction=True),
    OpInfo("iota", is_elementwise=True),
    OpInfo("lift_fresh_copy", is_identity=True),
    OpInfo("log", is_reduction=True),
    OpInfo("logsumexp", is_reduction=True),
    OpInfo("mean", is_reduction=True),
    OpInfo("new_empty", is_uninitialized=True),
    OpInfo("new_empty_strided", is_uninitialized=True),
    OpInfo("new_full", is_filled=True),
    OpInfo("new_ones", is_filled=True),
    OpInfo("new_zeros", is_filled=True),
    OpInfo("ones_like", is_filled=True),
    OpInfo("permute", is_view=True, is_permutation=True),
    OpInfo("repeat", is_elementwise=True),
    OpInfo("reshape", is_reshape=True),
    OpInfo("scalar_tensor", is_elementwise=True),
    OpInfo("select", is_view=True, is_reduction=True),
    OpInfo("select_scatter", is_elementwise=True),
    OpInfo("slice", is_view=True),
    OpInfo("slice_scatter", is_elementwise=True),
    OpInfo("squeeze", is_view=True, is_reshape=True),
    OpInfo("sum", is_reduction=True),
    OpInfo("t", is_view=True, is_permutation=True),
    OpInfo("_to_copy", is_elementwise=True),
    OpInfo("transpose", is_view=True, is_permutation=True),
    OpInfo("_unsafe_view", is_view=True, is_reshape=True),
    OpInfo("unsqueeze", is_view=True, is_reshape=True),
    OpInfo("var_mean", is_reduction=True),
    OpInfo("view", is_view=True, is_reshape=True),
    OpInfo("where", is_elementwise=True),
    OpInfo("zeros_like", is_filled=True),
)
OPERATORS: Final[Mapping[str, OpInfo]] = MappingProxyType({row.name: row for row in _ROWS})
"""The rows by name."""


def find_info(name: str) -> OpInfo:
    """The facts about ATen's or prims' operator `name`, `"add"`; nothing holds of one that has no row."""
    return OPERATORS.get(name, _NOTHING)


def list_operators(holds: Callable[[OpInfo], bool]) -> tuple[str, ...]:
    """The names of the operators whose row `holds` is true of, in the table's order."""
    return tuple(row.name for row in _ROWS if holds(row))


def find_target_info(target: str) -> OpInfo:
    """The facts about the operator of an overload, `"aten.add.Tensor"`; nothing holds of those of other libraries."""
    namespace, _, rest = target.partition(".")
    return find_info(rest.partition(".")[0]) if namespace in ("aten", "prims") else _NOTHING
