"""Models of any other library, as samples for `integration_tests.modules.checks`.

A catalogue is a Python file with a function `entries()`: pairs of a name and a function without arguments
that makes a model and gives it with the arguments of a call, and if it has any the keywords:

    def entries():
        yield "linear", lambda: (nn.Linear(4, 3), (torch.randn(2, 4),))
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from integration_tests.architectures.vision import set_chance_to_zero
from integration_tests.modules.database import Sample
from integration_tests.operators.database import tensors_of

# As many attributes deep are tensors looked for in results that are objects.
DEPTH = 4


def read_catalogue(path: Path) -> dict[str, Callable[[], Any]]:
    """What makes each model of the catalogue at `path`, by name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dynamo imports the modules whose functions it traces by their names.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return dict(module.entries())


class TensorsOf(nn.Module):
    """A model whose results are all tensors that its own are made of."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, ...]:
        return tuple(_flat(self.model(*arguments, **keywords), DEPTH))


def _flat(value: Any, depth: int) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif depth and hasattr(value, "__dict__") and not callable(value):
        parts, depth = list(vars(value).values()), depth - 1
    else:
        return []
    return [tensor for part in parts for tensor in _flat(part, depth)]


def sample(name: str, make: Callable[[], Any], *, training: bool) -> Sample:
    """The model that `make` gives and one call of it; a training step differentiates floats that it takes."""
    torch.manual_seed(0)
    model, arguments, *rest = make()
    keywords = rest[0] if rest else {}
    set_chance_to_zero(model)
    floats = [
        position
        for position, value in enumerate(tensors_of((tuple(arguments), keywords)))
        if value.dtype == torch.float32
    ]
    return Sample(
        name=name,
        number=0,
        module=TensorsOf(model.float()).train(training),
        arguments=tuple(arguments),
        keywords=keywords,
        differentiable=tuple(floats) if training else (),
    )
