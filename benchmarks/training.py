"""One training step: forward, loss, backward and AdamW, each of them compiled or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.case import Instance

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Step = Callable[..., Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

# The first AdamW step moves a parameter by lr * g / (|g| + eps): a sign function for every |g| above eps.
# Gradients that are zero in exact arithmetic hold rounding noise, whose sign would then decide a full-sized
# update in eager as in any other program. This eps lies above that noise and below the gradients that matter.
LEARNING_RATE, EPSILON = 1e-3, 1e-4


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every benchmark model."""
    return torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, eps=EPSILON)


def adamw_of_each_layout(module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer for the first parameter of each shape and layout: for tests to which the others are the
    same again.
    """
    firsts: dict[tuple[object, ...], nn.Parameter] = {}
    for parameter in module.parameters():
        firsts.setdefault((parameter.shape, parameter.stride()), parameter)
    return torch.optim.AdamW(firsts.values(), lr=LEARNING_RATE, eps=EPSILON)


def update_parameters(
    module: nn.Module,
    gradients: Mapping[str, Tensor],
    *,
    captured: bool = False,
    make_optimizer: MakeOptimizer = adamw,
) -> dict[str, Tensor]:
    """The parameters of `module` (changed in place) after one eager step from given gradients, by name.

    Judging an optimizer's step from the gradients that it really got keeps its rounding apart from the
    gradients', which a division by their own magnitude enlarges at will. With `captured`, torch.compile
    captures the step and eager kernels run it, which every compiler starts from: there `1 - beta ** step` is
    computed in f32, off by 1e-5 of itself in the first step, where eager's optimizer uses Python's numbers.
    """
    for name, parameter in module.named_parameters():
        found = gradients.get(name)
        parameter.grad = None if found is None else found.to(parameter.dtype)
    optimizer = make_optimizer(module)

    def step() -> None:
        optimizer.step()

    (torch.compile(step, backend="eager") if captured else step)()
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def loss_and_gradients(instance: Instance) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss (scalar) and its gradients by parameter, in eager; parameters stay as they are. ValueError
    without a loss.

    Only parameters that have a gradient are in the result.
    """
    case, parameters = instance.case, dict(instance.module.named_parameters())
    if case.loss is None:
        raise ValueError(f"{case.name} has no training step")
    instance.module.zero_grad(set_to_none=True)
    loss = case.loss(instance.module(*instance.inputs), instance.inputs)
    torch.autograd.backward(loss)
    return loss.detach(), {name: value.grad for name, value in parameters.items() if value.grad is not None}


def make_training_step(
    instance: Instance,
    compile_function: Compile = lambda function: function,
    make_optimizer: MakeOptimizer = adamw,
) -> Step:
    """A function of the model's inputs that does one step and returns the loss (scalar, detached).

    Two functions go through `compile_function`: forward with loss (backward follows from it) and the
    optimizer's step. Gradients stay in the parameters' `.grad` until the next call. ValueError if the case
    has no loss.
    """
    case, module = instance.case, instance.module
    reduce_to_loss = case.loss
    if reduce_to_loss is None:
        raise ValueError(f"{case.name} has no training step")
    optimizer = make_optimizer(module)

    def forward(*inputs: Tensor) -> Tensor:
        return reduce_to_loss(module(*inputs), inputs)

    def update() -> None:
        optimizer.step()

    compiled_forward, compiled_update = compile_function(forward), compile_function(update)

    def step(*inputs: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = compiled_forward(*inputs)
        torch.autograd.backward(loss)
        compiled_update()
        return loss.detach()

    return step
