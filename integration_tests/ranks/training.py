"""A training step as every case has it: what is built, from what, and how losses of ranks become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from integration_tests.ranks.transformer import Scale, loss_of
from integration_tests.ranks.world import Rank

# A function of the step's number that returns its loss, the same scalar on every rank.
Step: TypeAlias = Callable[[int], Tensor]

BATCHES = 4
LEARNING_RATE, MOMENTUM = 0.05, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Attributes:
    compile: makes of a function or module what a back end makes of it; in eager mode the same.
    exact: everything is float64, mixed precision of the case's own included.
    """

    me: Rank
    scale: Scale
    compile: Callable[..., Any]
    exact: bool = False

    def module(self, make: Callable[[Scale], nn.Module]) -> nn.Module:
        """A module with the same numbers on every rank and in every dtype."""
        torch.manual_seed(7)
        module = make(self.scale)
        return module.to(device=self.me.device, dtype=self.scale.dtype)

    def batch(self, number: int, *, own: bool) -> tuple[Tensor, Tensor]:
        """The batch of step `number`; with `own` each rank has another."""
        tokens, targets = self.scale.tokens(number % BATCHES, rank=self.me.rank if own else 0)
        return tokens.to(self.me.device), targets.to(self.me.device)


Build: TypeAlias = Callable[[Setting], Step]


def descend(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of all cases. Its update is linear in the gradient: one that divides by the gradient's
    size makes full steps of rounding noise. Of DTensors and others it updates each kind in one go."""
    groups: dict[type, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(type(parameter.data), []).append(parameter)
    listed = [{"params": group} for group in groups.values()]
    return torch.optim.SGD(listed, lr=LEARNING_RATE, momentum=MOMENTUM)


def average(loss: Tensor, ranks: int) -> Tensor:
    """The mean over ranks of a scalar that lies whole on each."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss / ranks


def make_step(
    setting: Setting, module: nn.Module, *, own: bool, loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Step:
    """The step of a module of tokens. `loss` computes it of tokens and targets, compiled or not; by default
    the module's call and the loss are compiled together."""

    def whole(tokens: Tensor, targets: Tensor) -> Tensor:
        return loss_of(module(tokens), targets)

    forward = setting.compile(whole) if loss is None else loss
    optimizer = descend(module.parameters())

    def step(number: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        result: Tensor = forward(*setting.batch(number, own=own))
        result.backward()
        optimizer.step()
        return average(result, setting.me.ranks) if own else result.detach()

    return step
