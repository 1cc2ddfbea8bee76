"""Torch's own database of modules: every `torch.nn` module, with the arguments that torch's tests make and
call them with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from integration_tests.operators.database import operators, tensors_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One module, made, and the arguments of one call.

    Attributes:
        name: of the module.
        number: among the samples of the module in this mode.
        module: in training or evaluation mode.
        arguments, keywords: tensors are detached leaves.
        differentiable: positions of tensors that want a gradient, in pytree order.
    """

    name: str
    number: int
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    differentiable: tuple[int, ...]

    def on(self, device: str) -> Sample:
        """The sample with its module, which moves, and its tensors on `device`."""

        def moved(leaf: Any) -> Any:
            return leaf.to(device) if isinstance(leaf, Tensor) else leaf

        arguments, keywords = torch.utils._pytree.tree_map(moved, (self.arguments, self.keywords))
        return replace(self, module=self.module.to(device), arguments=arguments, keywords=keywords)

    def describe(self) -> str:
        """The module, and the shapes that it is called with."""
        shapes = [tuple(value.shape) for value in tensors_of((self.arguments, self.keywords))]
        mode = "training" if self.module.training else "evaluation"
        return (
            f"{self.name} sample {self.number}, {mode}: {' '.join(str(self.module).split())[:120]} of "
            f"{shapes}"
        )


def modules() -> dict[str, Any]:
    """Every ModuleInfo by name."""
    operators()  # sees to what the import of torch's test tools lacks
    with mock.patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal import common_modules as database
    return {info.name: info for info in database.module_db}


def samples(name: str, info: Any, *, training: bool, dtype: torch.dtype = torch.float32) -> list[Sample]:
    """All samples of one module, in this mode."""
    torch.manual_seed(1234)
    given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    found = []
    for number, one in enumerate(given):
        torch.manual_seed(number)
        made = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
        made = made.to(dtype).train(training)
        arguments, keywords = one.forward_input.args, one.forward_input.kwargs
        tensors = tensors_of((arguments, keywords))
        differentiable = tuple(i for i, value in enumerate(tensors) if value.requires_grad)
        arguments, keywords = torch.utils._pytree.tree_map(_detached, (arguments, keywords))
        _make_lazy_ones(made, arguments, keywords)
        found.append(
            Sample(
                name=name,
                number=number,
                module=made,
                arguments=tuple(arguments),
                keywords=dict(keywords),
                differentiable=differentiable,
            )
        )
    return found


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _make_lazy_ones(module: nn.Module, arguments: Any, keywords: Any) -> None:
    """A first call, in which lazy modules make their parameters."""
    if any(isinstance(value, nn.UninitializedParameter) for value in module.parameters()):
        with torch.no_grad():
            module(*arguments, **keywords)
