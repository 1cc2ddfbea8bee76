"""How far do equally valid eager runs lie apart? The same training step from weights and inputs off by a last
bit.

A ReLU passes a gradient on or stops it, by the sign of an activation that rounding may flip; a max pool sends
it to one of two places. Whatever changes the order of an addition (another number of threads, another memory
format, another convolution algorithm, a fused kernel) flips another few of a model's millions of such
branches, and each flip moves some elements of the gradients by much more than rounding. `python -m
benchmarks.branch_flips` shows it.

Moving each weight and input by at most one unit in its last place stands for all such changes: a result that
is exact for inputs this close is as good as a float program can promise (it is backward stable), and eager's
kernels stay the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.models.case import Instance
from benchmarks.training import loss_and_gradients

# Enough for the worst of them to be stable; each costs a training step, and only a failure asks for them.
RUNS = 8
INTEGER_OF = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def off_by_a_last_bit(value: Tensor, generator: torch.Generator) -> Tensor:
    """`value` with each element one unit in the last place larger or smaller in magnitude, or as it is, at
    random.

    Zeros, infinities, NaNs and tensors of integers stay. `generator` is a CPU generator.
    """
    if not value.is_floating_point():
        return value
    step = torch.randint(-1, 2, value.shape, generator=generator).to(value.device)
    step = torch.where((value != 0) & torch.isfinite(value), step, 0)
    integer = INTEGER_OF[value.dtype]
    # Floats of one sign are ordered as the integers with their bits are: the next integer is the next float.
    return (value.detach().view(integer) + step.to(integer)).view(value.dtype)


def nearby(instance: Instance, seed: int) -> Instance:
    """A copy of `instance`, its weights and inputs moved by at most a unit in their last place."""
    generator = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(instance.module)
    for parameter in module.parameters():
        parameter.data = off_by_a_last_bit(parameter.data, generator)
    return replace(
        instance,
        module=module,
        inputs=tuple(off_by_a_last_bit(value, generator) for value in instance.inputs),
    )


def gradients_nearby(untrained: Instance, runs: int = RUNS) -> Iterator[list[Tensor]]:
    """The gradients of eager training steps that are as valid as the one from `untrained`, in its parameters'
    order.
    """
    for seed in range(runs):
        _, gradients = loss_and_gradients(nearby(untrained, seed))
        yield list(gradients.values())
