"""Compiles modules of torch's database and compares forward, gradients and buffers with eager."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.eager_spread import INTEGER_OF, off_by_a_last_bit
from coilwork.backend import backend as coilwork_backend
from coilwork.errors import CoilworkFallbackWarning
from integration_tests.float64_runs import in_float64
from integration_tests.modules.database import Sample
from integration_tests.operators.database import tensors_of
from integration_tests.operators.judge import judge

SEED = 77
# Samples that are compiled together; what fails is compiled again alone.
TOGETHER = 8
# Eager runs of weights and inputs off by a last bit: how far a right gradient may be where rounding decides
# branches.
NEARBY = 8
# Outcomes that are right, or not ours to mend.
GOOD = ("ok", "dynamo", "torch", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one sample: "ok", "wrong", "raises", "fallback" (some of it was not compiled), "eager"
    (none of it was), "dynamo" (none of it with aot_eager either: Dynamo leaves the module alone), "torch"
    (aot_eager fails in the same way) or "refused" (eager raises).
    """

    sample: str
    status: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.status in GOOD


def check(
    samples: Sequence[Sample],
    *,
    backend: Callable[..., Any] = coilwork_backend,
    dynamic: bool | None = None,
    rounding: torch.dtype | None = None,
) -> list[Outcome]:
    """An outcome for each sample, compiled for sizes as `dynamic` says to `torch.compile`.

    `rounding`: the narrower type in which the samples compute, whose last bits decide branches.
    """
    way = _Way(backend=backend, dynamic=dynamic, rounding=rounding)
    outcomes: list[Outcome] = []
    usable: list[tuple[Sample, Any]] = []
    for sample in samples:
        try:
            usable.append((sample, run_eager(sample)))
        except Exception as error:  # noqa: BLE001  what eager refuses is not compared
            outcomes.append(Outcome(sample=sample.describe(), status="refused", detail=str(error)[:200]))
    for start in range(0, len(usable), TOGETHER):
        outcomes += _check_together(usable[start : start + TOGETHER], way)
    return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How samples are compiled, and judged: see `check`."""

    backend: Callable[..., Any]
    dynamic: bool | None
    rounding: torch.dtype | None


def _check_together(pairs: Sequence[tuple[Sample, Any]], way: _Way) -> list[Outcome]:
    found = _compare(pairs, way)
    if len(pairs) == 1 or all(one.good for one in found):
        return [one if one.good else _blamed(pair, one, way) for pair, one in zip(pairs, found)]
    return [outcome for pair in pairs for outcome in _check_together([pair], way)]


def _blamed(pair: tuple[Sample, Any], outcome: Outcome, way: _Way) -> Outcome:
    """The outcome, or "torch" if AOTAutograd with eager kernels is off as well."""
    (other,) = _compare([pair], replace(way, backend=torch._dynamo.lookup_backend("aot_eager")))
    status = outcome.status
    if other.status == status:
        status = "dynamo" if status == "eager" else "torch"
    return Outcome(sample=outcome.sample, status=status, detail=outcome.detail)


def _compare(pairs: Sequence[tuple[Sample, Any]], way: _Way) -> list[Outcome]:
    graphs: list[int] = []

    def counted(gm: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
        graphs.append(len(inputs))
        return way.backend(gm, inputs, **keywords)

    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True
    given = [sample for sample, _ in pairs]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = _run(torch.compile(_each, backend=counted, dynamic=way.dynamic), given)
        except Exception:  # noqa: BLE001  any failure is a finding
            text = traceback.format_exc(limit=-4)[-900:]
            return [Outcome(sample=sample.describe(), status="raises", detail=text) for sample in given]
    fallbacks = [str(one.message) for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    outcomes = []
    for (sample, expected), result in zip(pairs, results, strict=True):
        outcome = judge_results(sample, result, expected, way.rounding)
        if outcome.status == "ok" and fallbacks:
            outcome = replace(outcome, status="fallback", detail="; ".join(fallbacks)[:900])
        elif outcome.status == "ok" and not graphs:
            outcome = replace(outcome, status="eager")
        outcomes.append(outcome)
    return outcomes


def run_eager(sample: Sample) -> Any:
    """Results, gradients of inputs and parameters, and buffers afterwards, as eager gives them."""
    return _run(_each, [sample])[0]


def judge_results(sample: Sample, result: Any, expected: Any, rounding: torch.dtype | None = None) -> Outcome:
    """Tell if `result` is "ok" or "wrong" beside `expected`, each as `run_eager` gives it.

    `rounding`: as of `check`.
    """
    judgement = judge(
        result,
        expected,
        lambda: _run_wide(sample),
        nearby=lambda: [_run(_each, [_near(sample, seed, rounding)])[0] for seed in range(NEARBY)],
    )
    status = "ok" if judgement.verdict in ("ok", "marginal") else "wrong"
    return Outcome(sample=sample.describe(), status=status, detail=judgement.detail)


def _each(calls: Sequence[tuple[nn.Module, Any, Any]]) -> Any:
    """What is compiled."""
    if len(calls) == 1:
        module, arguments, keywords = calls[0]
        return (module(*arguments, **keywords),)
    return tuple([module(*arguments, **keywords) for module, arguments, keywords in calls])


def _run(function: Callable[[Any], Any], given: Sequence[Sample]) -> list[Any]:
    """Per sample: results, gradients of inputs and parameters, buffers afterwards."""
    calls, leaves = [], []
    for sample in given:
        module = copy.deepcopy(sample.module)
        arguments, keywords = copy.deepcopy((sample.arguments, sample.keywords))
        tensors = tensors_of((arguments, keywords))
        wanted = [tensors[position].requires_grad_() for position in sample.differentiable]
        # A module may overwrite its input, which a leaf does not allow.
        passed = pytree.tree_map(_through, (arguments, keywords))
        calls.append((module, *passed))
        leaves.append([*wanted, *(value for value in module.parameters() if value.requires_grad)])
    torch.manual_seed(SEED)
    results = function(calls)
    gradients = _gradients(results, leaves)
    return [
        (pytree.tree_map(_detached, result), found, [value.detach() for value in module.buffers()])
        for result, found, (module, _, _) in zip(results, gradients, calls, strict=True)
    ]


def _through(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _gradients(results: Sequence[Any], leaves: Sequence[Sequence[Tensor]]) -> list[list[Tensor | None]]:
    """Per sample the gradients of its leaves; one backward for all, as all results may come from
    one graph.
    """
    outputs, weights = [], []
    for result in results:
        for position, value in enumerate(tensors_of(result)):
            if value.requires_grad:
                generator = torch.Generator().manual_seed(position)
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                outputs.append(value)
                weights.append(noise.to(value))
    every = [leaf for part in leaves for leaf in part]
    if not outputs or not every:
        return [[] for _ in leaves]
    found = iter(torch.autograd.grad(outputs, every, weights, allow_unused=True))
    return [[next(found) for _ in part] for part in leaves]


def _run_wide(sample: Sample) -> Any:
    """What eager gives for the sample in float64."""
    with in_float64():
        return _run(_each, [_wide(sample)])[0]


def _wide(sample: Sample) -> Sample:
    arguments, keywords = pytree.tree_map(_widened, (sample.arguments, sample.keywords))
    return Sample(
        name=sample.name,
        number=sample.number,
        module=copy.deepcopy(sample.module).double(),
        arguments=arguments,
        keywords=keywords,
        differentiable=sample.differentiable,
    )


def _near(sample: Sample, seed: int, rounding: torch.dtype | None) -> Sample:
    generator = torch.Generator().manual_seed(seed)

    def moved(leaf: Any) -> Any:
        if not _is_float(leaf):
            return leaf
        return off_by_a_last_bit(leaf.detach().to(rounding or leaf.dtype), generator).to(leaf.dtype)

    module = copy.deepcopy(sample.module)
    for parameter in module.parameters():
        parameter.data = moved(parameter.data)
    arguments, keywords = pytree.tree_map(moved, (sample.arguments, sample.keywords))
    return replace(sample, module=module, arguments=arguments, keywords=keywords)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in INTEGER_OF


def _widened(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
