"""Judges the first call of a compiled model: its results and, in training, gradients and updated parameters.

Results are continuous functions of weights and inputs; gradients through ReLU or max pooling are not: they
may be judged beside more than one eager run. Updated parameters are judged as a step from the gradients that
were found.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.accuracy import (
    AccuracyError,
    Comparison,
    compare,
    compare_group,
    float64_copy,
    tensors_of,
    to_float64,
)
from benchmarks.eager_spread import gradients_nearby
from benchmarks.models.case import Instance
from benchmarks.training import loss_and_gradients, update_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one call leaves behind. `gradients` and `parameters` are by name, and empty in inference."""

    results: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    parameters: Mapping[str, Tensor] = field(default_factory=dict)


def outcome_of(instance: Instance, output: object, *, training: bool) -> Outcome:
    """The outcome of a call on `instance` that returned `output`."""
    if not training:
        return Outcome(results=tensors_of(output))
    parameters = dict(instance.module.named_parameters())
    return Outcome(
        results=tensors_of(output),
        gradients={name: value.grad for name, value in parameters.items() if value.grad is not None},
        parameters={name: value.detach() for name, value in parameters.items()},
    )


def eager_outcome(untrained: Instance, *, training: bool) -> Outcome:
    """The outcome of an eager call on a copy of `untrained`, without the parameters: those follow from
    gradients.
    """
    instance = replace(untrained, module=copy.deepcopy(untrained.module))
    if training:
        loss, gradients = loss_and_gradients(instance)
        return Outcome(results=(loss,), gradients=gradients)
    with torch.no_grad():
        return outcome_of(instance, instance.module(*instance.inputs), training=False)


def judge(found: Outcome, untrained: Instance, *, training: bool) -> list[Comparison]:
    """Compare `found` with what eager and a float64 copy make of `untrained`, the model before the call.

    Raises AccuracyError where the tensors themselves are not eager's: their number, shapes, dtypes or
    devices.
    """
    in_float64 = replace(
        untrained, module=float64_copy(untrained.module), inputs=to_float64(untrained.inputs)
    )
    expected = eager_outcome(untrained, training=training)
    exact = eager_outcome(in_float64, training=training)
    triples = zip(found.results, expected.results, exact.results, strict=True)
    comparisons = [
        compare(f"result {number}", compiled=c, eager=e, reference=r)
        for number, (c, e, r) in enumerate(triples)
    ]
    if not training:
        return comparisons
    names = list(expected.gradients)
    if found.gradients.keys() != expected.gradients.keys():
        raise AccuracyError(
            f"gradients of {sorted(found.gradients)} where eager has those of {sorted(names)}"
        )
    comparisons += compare_group(
        [f"gradient {name}" for name in names],
        compiled=[found.gradients[name] for name in names],
        eager=list(expected.gradients.values()),
        reference=[exact.gradients[name] for name in names],
        more_eager=partial(gradients_nearby, untrained),
    )
    expected_parameters = update_parameters(copy.deepcopy(untrained.module), found.gradients)
    exact_parameters = update_parameters(in_float64.module, found.gradients)
    comparisons += compare_group(
        [f"parameter {name}" for name in expected_parameters],
        compiled=[found.parameters[name] for name in expected_parameters],
        eager=list(expected_parameters.values()),
        reference=list(exact_parameters.values()),
        more_eager=lambda: [list(_run_captured_step(untrained, found).values())],
    )
    return comparisons


def _run_captured_step(untrained: Instance, found: Outcome) -> dict[str, Tensor]:
    """The parameters after eager's kernels ran the step as compilers are given it."""
    return update_parameters(copy.deepcopy(untrained.module), found.gradients, captured=True)
