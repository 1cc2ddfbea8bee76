"""The checks that every model passes on every device: inference, a training step, one compile for
all sizes.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.accuracy import (
    Comparison,
    check_all,
    compare,
    compare_group,
    float64_copy,
    tensors_of,
    to_float64,
)
from benchmarks.backends import resolve_backend
from benchmarks.models import Instance, ModelCase, Setting, instantiate
from benchmarks.training import MakeOptimizer, adamw, make_training_step, update_parameters

# Another backend's name here runs the same checks on it: the way to find out whether a failure is ours or the
# model's.
BACKEND = os.environ.get("TEST_BACKEND", "coilwork")


class CountingBackend:
    """The backend under test, counting how often Dynamo asks it to compile a graph."""

    def __init__(self, name: str = BACKEND) -> None:
        resolved = resolve_backend(name)
        self._backend = torch._dynamo.lookup_backend(resolved) if isinstance(resolved, str) else resolved
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        self.graphs += 1
        return self._backend(graph, inputs, **options)


@contextmanager
def no_fallback() -> Iterator[None]:
    """Turn Coilwork's fallback warning into an error, so that eager running in its place is no pass."""
    with warnings.catch_warnings():
        if BACKEND == "coilwork":
            from coilwork.errors import CoilworkFallbackWarning

            warnings.simplefilter("error", CoilworkFallbackWarning)
        yield


@contextmanager
def fresh_dynamo(case: ModelCase) -> Iterator[None]:
    """Dynamo without anything compiled before, under the settings that the case needs."""
    torch._dynamo.reset()
    settings = torch._dynamo.config.patch(dict(case.dynamo)) if case.dynamo else nullcontext()
    try:
        with settings, no_fallback():
            yield
    finally:
        torch._dynamo.reset()


def compare_outputs(
    name: str, compiled: Callable[..., Any], module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Comparison, ...]:
    """Run `compiled`, eager `module` and its float64 copy on the same inputs and judge each result tensor;
    strides are eager's.
    """
    with torch.no_grad():
        actual = tensors_of(compiled(*inputs))
        eager = tensors_of(module(*inputs))
        reference = tensors_of(float64_copy(module)(*to_float64(inputs)))
    if not len(actual) == len(eager) == len(reference):
        raise AssertionError(
            f"{len(actual)} compiled results, {len(eager)} eager, {len(reference)} reference"
        )
    strides, expected = ([value.stride() for value in values] for values in (actual, eager))
    assert strides == expected, f"{name}: strides {strides} where eager has {expected}"
    return tuple(
        compare(f"{name} result {index}", compiled=c, eager=e, reference=r)
        for index, (c, e, r) in enumerate(zip(actual, eager, reference, strict=True))
    )


def check_inference(case: ModelCase, setting: Setting) -> None:
    """The forward of `case` in evaluation mode: captured whole, compiled once, right on a second input as
    well.
    """
    instance = instantiate(case, setting, training=False)
    second = case.inputs(setting, torch.Generator().manual_seed(99))
    backend = CountingBackend()
    with fresh_dynamo(case):
        compiled = torch.compile(instance.module, backend=backend, fullgraph=True)
        check_all(compare_outputs(case.name, compiled, instance.module, instance.inputs))
        if not case.channels_last:  # `second` is contiguous, which would be another compile
            check_all(compare_outputs(f"{case.name}, second input", compiled, instance.module, second))
    assert backend.graphs == 1, f"{backend.graphs} graphs compiled where one was expected"


def _after_step(instance: Instance, loss: Tensor) -> dict[str, dict[str, Tensor]]:
    """What a training step leaves behind, by group."""
    parameters = dict(instance.module.named_parameters())
    gradients = {name: value.grad for name, value in parameters.items() if value.grad is not None}
    return {
        "loss": {"loss": loss},
        "gradient": gradients,
        "parameter": {name: value.detach() for name, value in parameters.items()},
        "buffer": dict(instance.module.named_buffers()),
    }


def check_training(case: ModelCase, setting: Setting, make_optimizer: MakeOptimizer = adamw) -> None:
    """One forward, loss, backward and AdamW step: loss, gradients, updated parameters and buffers.

    Updated parameters are judged as a step from the gradients that the compiled program found itself.
    """
    eager = instantiate(case, setting, training=True)
    compiled = replace(eager, module=copy.deepcopy(eager.module))
    untrained = copy.deepcopy(eager.module)
    reference = replace(eager, module=float64_copy(eager.module), inputs=to_float64(eager.inputs))

    backend = CountingBackend()
    with fresh_dynamo(case):
        step = make_training_step(
            compiled, lambda function: torch.compile(function, backend=backend), make_optimizer
        )
        found = _after_step(compiled, step(*compiled.inputs))
    expected = _after_step(eager, make_training_step(eager)(*eager.inputs))
    exact = _after_step(reference, make_training_step(reference)(*reference.inputs))
    exact["parameter"], expected["parameter"] = (
        update_parameters(module, found["gradient"], make_optimizer=make_optimizer)
        for module in (float64_copy(untrained), untrained)
    )

    for group, values in expected.items():
        assert found[group].keys() == values.keys()
        check_all(
            compare_group(
                [f"{case.name} {group} {name}" for name in values],
                compiled=list(found[group].values()),
                eager=list(values.values()),
                reference=[exact[group][name] for name in values],
            )
        )
    assert backend.graphs >= 2, "forward and optimizer step should both have reached the backend"


def check_dynamic_sizes(case: ModelCase, setting: Setting, sizes: tuple[tuple[int, ...], ...]) -> None:
    """One compile, with `case.dynamic_dims` marked dynamic, serves inputs of every size in `sizes`.

    Each entry of `sizes` gives one length per dynamic dimension. The case's arguments must be tensors of
    tokens.
    """
    instance = instantiate(case, setting, training=False)
    generator = torch.Generator().manual_seed(7)
    backend = CountingBackend()
    with fresh_dynamo(case):
        compiled = torch.compile(instance.module, backend=backend, fullgraph=True)
        for lengths in sizes:
            shapes = [list(value.shape) for value in instance.inputs]
            for (argument, dim), length in zip(case.dynamic_dims, lengths, strict=True):
                shapes[argument][dim] = length
            inputs = tuple(
                torch.randint(int(value.max()) + 1, shape, generator=generator).to(setting.device)
                for value, shape in zip(instance.inputs, shapes, strict=True)
            )
            for argument, dim in case.dynamic_dims:
                torch._dynamo.mark_dynamic(inputs[argument], dim)
            check_all(compare_outputs(f"{case.name} at {lengths}", compiled, instance.module, inputs))
    assert backend.graphs == 1, f"{backend.graphs} compiles for {len(sizes)} sizes"
