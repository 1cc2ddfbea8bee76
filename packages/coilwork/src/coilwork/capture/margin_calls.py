"""Calls of losses by margins in Dynamo's graphs, by the functions' names or the operators'."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork.torch_compat.operators import native_function

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
    """What `node` calls; None if it is no such loss."""
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
