"""Which calls of an ATen graph are convolutions: the one place that knows these operators by name.

Lowering makes nodes of them. Passes over the ATen graph, which lay operands out or pack weights, ask here,
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_lowering.facts.origins import operator_name

FORWARD: Final = "aten.convolution.default"
"""The overload that convolves, transposed or not."""

GRADIENTS: Final = "aten.convolution_backward.default"
"""The overload that computes the gradients of a convolution's operands."""

# Positions of arguments: tensors that lie in memory, then numbers. The gradient of the output comes first.
_FORWARD: Final[Mapping[str, int]] = MappingProxyType({"input": 0, "weight": 1, "transposed": 6, "groups": 8})
_GRADIENTS: Final[Mapping[str, int]] = MappingProxyType(
    {"grad_output": 0, "input": 1, "weight": 2, "transposed": 7, "groups": 9}
)
_NUMBERS: Final = ("transposed", "groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """A call of a convolution, or of its gradients.

    Attributes:
        node: the call.
        positions: where arguments stand, by their names.
    """

    node: torch.fx.Node
    positions: Mapping[str, int]

    @property
    def operands(self) -> tuple[int, ...]:
        """Positions of the tensors: input and weight, behind the output's gradient if there is one."""
        return tuple(position for name, position in self.positions.items() if name not in _NUMBERS)

    def __getitem__(self, name: str) -> Any:
        """The argument called `name`; None where the call leaves it out."""
        position = self.positions[name]
        return self.node.args[position] if position < len(self.node.args) else None


def convolution_of(node: torch.fx.Node) -> ConvolutionCall | None:
    """`node` as a convolution or its gradients; None if it is another call."""
    if node.op != "call_function":
        return None
    positions = {FORWARD: _FORWARD, GRADIENTS: _GRADIENTS}.get(operator_name(node))
    return None if positions is None else ConvolutionCall(node=node, positions=positions)
