"""One row per ATen operator of which something is to be known. Rows stand in the order of the alphabet, underscores aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.operators.info import OpInfo

_NOTHING: Final = OpInfo("")
_ROWS: Final[tuple[OpInfo, ...]] = (
    OpInfo("abs", is_exact=True),
    OpInfo("add", is_cheap=True, is_rounded_once=True, is_foldable=True),
    OpInfo("alias", is_view=True, is_identity=True, is_foldable=True),
    OpInfo("amax", is_reduction=True, is_extreme=True),
    OpInfo("amin", is_reduction=True, is_extreme=True),
    OpInfo("aminmax", is_extreme=True),
    OpInfo("arange", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("as_strided", counts_from_storage=True, reads_strides=True),
    OpInfo("as_strided_copy", counts_from_storage=True, reads_strides=True),
    OpInfo("as_strided_scatter", counts_from_storage=True, reads_strides=True),
    OpInfo("bitwise_and", is_cheap=True),
    OpInfo("bitwise_not", is_cheap=True),
    OpInfo("bitwise_or", is_cheap=True),
    OpInfo("ceil", is_exact=True, is_foldable=True),
    OpInfo("clamp", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("clamp_max", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("clamp_min", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("clone", is_identity=True, is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("constant_pad_nd", is_elementwise=True, is_exact=True),
    OpInfo("contiguous", is_identity=True),
    OpInfo("convert_element_type", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("detach", is_view=True, is_identity=True, is_foldable=True),
    OpInfo("diagonal_scatter", replaces_part=True),
    OpInfo("div", is_rounded_once=True, is_foldable=True),
    OpInfo("empty", is_uninitialized=True),
    OpInfo("empty_like", is_uninitialized=True),
    OpInfo("empty_permuted", is_uninitialized=True),
    OpInfo("empty_strided", is_uninitialized=True),
    OpInfo("eq", is_cheap=True, is_comparison=True),
    OpInfo("expand", is_view=True, is_foldable=True),
    OpInfo("flip", is_foldable=True),
    OpInfo("floor", is_exact=True, is_foldable=True),
    OpInfo("floor_divide", is_foldable=True),
    OpInfo("full", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("full_like", is_filled=True),
    OpInfo("gather", is_reduction=True),
    OpInfo("ge", is_cheap=True, is_comparison=True),
    OpInfo("gt", is_cheap=True, is_comparison=True),
    OpInfo("index", is_reduction=True),
    OpInfo("index_copy", has_racing_stores=True),
    OpInfo("index_put", has_racing_stores=True),
    OpInfo("iota", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("le", is_cheap=True, is_comparison=True),
    OpInfo("lift_fresh_copy", is_identity=True),
    # refuses what it cannot view as one batch
    OpInfo("linalg_matrix_exp", reads_strides=True),
    OpInfo("linalg_vector_norm", is_extreme=True),
    OpInfo("log", is_reduction=True),
    OpInfo("logical_and", is_cheap=True),
    OpInfo("logical_not", is_cheap=True),
    OpInfo("logical_or", is_cheap=True),
    OpInfo("logsumexp", is_reduction=True),
    OpInfo("lt", is_cheap=True, is_comparison=True),
    OpInfo("_make_token", is_no_op=True),
    OpInfo("max", is_extreme=True),
    OpInfo("maximum", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("mean", is_reduction=True),
    OpInfo("median", is_extreme=True),
    OpInfo("min", is_extreme=True),
    OpInfo("minimum", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("mkldnn_rnn_layer", reads_strides=True),
    OpInfo("mkldnn_rnn_layer_backward", reads_strides=True),
    OpInfo("mul", is_cheap=True, is_rounded_once=True, is_foldable=True),
    OpInfo("nanmedian", is_extreme=True),
    OpInfo("ne", is_cheap=True, is_comparison=True),
    OpInfo("neg", is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("new_empty", is_uninitialized=True),
    OpInfo("new_empty_strided", is_uninitialized=True),
    OpInfo("new_full", is_filled=True),
    OpInfo("new_ones", is_filled=True),
    OpInfo("new_zeros", is_filled=True),
    OpInfo("ones_like", is_filled=True),
    OpInfo("permute", is_view=True, is_permutation=True),
    OpInfo("put", has_racing_stores=True),
    OpInfo("relu", is_exact=True),
    OpInfo("remainder", is_foldable=True),
    OpInfo("repeat", is_elementwise=True),
    OpInfo("reshape", is_reshape=True, is_foldable=True),
    OpInfo("round", is_foldable=True),
    OpInfo("rsub", is_cheap=True, is_rounded_once=True, is_foldable=True),
    OpInfo("scalar_tensor", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("scatter", has_racing_stores=True),
    OpInfo("select", is_view=True, is_reduction=True),
    OpInfo("select_scatter", is_elementwise=True, is_exact=True, replaces_part=True),
    OpInfo("sign", is_exact=True),
    OpInfo("_sink_tokens", is_no_op=True),
    OpInfo("slice", is_view=True, is_foldable=True),
    OpInfo("slice_scatter", is_elementwise=True, is_exact=True, replaces_part=True),
    OpInfo("sqrt", is_rounded_once=True),
    OpInfo("squeeze", is_view=True, is_reshape=True, is_foldable=True),
    OpInfo("sub", is_cheap=True, is_rounded_once=True, is_foldable=True),
    OpInfo("sum", is_reduction=True),
    OpInfo("sym_constrain_range", is_no_op=True),
    OpInfo("sym_constrain_range_for_size", is_no_op=True),
    OpInfo("sym_numel", is_size_query=True),
    OpInfo("sym_size.int", is_size_query=True),
    OpInfo("sym_storage_offset", reads_strides=True, is_size_query=True),
    OpInfo("sym_stride", reads_strides=True),
    OpInfo("sym_stride.int", reads_strides=True, is_size_query=True),
    OpInfo("t", is_view=True, is_permutation=True),
    OpInfo("_to_copy", is_elementwise=True, is_cheap=True, is_exact=True, is_foldable=True),
    OpInfo("transpose", is_view=True, is_permutation=True),
    OpInfo("trunc", is_exact=True, is_foldable=True),
    OpInfo("_unsafe_index_put", has_racing_stores=True),
    OpInfo("_unsafe_view", is_view=True, is_reshape=True, is_foldable=True),
    OpInfo("unsqueeze", is_view=True, is_reshape=True, is_foldable=True),
    OpInfo("var_mean", is_reduction=True),
    OpInfo("view", is_view=True, is_reshape=True, is_foldable=True),
    # its kernels, as those of oneDNN's recurrent layers, walk through memory without a look at strides
    OpInfo("_weight_norm_interface", reads_strides=True),
    OpInfo("_weight_norm_interface_backward", reads_strides=True),
    OpInfo("where", is_elementwise=True, is_cheap=True, is_exact=True),
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
    """The facts about an overload, `"aten.add.Tensor"`: its own row's, else its operator's. Nothing holds of other libraries' overloads."""
    namespace, _, rest = target.partition(".")
    if namespace not in ("aten", "prims"):
        return _NOTHING
    return OPERATORS.get(rest) or find_info(rest.partition(".")[0])
