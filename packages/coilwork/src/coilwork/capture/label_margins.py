"""`multilabel_margin_loss`, whose labels of a row end at the first -1.

Torch's decomposition, which no table of decompositions replaces, takes the places behind the end for labels of the first class.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork.torch_compat.operators import native_function

_BY_NAME: Final[Any] = functional.multilabel_margin_loss
_BY_NUMBER: Final[tuple[Any, ...]] = (
    native_function("multilabel_margin_loss"),
    torch.ops.aten.multilabel_margin_loss,
    torch.ops.aten.multilabel_margin_loss.default,
)
_REDUCTIONS: Final = ("none", "mean", "sum")


def write_out_label_margins(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, compute the loss by its formula."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.target in (_BY_NAME, *_BY_NUMBER) and _is_of_floats(node):
            node.target = _loss if node.target is _BY_NAME else _loss_by_number
            changed = True
    if changed:
        gm.recompile()


def _is_of_floats(node: fx.Node) -> bool:
    """Eager has kernels for floats alone, of one row or several."""
    operand = node.all_input_nodes[0].meta.get("example_value")
    return isinstance(operand, Tensor) and operand.is_floating_point() and operand.dim() in (1, 2)


def _loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`sum(max(0, 1 - (x[label] - x[other]))) / classes` of a row, over its labels and all classes that are none of them."""
    if reduce is not None or size_average is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    classes = input.shape[-1]
    labelled = (target == -1).cumsum(-1) == 0
    own = torch.where(labelled, target, -1)
    is_label = (own.unsqueeze(-1) == torch.arange(classes, device=target.device)).any(-2)
    scores = input.gather(-1, torch.where(labelled, target, 0))
    margins = 1 - scores.unsqueeze(-1) + input.unsqueeze(-2)
    counts = labelled.unsqueeze(-1) & ~is_label.unsqueeze(-2) & (margins > 0)
    losses = torch.where(counts, margins, 0).sum((-1, -2)) / classes
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _loss_by_number(input: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _loss(input, target, reduction=_REDUCTIONS[reduction])
