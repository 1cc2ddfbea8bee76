"""Ways to call an operator, and what a call gives: results, what it wrote to, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integration_tests.operators.database import Sample, tensors_of

Operator = Callable[..., Any]
SEED = 1234


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the operator is called: `name` for reports, `backward` for gradients too, `dynamic` sizes,
    mutation, `hard` inputs.
    """

    name: str
    backward: bool = False
    dynamic: bool = False
    mutates: bool = False
    out: bool = False
    hard: bool = False


WAYS = {
    way.name: way
    for way in (
        Way(name="forward"),
        Way(name="backward", backward=True),
        Way(name="dynamic", dynamic=True),
        Way(name="dynamic_backward", dynamic=True, backward=True),
        Way(name="inplace", mutates=True),
        Way(name="out", out=True),
        Way(name="hard", hard=True),
    )
}


def compiled_calls(function: Operator, way: Way) -> Callable[[Sequence[Any]], Any]:
    """What is compiled: the operator called on every sample in turn, without a loop if there is but one."""

    def one(call: Any) -> Any:
        arguments, keywords, out = call
        return function(*arguments, **keywords, out=out) if way.out else function(*arguments, **keywords)

    def several(calls: Sequence[Any]) -> Any:
        # Dynamo gives up a function that breaks within a loop, and goes on after a break outside of one.
        return (one(calls[0]),) if len(calls) == 1 else tuple([one(call) for call in calls])

    return several


def run_all(
    function: Callable[[Sequence[Any]], Any], given: Sequence[Sample], way: Way, *, seed: int = SEED
) -> list[Any]:
    """Per sample: the results, then what the call wrote to, then gradients.

    Raises:
        ValueError: nothing to differentiate.
    """
    calls = []
    for sample in given:
        arguments, keywords = sample.fresh(requires_grad=way.backward)
        out = _outputs(function, sample) if way.out else None
        calls.append((arguments, keywords, out))
    torch.manual_seed(seed)
    results = function(calls)
    inputs = [tensors_of((arguments, keywords)) for arguments, keywords, _ in calls]
    gradients: Sequence[Any] = [()] * len(calls)
    if way.backward:
        gradients = _gradients([sample.finish(one) for sample, one in zip(given, results)], inputs)
    written = [call if way.mutates or way.out else () for call in calls]
    return [(_detached(result), _detached(w), g) for result, w, g in zip(results, written, gradients)]


def _outputs(function: Callable[[Sequence[Any]], Any], sample: Sample) -> Any:
    """Tensors for `out=`, like eager's results."""
    arguments, keywords = sample.fresh()
    results = function([(arguments, keywords, None)])[0]
    filled = [torch.full_like(value, 1) for value in tensors_of(results)]
    return filled[0] if isinstance(results, Tensor) else tuple(filled)


def _detached(value: object) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, value
    )


def _gradients(results: Sequence[object], inputs: Sequence[Sequence[Tensor]]) -> list[tuple[Any, ...]]:
    """Per sample, the gradients of its inputs; all from one call, as all results may come from one graph."""
    outputs, weights = [], []
    for result in results:
        differentiable = [value for value in tensors_of(result) if value.requires_grad]
        if not differentiable:
            raise ValueError("nothing to differentiate")
        for index, value in enumerate(differentiable):
            generator = torch.Generator(device=value.device).manual_seed(index)
            noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float64)
            outputs.append(value)
            weights.append(noise.to(value.dtype))
    wanted = [[value for value in tensors if value.requires_grad] for tensors in inputs]
    if not all(wanted):
        raise ValueError("nothing to differentiate")
    flat = iter(torch.autograd.grad(outputs, [v for one in wanted for v in one], weights, allow_unused=True))
    return [tuple(next(flat) for _ in one) for one in wanted]
