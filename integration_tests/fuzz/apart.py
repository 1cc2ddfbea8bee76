"""What eager makes of elements one by one.

On a CPU eager's pointwise kernels take several elements at once where they lie side by side, and the rest, like elements that lie
apart, one by one. The two need not agree: the gradient of `relu6` at NaN is 0 in a vector and 1 beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class Apart(TorchDispatchMode):
    """Within it, operations get operands whose elements lie apart: values are eager's all the same, strides are others.

    Those of derivatives are not tagged as pointwise, so that all do but what writes or makes views.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = func._schema.returns
        if not func._schema.is_mutable and not any(result.alias_info for result in returned):
            args, kwargs = tree_map(_spread_out, args), tree_map(_spread_out, kwargs)
        return func(*args, **kwargs)


def _spread_out(leaf: object) -> object:
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or not leaf.dim():
        return leaf
    room = leaf.new_empty((*leaf.shape, 2))
    room[..., 0] = leaf
    return room[..., 0]
