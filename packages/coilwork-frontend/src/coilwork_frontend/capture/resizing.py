"""Images resized where a gradient is wanted: the operator is kept until autograd has seen it.

Torch takes it apart before autograd, and no table of decompositions replaces that: the gradient is then a sum
by position for every element of the image that one of the result reads, 4 of them for bilinear and 16 for
bicubic resizing. Of the operator itself it is one, which lowering turns into a sum over the results that an
element counts for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.torch_compat.dynamo import decompose_after_autograd
from coilwork_ir.device_traits import PROCESSOR, has_trait

_aten: Final = torch.ops.aten
# By how many dimensions the tensor has and how it is resized.
_OPERATORS: Final[Mapping[tuple[int, str], Callable[..., Tensor]]] = MappingProxyType(
    {
        (3, "linear"): _aten.upsample_linear1d.default,
        (4, "bilinear"): _aten.upsample_bilinear2d.default,
        (4, "bicubic"): _aten.upsample_bicubic2d.default,
        (5, "trilinear"): _aten.upsample_trilinear3d.default,
    }
)


def keep_resizing(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, differentiate the operators that resize, where sizes are known."""
    changed = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is functional.interpolate:
            node.target = _resized
            changed = True
    if changed:
        gm.recompile()


def _resized(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if input.requires_grad and torch.is_grad_enabled():
        found = _of_known_sizes(input, *args, **kwargs)
        if found is not None:
            return found
    return functional.interpolate(input, *args, **kwargs)


def _of_known_sizes(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:
    """None where torch's own is to do it, or to say what is wrong."""
    operator = _OPERATORS.get((input.dim(), mode))
    if operator is None or antialias or not input.is_floating_point():
        return None
    sizes = input.shape[2:]
    if (size is None) == (scale_factor is None) or (recompute_scale_factor and size is not None):
        return None
    given: Any = size if size is not None else scale_factor
    each: tuple[Any, ...] = tuple(given) if isinstance(given, tuple | list) else (given,) * len(sizes)
    plain = int if size is not None else (int, float)
    # bool is an int, and a size of one for torch
    if len(each) != len(sizes) or not all(isinstance(n, plain) and not isinstance(n, bool) for n in each):
        return None
    if not all(isinstance(n, int) for n in input.shape):
        return None
    result = each if size is not None else tuple(int(n * scale) for n, scale in zip(sizes, each, strict=True))
    if min((*sizes, *result)) < 1:
        return None
    if (
        mode == "linear"
        and has_trait(input.device.type, PROCESSOR)
        and (align_corners or not _is_doubled(sizes[0], result[0]))
    ):
        # one read per element and tap: computing weights anew takes longer than adding up by position
        return None
    known = scale_factor is not None and not recompute_scale_factor
    scales = tuple(float(scale) if known else None for scale in each)
    with decompose_after_autograd():
        return operator(input, list(result), bool(align_corners), *scales)


def _is_doubled(size: int, result: int) -> bool:
    """Tell if a power of two is by how much the result is longer."""
    times, rest = divmod(result, size)
    return rest == 0 and times & (times - 1) == 0
