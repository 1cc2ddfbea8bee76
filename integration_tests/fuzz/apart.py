"""What eager makes of elements one by one, and of the same in vectors.

On a CPU eager's pointwise kernels take several elements at once where they lie side by side, and the rest,
like elements that lie apart, one by one. The two need not agree: the gradient of `relu6` at NaN is 0 in a
vector and 1 beside it.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Elements that fill whole vectors of any type, and results that are worth it.
_LANES: Final = 64
_MOST_REPEATED: Final = 100_000


class Apart(TorchDispatchMode):
    """Within it, operations get operands whose elements lie apart: values are eager's all the same, strides
    are others.

    Those of derivatives are not tagged as pointwise, so that all do but what writes or makes views.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = func._schema.returns
        if not func._schema.is_mutable and not any(result.alias_info for result in returned):
            args, kwargs = tree_map(_spread_out, args), tree_map(_spread_out, kwargs)
        return func(*args, **kwargs)


class InVectors(TorchDispatchMode):
    """Within it, operations that take elements one by one, or that are derivatives of such, get each element
    as often as fills a vector.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        returned = func._schema.returns
        of_elements = torch.Tag.pointwise in func.tags or func._schema.name.endswith("_backward")
        if not of_elements or func._schema.is_mutable or any(one.alias_info for one in returned):
            return result
        if not isinstance(result, Tensor) or result.numel() > _MOST_REPEATED:
            return result
        shapes = {leaf.shape for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        if not shapes or torch.broadcast_shapes(*shapes) != result.shape:
            return result
        try:
            repeated = func(*tree_map(_repeat, args), **tree_map(_repeat, kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return result
        if repeated.shape == (*result.shape, _LANES):
            result.copy_(repeated[..., 0])
        return result


def _repeat(leaf: object) -> object:
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return leaf
    return leaf.unsqueeze(-1).expand(*leaf.shape, _LANES).contiguous()


def _spread_out(leaf: object) -> object:
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or not leaf.dim():
        return leaf
    room = leaf.new_empty((*leaf.shape, 2))
    room[..., 0] = leaf
    return room[..., 0]
