"""Models with random weights that torchvision and timm define, as samples for
`integration_tests.modules.checks`.

Named `torchvision/resnet18` and `timm/NAME`. The libraries are not among what the tests install: where one is
missing, asking for its models says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from integration_tests.modules.database import Sample

LIBRARIES: Final = ("torchvision", "timm")
BATCH: Final = 2
# In pixels, where a model does not ask for another size.
IMAGE: Final = 224
# Of a model that has one size alone.
IMAGES: Final = {"torchvision/inception_v3": 299}
# Parts of names of small models, the smallest first.
SMALL: Final = (
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "xxtiny",
    "xtiny",
    "tiny",
    "xs",
    "_s",
    "small",
    "b0",
    "18",
    "_b",
)
# Larger ones of torchvision take minutes and show nothing that the small ones do not.
TOO_LARGE: Final = (
    "b4",
    "b5",
    "b6",
    "b7",
    "_l",
    "_h_",
    "16gf",
    "32gf",
    "128gf",
    "152",
    "101",
    "169",
    "201",
    "161",
)


class Results(nn.Module):
    """A model whose results are tensors in a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Any, ...]:
        found = self.model(image)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def names(library: str) -> list[str]:
    """Models of the library: of timm one of each of its modules."""
    if library == "torchvision":
        models = importlib.import_module("torchvision.models")
        found = [
            name for name in models.list_models(module=models) if not any(part in name for part in TOO_LARGE)
        ]
    else:
        timm = importlib.import_module("timm")
        families = [timm.list_models(module=module) for module in timm.list_modules()]
        found = [_smallest(models) for models in families if models]
    return [f"{library}/{name}" for name in dict.fromkeys(found)]


def _smallest(models: Sequence[str]) -> str:
    """What its name says is the smallest of some models."""

    def size(name: str) -> tuple[int, int, str]:
        return next((k for k, part in enumerate(SMALL) if part in name), len(SMALL)), len(name), name

    return min(models, key=size)


def sample(name: str, *, training: bool) -> Sample:
    """The model and one call of it."""
    torch.manual_seed(0)
    library, _, model_name = name.partition("/")
    if library == "torchvision":
        model = importlib.import_module("torchvision.models").get_model(model_name, weights=None)
        size = IMAGES.get(name, IMAGE)
    else:
        model = importlib.import_module("timm").create_model(model_name, pretrained=False)
        size = model.default_cfg["input_size"][-1]
    set_chance_to_zero(model)
    generator = torch.Generator().manual_seed(size)
    return Sample(
        name=name,
        number=0,
        module=Results(model.float()).train(training),
        arguments=(torch.randn(BATCH, 3, size, size, generator=generator),),
        keywords={},
        differentiable=(),
    )


def set_chance_to_zero(model: nn.Module) -> None:
    """No dropout and no depth at random."""
    for part in model.modules():
        for name in ("p", "drop_prob", "drop_rate", "dropout"):
            if type(getattr(part, name, None)) is float:
                setattr(part, name, 0.0)
