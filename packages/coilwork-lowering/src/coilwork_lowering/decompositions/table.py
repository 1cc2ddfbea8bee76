"""Which operators AOTAutograd takes apart before lowering. Nothing here comes from `torch._inductor`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_lowering.decompositions.own import own_decompositions
from coilwork_lowering.decompositions.products import product_decompositions
from coilwork_lowering.facts.accepted_numbers import of_accepted_numbers
from coilwork_lowering.facts.accepted_types import of_accepted_types
from coilwork_lowering.options import LoweringOptions, names
from coilwork_lowering.torch_compat.operators import (
    Overload,
    base_decompositions,
    composite_operators,
    more_decompositions,
    qualified_name,
)

_EXTRA: Final = (
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
    "native_batch_norm_backward",
    "batch_norm_backward",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_dropout_backward",
    "gelu",
    "gelu_backward",
    "_to_copy",
    "dist",
    "ldexp",
    "narrow_copy",
    "tril_indices",
    "triu_indices",
    "rrelu_with_noise_backward",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)

# the fused kernel beats what the decomposition becomes, or the operator has a lowering of its own
_KEPT: Final = frozenset(
    {
        "aten.convolution",
        "aten.convolution_backward",
        "aten.addmm",
        "aten.baddbmm",
        "aten.bmm",
        "aten.mm",
        "aten.addmv",
        "aten.mv",
        "aten.sum",
        "aten.var_mean",
        "aten.std_mean",
        "aten.split",
        "aten.split_with_sizes",
        "aten.unbind",
        "aten.select_scatter",
        "aten.slice_scatter",
        "aten.diagonal_scatter",
        "aten.frac",
        "aten.lerp",
        "aten.mish",
        "aten.mish_backward",
        "aten.addcmul",
        "aten.addcdiv",
        "aten.clamp_min",
        "aten.clamp_max",
        "aten.tril",
        "aten.triu",
        "aten._unsafe_index",
        "aten.index_select",
        "aten.embedding_dense_backward",
        "aten.native_dropout",
        "aten.stack",
        "aten.masked_fill",
        "aten.logsumexp",
        "aten.softshrink",
        "aten.eye",
        "aten.arange",
        "aten.fill",
        "aten.zeros",
        "aten.ones",
        "aten.zeros_like",
        "aten.ones_like",
        "aten.full_like",
        "aten.new_full",
        "aten.new_zeros",
        "aten.new_ones",
        "aten.rsub",
        "aten.unfold",
        "aten.isposinf",
        "aten.isneginf",
        "aten.diagonal",
        "aten.cat",
        "aten.std",
        "aten.any",
        "aten.all",
        "aten.square",
        "aten.t",
        "aten.transpose",
        "aten.detach",
    }
)
_ATTENTION: Final = "aten._scaled_dot_product_"


def decompositions(options: LoweringOptions = LoweringOptions()) -> dict[Any, Callable[..., Any]]:  # noqa: B008
    """The table for AOTAutograd: torch's core decompositions and more, less what is kept whole. It is the caller's own."""
    return dict(_table(options, composite_operators()))


@functools.lru_cache(maxsize=8)
def _table(options: LoweringOptions, operators: tuple[str, ...]) -> Mapping[Any, Callable[..., Any]]:
    """As `decompositions`; where there are other `operators`, there is another table."""
    table = base_decompositions()
    packets = [
        getattr(torch.ops.aten, name) for name in _EXTRA if name in dir(torch.ops.aten) or _exists(name)
    ]
    table.update(more_decompositions(packets))
    table.update(own_decompositions(table))
    kept = {op: function for op, function in table.items() if not _is_kept(op, options)}
    if options.sum_products:
        kept.update(product_decompositions())
    return MappingProxyType(
        {op: of_accepted_types(op, of_accepted_numbers(op, function)) for op, function in kept.items()}
    )


def _exists(name: str) -> bool:
    try:
        getattr(torch.ops.aten, name)
    except AttributeError:
        return False
    return True


def _is_kept(op: Any, options: LoweringOptions) -> bool:
    if not isinstance(op, Overload):
        return False
    name = qualified_name(op)
    packet = name.rpartition(".")[0]
    if packet.startswith(_ATTENTION):
        return not options.decompose_sdpa
    return packet in _KEPT or names((*options.keep, *options.fallback), name)
