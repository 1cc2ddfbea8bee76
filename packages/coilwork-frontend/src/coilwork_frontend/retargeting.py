"""Move the calls of an exported graph to another kind of device, which need not be here.

Operators that make tensors name a device. `scaled_dot_product_attention` chooses a kernel when it is traced,
by what is installed here; on an accelerator it is replaced by the call that torch would choose there
(`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`: cuDNN's on the GPUs that torch prefers it on, flash
attention, the memory-efficient kernel, plain products).
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.device_traits import PROCESSOR, has_trait

_ATEN: Final = torch.ops.aten
_HALVES: Final = (torch.float16, torch.bfloat16)
# Flash attention takes no wider heads.
_WIDEST_HEAD: Final = 256
# Heads begin at multiples of 16 bytes.
_ALIGNED_BYTES: Final = 16
# Where torch prefers cuDNN, if that is 9.15.1 or later: earlier ones are wrong for lengths that are no
# multiple of 128. Which one is there is not known here, so other lengths have flash attention.
_CUDNN_FIRST: Final = ("sm_90", "sm_100", "sm_103")
_WIDEST_CUDNN_HEAD: Final = 128
_CUDNN_LENGTH: Final = 128


def retarget_calls(gm: fx.GraphModule, device: str, target: str = "") -> None:
    """Change the calls of `gm` in place, so that they are for `device`, a `target` if it is named."""
    place = torch.device(device)
    for node in list(gm.graph.nodes):
        node.args = tuple(_move(value, place) for value in node.args)
        node.kwargs = {name: _move(value, place) for name, value in node.kwargs.items()}
        if node.target is _ATEN.scaled_dot_product_attention.default and not has_trait(place.type, PROCESSOR):
            _choose_attention(gm, node, target)
    gm.recompile()


def _move(value: Any, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) else value


def _choose_attention(gm: fx.GraphModule, node: fx.Node, target: str) -> None:
    """Replace `node` by the fused call that torch would make on an accelerator, if there is one."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, value = (given[name].meta["val"] for name in names[:3])
    mask, is_causal = given.get("attn_mask"), bool(given.get("is_causal", False))
    square = query.dim() == key.dim() == 4 and query.shape[1] == key.shape[1]
    head = query.shape[-1]
    is_known = square and head == value.shape[-1] and isinstance(head, int)
    if not is_known or given.get("dropout_p", 0.0) or head * query.element_size() % _ALIGNED_BYTES:
        return
    # both align the mask otherwise if there are more keys than queries
    if is_causal and (mask is not None or not _is_same_size(query.shape[2], key.shape[2])):
        return
    operands = tuple(given[name] for name in names[:3])
    kwargs = {"scale": given.get("scale")}
    call: Any
    is_half = query.dtype in _HALVES
    if (
        mask is None
        and is_half
        and target in _CUDNN_FIRST
        and _suits_cudnn(head, query.shape[2], key.shape[2])
    ):
        cudnn = _ATEN._scaled_dot_product_cudnn_attention.default
        call, args = cudnn, (*operands, None, False, 0.0, is_causal)
    elif mask is None and is_half and head <= _WIDEST_HEAD:
        call, args = _ATEN._scaled_dot_product_flash_attention.default, (*operands, 0.0, is_causal, False)
    elif mask is None:
        efficient = _ATEN._scaled_dot_product_efficient_attention.default
        call, args = efficient, (*operands, None, False, 0.0, is_causal)
    else:
        return
    with gm.graph.inserting_before(node):
        fused = gm.graph.call_function(call, args, kwargs)
        result = gm.graph.call_function(operator.getitem, (fused, 0))
    fused.meta.update({name: node.meta[name] for name in node.meta if name != "val"})
    result.meta.update(fused.meta)
    node.replace_all_uses_with(result)
    gm.graph.erase_node(node)


def _is_same_size(one: Any, other: Any) -> bool:
    return one is other or str(one) == str(other)


def _suits_cudnn(head: int, *lengths: Any) -> bool:
    return head <= _WIDEST_CUDNN_HEAD and all(
        isinstance(length, int) and length % _CUDNN_LENGTH == 0 for length in lengths
    )
