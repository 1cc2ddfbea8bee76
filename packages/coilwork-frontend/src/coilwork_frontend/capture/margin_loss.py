"""Losses by margins, where torch's decompositions, which no table of decompositions replaces, are not what
eager computes.

The labels of a row of `multilabel_margin_loss` end at the first -1: torch's takes the places behind the end
for labels of the first class. The losses of one row, whose label has no dimension, have none either: torch's
have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.torch_compat.operators import native_function

MULTI: Final[Any] = torch.ops.aten.multi_margin_loss.default
MULTILABEL: Final[Any] = torch.ops.aten.multilabel_margin_loss.default
MULTILABEL_FORWARD: Final[Any] = torch.ops.aten.multilabel_margin_loss_forward.default
BY_NAME: Final = MappingProxyType(
    {functional.multi_margin_loss: MULTI, functional.multilabel_margin_loss: MULTILABEL}
)
_OPERATORS: Final = MappingProxyType(
    {
        **BY_NAME,
        native_function("multi_margin_loss"): MULTI,
        native_function("multilabel_margin_loss"): MULTILABEL,
        **{op.overloadpacket: op for op in (MULTI, MULTILABEL, MULTILABEL_FORWARD)},
        **{op: op for op in (MULTI, MULTILABEL, MULTILABEL_FORWARD)},
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginCall:
    """A call of `operator`, one of the three above, with the values that Dynamo traced."""

    operator: Any
    scores: Tensor
    labels: Tensor
    weight: Tensor | None


def margin_call(node: fx.Node) -> MarginCall | None:
    """Return what `node` calls; None if it is no such loss."""
    operator = _OPERATORS.get(node.target) if node.op == "call_function" else None
    scores, labels = _given(node, 0, "input", "self"), _given(node, 1, "target")
    if operator is None or scores is None or labels is None:
        return None
    weight = _given(node, 4, "weight") if operator is MULTI else None
    return MarginCall(operator=operator, scores=scores, labels=labels, weight=weight)


def _given(node: fx.Node, position: int, *names: str) -> Tensor | None:
    arguments = [*node.args[position : position + 1], *(node.kwargs.get(name) for name in names)]
    values = [one.meta.get("example_value") for one in arguments if isinstance(one, fx.Node)]
    return next((value for value in values if isinstance(value, Tensor)), None)


_REDUCTIONS: Final = ("none", "mean", "sum")


def write_out_label_margins(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, compute the losses as eager does."""
    changed = False
    for node in list(gm.graph.nodes):
        call = margin_call(node)
        written = None if call is None else _written_out(call, by_name=node.target in BY_NAME)
        if written is not None:
            node.target = written
            changed = True
    if changed:
        gm.recompile()


def _written_out(call: MarginCall, *, by_name: bool) -> Callable[..., Any] | None:
    if call.operator is MULTI:
        if call.labels.dim() > 0:
            return None
        return _loss_of_one_label if by_name else _loss_of_one_label_by_number
    # eager has kernels for floats alone, of one row or several
    if not call.scores.is_floating_point() or call.scores.dim() > 2:
        return None
    if call.operator is MULTILABEL_FORWARD:
        return _loss_and_labels
    return _loss if by_name else _loss_by_number


def _loss_of_one_label(*args: Any, **kwargs: Any) -> Tensor:
    return functional.multi_margin_loss(*args, **kwargs).reshape(())


def _loss_of_one_label_by_number(*args: Any, **kwargs: Any) -> Tensor:
    found: Tensor = MULTI(*args, **kwargs)
    return found.reshape(())


def _loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    if reduce is not None or size_average is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return _of_labels(input, target, reduction)[0]


def _loss_by_number(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _of_labels(self, target, _REDUCTIONS[reduction])[0]


def _loss_and_labels(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    return _of_labels(self, target, _REDUCTIONS[reduction])


def _of_labels(given: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """`sum(max(0, 1 - (x[label] - x[other]))) / classes` of a row, over its labels and all classes that are
    none of them.

    Beside it which classes are labels, as numbers.
    """
    scores = given.reshape(1) if given.dim() == 0 else given
    labels = target.reshape(scores.shape)
    classes = scores.shape[-1]
    labelled = (labels == -1).cumsum(-1) == 0
    own = torch.where(labelled, labels, -1)
    is_label = (own.unsqueeze(-1) == torch.arange(classes, device=labels.device)).any(-2)
    chosen = scores.gather(-1, torch.where(labelled, labels, 0))
    margins = 1 - chosen.unsqueeze(-1) + scores.unsqueeze(-2)
    counts = labelled.unsqueeze(-1) & ~is_label.unsqueeze(-2) & (margins > 0)
    losses = torch.where(counts, margins, 0).sum((-1, -2)) / classes
    if reduction != "none":
        losses = losses.mean() if reduction == "mean" else losses.sum()
    return losses, is_label.reshape(target.shape).to(given.dtype)
