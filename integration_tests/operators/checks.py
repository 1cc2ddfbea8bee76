"""Runs one operator through `torch.compile(..., backend="coilwork")` beside eager, on several samples at a time."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coilwork.backend import backend as coilwork_backend
from coilwork.errors import CoilworkFallbackWarning
from integration_tests.operators.database import Sample, hard_samples, samples, tensors_of
from integration_tests.operators.judge import judge

Operator = Callable[..., Any]
SEED = 1234
# Enough that a coin is thrown twice alike on every one is unlikely.
SEEDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one way to run one operator.

    `status`: "ok", "marginal", "wrong", "dtype", "shape", "strides" (see `judge`), "random" (only dtype, shape and
    strides could be compared), "crash" (raises where eager does not), "fallback" (right, but a graph or an operator
    could not be compiled), "eager" (nothing was compiled), "torch" (fails with aot_eager in the same way),
    "skipped" (eager raises, no samples, or not supported).
    """

    op: str
    way: str
    dtype: str
    status: str
    detail: str = ""
    sample: str = ""

    def as_record(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the operator is called: `name` for reports, `backward` for gradients too, `dynamic` sizes, mutation, `hard` inputs."""

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
        Way(name="inplace", mutates=True),
        Way(name="out", out=True),
        Way(name="hard", hard=True),
    )
}


class Counted:
    """A backend that counts the graphs it is given."""

    def __init__(self, compile_graph: Callable[..., Any]) -> None:
        self._compile_graph = compile_graph
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any, **keywords: Any) -> Any:
        self.graphs += 1
        return self._compile_graph(graph, inputs, **keywords)


def check(name: str, op: Any, *, way: Way, device: str, dtype: torch.dtype, most: int) -> list[Outcome]:
    """All outcomes of one operator, called one way with one dtype."""
    label = str(dtype).removeprefix("torch.")

    def outcome(status: str, detail: str = "", sample: str = "") -> Outcome:
        return Outcome(op=name, way=way.name, dtype=label, status=status, detail=detail, sample=sample)

    function = op.inplace_variant if way.mutates else op.op
    supported = op.supported_backward_dtypes(device) if way.backward else op.supported_dtypes(device)
    if function is None or dtype not in supported or (way.out and not op.supports_out):
        return [outcome("skipped", "not supported")]
    torch.manual_seed(SEED)
    try:
        if way.hard:
            given = hard_samples(op, device, dtype, most=4 * most)
        else:
            given = samples(op, device, dtype, requires_grad=way.backward, most=most)
    except Exception as error:  # noqa: BLE001  the database's own failures are not ours
        return [outcome("skipped", f"no samples: {error}")]
    usable = []
    for sample in given:
        try:
            usable.append((sample, _expected(function, sample, way)))
        except Exception:  # noqa: BLE001  what eager refuses is not compared
            continue
    if not usable:
        return [outcome("skipped", "eager raises on every sample, or nothing to differentiate")]
    # A random operator may give the same twice by chance, on few elements.
    random = any(expected.random for _, expected in usable)
    usable = [(sample, replace(expected, random=random)) for sample, expected in usable]
    together = _compare(function, usable, way, coilwork_backend)
    if all(status in GOOD for status, _ in together):
        return [outcome(*max(together, key=lambda found: GOOD.index(found[0])))]
    found = []
    alone = [_compare(function, [pair], way, coilwork_backend)[0] for pair in usable]
    if all(status in (*GOOD, "eager") for status, _ in alone) and together[0][0] == "eager":
        # One compiled sample is enough: others may be written such that Dynamo does not trace them.
        return [outcome(*min(alone, key=lambda one: (*GOOD, "eager").index(one[0])))]
    for pair, (status, detail) in zip(usable, alone):
        if status in (*GOOD, "eager"):
            continue
        aot, _ = _compare(function, [pair], way, torch._dynamo.lookup_backend("aot_eager"))[0]
        found.append(outcome("torch" if aot == status else status, detail, pair[0].describe()))
    if not found:
        position = next(i for i, (status, _) in enumerate(together) if status not in GOOD)
        found.append(
            outcome(*together[position], "only with the other samples: " + usable[position][0].describe())
        )
    return found


# Best first.
GOOD = ("ok", "random", "marginal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Eager's results; `random` if another seed gives others."""

    results: Any
    random: bool


def _expected(function: Operator, sample: Sample, way: Way) -> Expected:
    """Eager's results. Raises whatever eager raises."""
    first = _run_all(_calls(function, way), [sample], way, seed=SEED)[0]
    others = (_run_all(_calls(function, way), [sample], way, seed=SEED + k)[0] for k in range(1, SEEDS))
    random = any(
        not torch.equal(_bits(one), _bits(other))
        for found in others
        for one, other in zip(tensors_of(first), tensors_of(found))
    )
    return Expected(results=first, random=random)


def _bits(value: Tensor) -> Tensor:
    if value.layout is not torch.strided:
        value = value.to_dense()
    return torch.nan_to_num(value.detach().resolve_conj().resolve_neg())


def _calls(function: Operator, way: Way) -> Callable[[Sequence[Any]], Any]:
    """What is compiled: the operator called on every sample in turn, without a loop if there is but one."""

    def one(call: Any) -> Any:
        arguments, keywords, out = call
        return function(*arguments, **keywords, out=out) if way.out else function(*arguments, **keywords)

    def several(calls: Sequence[Any]) -> Any:
        # Dynamo gives up a function that breaks within a loop, and goes on after a break outside of one.
        return (one(calls[0]),) if len(calls) == 1 else tuple([one(call) for call in calls])

    return several


def _run_all(
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
    gradients = _gradients(results, inputs) if way.backward else [()] * len(calls)
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
        for index, value in enumerate(tensors_of(result)):
            if value.requires_grad:
                generator = torch.Generator(device=value.device).manual_seed(index)
                noise = torch.randn(
                    value.shape, generator=generator, device=value.device, dtype=torch.float64
                )
                outputs.append(value)
                weights.append(noise.to(value.dtype))
    wanted = [[value for value in tensors if value.requires_grad] for tensors in inputs]
    if not outputs or not all(wanted):
        raise ValueError("nothing to differentiate")
    flat = iter(torch.autograd.grad(outputs, [v for one in wanted for v in one], weights, allow_unused=True))
    return [tuple(next(flat) for _ in one) for one in wanted]


def _compare(
    function: Operator, pairs: Sequence[tuple[Sample, Expected]], way: Way, backend: Callable[..., Any]
) -> list[tuple[str, str]]:
    """Status and detail for each sample, all compiled together with the given backend."""
    torch._dynamo.reset()
    counted = Counted(backend)
    # Sizes and numbers that depend on data stay in the graph, so that these operators are compiled at all.
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    compiled = torch.compile(_calls(function, way), backend=counted, dynamic=way.dynamic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = _run_all(compiled, [sample for sample, _ in pairs], way)
        except Exception as error:  # noqa: BLE001  any failure is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            return [("crash", text if len(text) < 1600 else f"{text[:800]} ... {text[-800:]}")] * len(pairs)
    fallbacks = [str(one.message) for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
    judged = []
    for (sample, expected), result in zip(pairs, results):
        wide = lambda sample=sample: _run_all(_calls(function, way), [sample.in_float64()], way)[0]  # noqa: E731
        judgement = judge(result, expected.results, wide)
        status, detail = str(judgement.verdict), judgement.detail
        if expected.random and status == "wrong":
            judgement = judge(result, expected.results, wide, values=False)
            status = "random" if judgement.verdict == "ok" else judgement.verdict
            detail = judgement.detail
        if status in ("ok", "marginal", "random"):
            if fallbacks:
                status, detail = "fallback", "; ".join(fallbacks)[:1500]
            elif not counted.graphs:
                status = "eager"
        judged.append((status, detail))
    return judged
