"""Storages of fake values as the graph has them, after its calls were merged or replaced.

AOTAutograd gives memory away that the forward saves for the backward alone. Whether a value shares it with a
result it asks the fakes in the metadata: two clones, one of them returned, that became one are two storages
there as long as views still are of the other.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx

from coilwork_lowering.facts.sharing import viewed_by
from coilwork_lowering.torch_compat.fakes import guards_suppressed, is_fake, mode_among


def renew_shared_storages(gm: fx.GraphModule) -> int:
    """Let the fake value of each view in `gm` share the storage of its operand's, in place; returns how many
    did not.
    """
    renewed = 0
    for node in gm.graph.nodes:
        source = viewed_by(node)
        if source is None:
            continue
        value, operand = node.meta.get("val"), source.meta.get("val")
        if _is_known(value) and _is_known(operand) and _storage(value) != _storage(operand):
            node.meta["val"] = _laid_into(value, operand)
            renewed += 1
    return renewed


def _is_known(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and is_fake(value) and value.layout is torch.strided


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _laid_into(value: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """`value`, in the storage of `operand`. Views as other types have offsets in elements of their own."""
    mode = mode_among((operand,))
    assert mode is not None
    with mode, guards_suppressed(mode):
        base = (
            operand
            if operand.dtype is value.dtype
            else torch.empty(0, dtype=value.dtype, device=value.device)
        )
        if base is not operand:
            base = base.set_(operand.untyped_storage(), 0, (0,), (1,))
        return base.as_strided(value.size(), value.stride(), value.storage_offset())
