"""What a benchmark model is: how to build it, what to feed it, and what rounding to expect of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor, nn


class Size(Enum):
    """`REDUCED` keeps the structure at a depth and width that runs in about a second on a CPU; `FULL` is the
    real model.

    `SMALL` is at most as wide as `REDUCED`, for kernels that run in an interpreter.
    """

    SMALL = "small"
    REDUCED = "reduced"
    FULL = "full"


Found = TypeVar("Found")


def at(sizes: Mapping[Size, Found], size: Size) -> Found:
    """Return what `sizes` has for `size`; models that say nothing of `SMALL` have their reduced size then."""
    return sizes[Size.REDUCED if size is Size.SMALL and size not in sizes else size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and in which precision a case runs; `absent_gpu`: on a CPU in place of a GPU that is
    not there.
    """

    size: Size
    device: torch.device
    dtype: torch.dtype
    absent_gpu: bool = False

    @property
    def large(self) -> bool:
        """Tell if batches should be large enough to fill a GPU."""
        return self.size is Size.FULL and (self.absent_gpu or self.device.type == "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCase:
    """One model family member.

    `build(size)` returns the module in float32 on the CPU, random weights drawn from torch's global
    generator. `inputs(setting, generator)` returns the positional arguments of its forward, drawn from a CPU
    generator. `loss(output, inputs)` reduces the forward's result to a scalar; None where the case has no
    training step. `dynamic_dims` names `(argument, dimension)` pairs that one compile has to serve at every
    size. `note` says what to expect of the rounding, or what stands in for what. `dynamo` holds settings of
    torch._dynamo.config without which this case cannot be captured as one graph.
    """

    name: str
    build: Callable[[Size], nn.Module]
    inputs: Callable[[Setting, torch.Generator], tuple[Tensor, ...]]
    loss: Callable[[Tensor, tuple[Tensor, ...]], Tensor] | None = None
    channels_last: bool = False
    dynamic_dims: tuple[tuple[int, int], ...] = ()
    dynamo: Mapping[str, bool] = field(default_factory=dict)
    note: str = ""

    @property
    def train(self) -> bool:
        """Tell if the case has a training step."""
        return self.loss is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A case made concrete: the module on its device in its dtype, and one set of arguments."""

    case: ModelCase
    module: nn.Module
    inputs: tuple[Tensor, ...]


def instantiate(case: ModelCase, setting: Setting, *, training: bool, seed: int = 0) -> Instance:
    """Build `case` with weights and inputs that depend on `seed` alone (not on device or dtype)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = case.build(setting.size)
    module = module.to(device=setting.device, dtype=setting.dtype).train(training)
    inputs = case.inputs(setting, torch.Generator().manual_seed(seed + 1))
    if case.channels_last:
        for parameter in module.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        inputs = tuple(
            value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
            for value in inputs
        )
    return Instance(case=case, module=module, inputs=inputs)


def first_rows(instance: Instance, rows: int) -> Instance:
    """`instance` at a batch of `rows`: the first rows of every input. ValueError where it has fewer."""
    batch = min(len(value) for value in instance.inputs)
    if rows > batch:
        raise ValueError(f"{instance.case.name} has a batch of {batch}, fewer than {rows}")
    return replace(instance, inputs=tuple(value[:rows] for value in instance.inputs))


def tokens(vocabulary: int, shape: tuple[int, ...], setting: Setting, generator: torch.Generator) -> Tensor:
    """Random token numbers, int64."""
    return torch.randint(vocabulary, shape, generator=generator).to(setting.device)


def normal(shape: tuple[int, ...], setting: Setting, generator: torch.Generator) -> Tensor:
    """Standard normal values in the setting's dtype; drawn in float32 so that every dtype sees
    the same ones.
    """
    return torch.randn(shape, generator=generator).to(device=setting.device, dtype=setting.dtype)


def next_token_loss(logits: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Mean cross entropy of each position's prediction of the following token. Shapes: [b, s, v]
    and [b, s].
    """
    predictions = logits[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(predictions, inputs[0][:, 1:].flatten())


def first_classes_loss(logits: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Mean cross entropy against made-up labels 0, 1, 2, ... Shape: [b, classes]."""
    labels = torch.arange(logits.shape[0], device=logits.device) % logits.shape[1]
    return nn.functional.cross_entropy(logits, labels)
