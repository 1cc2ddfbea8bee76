"""Runs one operator through `torch.compile(..., backend="coilwork")` beside eager, on several samples at a
time.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coilwork.backend import backend as coilwork_backend
from coilwork.errors import CoilworkError, CoilworkFallbackWarning
from coilwork_ir.errors import CoilworkIRError
from integration_tests.fuzz.ties import StableSorts
from integration_tests.fuzz.zeros import ZeroSigns
from integration_tests.operators.calls import SEED, Operator, Way, compiled_calls, run_all
from integration_tests.operators.database import Sample, hard_samples, samples, tensors_of, tolerance
from integration_tests.operators.judge import judge
from integration_tests.operators.positions import WITHOUT_ORDER, settled

# Enough that a coin is thrown alike every time is unlikely.
SEEDS = 8
# Samples that are compiled together: as many as keep one another's symbols of sizes few.
TOGETHER = 16
TOGETHER_DYNAMIC = 6
# Failures of one operator that are told one by one.
MOST_FAILURES = 4
# What lies in memory that nobody has written to is no result.
UNWRITTEN = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one way to run one operator.

    `status`: "ok", "marginal", "wrong", "dtype", "shape", "strides" (see `judge`), "random" (only dtype,
    shape and strides could be compared), "uncompiled" (a graph fails to compile), "crash" (raises when it
    runs, where eager does not), "fallback" (right, but a graph or an operator was left to eager), "eager"
    (Dynamo compiled nothing), "torch" (fails with aot_eager in the same way), "accepted" (eager rejects the
    call), "unjudged" (the comparison itself raises), "skipped" (eager raises, no samples, or not supported).
    `samples` is how many were compared.
    """

    op: str
    way: str
    dtype: str
    status: str
    detail: str = ""
    sample: str = ""
    samples: int = 0

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Counted:
    """A backend that counts the graphs it is given."""

    def __init__(self, compile_graph: Callable[..., Any]) -> None:
        self._compile_graph = compile_graph
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any, **keywords: Any) -> Any:
        self.graphs += 1
        return self._compile_graph(graph, inputs, **keywords)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Status and detail of one sample."""

    status: str
    detail: str = ""


# Best first.
GOOD = ("ok", "random", "marginal")
# A failure of these kinds in torch's own part may look like either.
RAISES = ("crash", "uncompiled")


def check(
    name: str,
    op: Any,
    *,
    way: Way,
    device: str,
    dtype: torch.dtype,
    most: int | None,
    tell: Callable[[str], None] = lambda text: None,
    count: Callable[[int], None] = lambda samples: None,
    part: slice = slice(None),
    alone: bool = False,
) -> list[Outcome]:
    """All outcomes of one operator, called one way with one dtype.

    `most` samples, or all, and of them `part`; `count` is called with how many there are without that, `tell`
    with what is tried next; `alone` compiles each sample by itself.
    """
    label = str(dtype).removeprefix("torch.")
    function = op.inplace_variant if way.mutates else op.op
    supported = op.supported_backward_dtypes(device) if way.backward else op.supported_dtypes(device)
    if function is None or dtype not in supported or (way.out and not op.supports_out):
        return [
            Outcome(
                op=name, way=way.name, dtype=label, status="skipped", detail="not supported by the operator"
            )
        ]
    torch.manual_seed(SEED)
    try:
        if way.hard:
            given = hard_samples(op, device, dtype, most=40 if most is None else 4 * most)
        else:
            given = samples(op, device, dtype, requires_grad=way.backward, most=most)
    except Exception as error:  # noqa: BLE001  the database's own failures are not ours
        return [Outcome(op=name, way=way.name, dtype=label, status="skipped", detail=f"no samples: {error}")]
    count(len(given))
    trial = _Trial(
        function=function,
        way=way,
        values=op.name not in UNWRITTEN,
        dimension=WITHOUT_ORDER.get(op.name),
        tolerance=tolerance(op, device, dtype),
    )
    together = 1 if alone else TOGETHER_DYNAMIC if way.dynamic else TOGETHER
    found: list[tuple[Sample, Finding]] = []
    chosen = given[part]
    for start in range(0, len(chosen), together):
        group = chosen[start : start + together]
        tell(group[0].describe())
        found += _found(trial, group)
        if sum(finding.status not in (*GOOD, "eager") for _, finding in found) >= MOST_FAILURES:
            break
    return _outcomes(name, way, label, found)


def _found(trial: _Trial, group: Sequence[Sample]) -> list[tuple[Sample, Finding]]:
    """What `trial` finds; where it fails itself, what it finds for each sample, and on which it fails."""
    try:
        return trial.findings(group)
    except Exception as error:  # noqa: BLE001  what a sweep cannot judge it has to tell of
        if len(group) == 1:
            return [(group[0], Finding(status="unjudged", detail=_told(error)))]
    return [one for sample in group for one in _found(trial, [sample])]


def _outcomes(name: str, way: Way, dtype: str, found: Sequence[tuple[Sample, Finding]]) -> list[Outcome]:
    """The failures one by one; without any, one outcome for all samples."""

    def outcome(finding: Finding, sample: str = "") -> Outcome:
        return Outcome(
            op=name,
            way=way.name,
            dtype=dtype,
            status=finding.status,
            detail=finding.detail,
            sample=sample,
            samples=len(found),
        )

    if not found:
        return [outcome(Finding(status="skipped", detail="eager raises on every sample, or has no gradient"))]
    failures = [
        outcome(finding, sample.describe())
        for sample, finding in found
        if finding.status not in (*GOOD, "eager")
    ]
    if failures:
        return failures[:MOST_FAILURES]
    # One compiled sample is enough: others may be written such that Dynamo does not trace them.
    compiled = [finding for _, finding in found if finding.status in GOOD]
    if not compiled:
        return [outcome(found[0][1])]
    return [outcome(max(compiled, key=lambda one: GOOD.index(one.status)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One operator called one way.

    `values` tells whether results have any, `dimension` which argument names the dimension along which
    positions of equal elements may differ from eager's, and `tolerance` how far values may.
    """

    function: Operator
    way: Way
    values: bool
    dimension: int | None
    tolerance: tuple[float, float] | None

    def findings(self, group: Sequence[Sample]) -> list[tuple[Sample, Finding]]:
        """What is found for each sample that eager does not refuse: compiled together, and those that fail
        alone.
        """
        usable, expected = self._expected(group)
        if not usable:
            return []
        together = self._compare(usable, expected, coilwork_backend)
        found: list[tuple[Sample, Finding]] = []
        failures = 0
        for sample, finding in zip(usable, together):
            if finding.status in GOOD or failures >= MOST_FAILURES:
                found.append((sample, finding))
                continue
            alone = self._alone(sample) if len(usable) > 1 else self._ours(sample, finding)
            if alone.status in GOOD and finding.status not in ("eager", *RAISES):
                alone = Finding(
                    status=finding.status, detail=f"only with other samples in one graph: {finding.detail}"
                )
            failures += alone.status not in (*GOOD, "eager")
            found.append((sample, alone))
        if len(usable) > 1 and together[0].status in RAISES and not failures:
            told = f"only with other samples in one graph: {together[0].detail}"
            found[0] = (found[0][0], Finding(status=together[0].status, detail=told))
        return found

    def _alone(self, sample: Sample) -> Finding:
        return self._ours(sample, self._one(sample, coilwork_backend))

    def _ours(self, sample: Sample, finding: Finding) -> Finding:
        """`finding`, unless `aot_eager`, in which nothing is ours, differs in the same way."""
        if finding.status in (*GOOD, "eager"):
            return finding
        theirs = self._one(sample, torch._dynamo.lookup_backend("aot_eager")).status
        same = theirs == finding.status or (theirs in RAISES and finding.status in RAISES)
        return Finding(status="torch" if same else finding.status, detail=finding.detail)

    def _one(self, sample: Sample, backend: Callable[..., Any]) -> Finding:
        return self._compare([sample], self._eagerly([sample]), backend)[0]

    def _expected(self, group: Sequence[Sample]) -> tuple[list[Sample], list[Any]]:
        """The samples that eager does not refuse, and its results."""
        try:
            return list(group), self._eagerly(group)
        except Exception:  # noqa: BLE001  what eager refuses is not compared
            pass
        usable = []
        for sample in group:
            try:
                self._eagerly([sample])
            except Exception:  # noqa: BLE001  as above
                continue
            usable.append(sample)
        return usable, self._eagerly(usable) if usable else []

    def _eagerly(self, group: Sequence[Sample], seed: int = SEED) -> list[Any]:
        return run_all(compiled_calls(self.function, self.way), group, self.way, seed=seed)

    def _is_random(self, sample: Sample) -> bool:
        """Whether another seed gives other results."""
        first = tensors_of(self._eagerly([sample]))
        others = (tensors_of(self._eagerly([sample], SEED + k)) for k in range(1, SEEDS))
        return any(
            not torch.equal(_bits(one), _bits(other)) for found in others for one, other in zip(first, found)
        )

    def _compare(
        self, group: Sequence[Sample], expected: Sequence[Any], backend: Callable[..., Any]
    ) -> list[Finding]:
        """What is found for each sample, all compiled together with the given backend."""
        torch._dynamo.reset()
        options = {"options": {"strict": True}} if backend is coilwork_backend else {}
        counted = Counted(partial(backend, **options))
        compiled = torch.compile(
            compiled_calls(self.function, self.way), backend=counted, dynamic=self.way.dynamic
        )
        with warnings.catch_warnings(record=True) as caught, _data_dependent_graphs():
            warnings.simplefilter("always")
            try:
                results = run_all(compiled, group, self.way)
            except Exception as error:  # noqa: BLE001  any failure is a finding
                return [_failure(error)] * len(group)
        fallbacks = [str(one.message) for one in caught if issubclass(one.category, CoilworkFallbackWarning)]
        return [
            self._judged(sample, result, wanted, graphs=counted.graphs, fallbacks=fallbacks)
            for sample, result, wanted in zip(group, results, expected)
        ]

    def _judged(
        self, sample: Sample, result: Any, wanted: Any, *, graphs: int, fallbacks: Sequence[str]
    ) -> Finding:
        def wide() -> Any:
            return self._eagerly([sample.in_float64()])[0]

        def zeros() -> list[Any]:
            found = []
            for negative in (False, True):
                with ZeroSigns(negative=negative):
                    found.append(self._eagerly([sample])[0])
            return found

        if self.dimension is not None:
            result = (settled(result[0], wanted[0], sample, self.dimension), *result[1:])
        found = judge(result, wanted, wide, values=self.values, tolerance=self.tolerance, zeros=zeros)
        status, detail = str(found.verdict), found.detail
        if status == "wrong" and self._is_random(sample):
            found = judge(result, wanted, wide, values=False)
            status, detail = ("random" if found.verdict == "ok" else str(found.verdict)), found.detail
        if status == "wrong" and self.way.backward and self._agrees_in_order(sample, result):
            status, detail = "ok", ""
        if status in GOOD and not graphs:
            return Finding(status="eager", detail="Dynamo compiles nothing")
        if status in GOOD and fallbacks:
            return Finding(status="fallback", detail="; ".join(fallbacks)[:1500])
        return Finding(status=status, detail=detail)

    def _agrees_in_order(self, sample: Sample, result: Any) -> bool:
        """Whether it is what eager gives where its sorts are stable: which of equal elements gets a gradient
        is free.
        """
        with StableSorts():
            wanted = self._eagerly([sample])[0]
            if self.dimension is not None:
                result = (settled(result[0], wanted[0], sample, self.dimension), *result[1:])
            found = judge(
                result,
                wanted,
                lambda: self._eagerly([sample.in_float64()])[0],
                values=self.values,
                tolerance=self.tolerance,
            )
        return found.verdict in GOOD


def _data_dependent_graphs() -> Any:
    """Sizes and numbers that depend on data stay in the graph, so that these operators are
    compiled at all.
    """
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)


def _failure(error: Exception) -> Finding:
    uncompiled = any(isinstance(one, _COMPILE_ERRORS) for one in _causes(error))
    return Finding(status="uncompiled" if uncompiled else "crash", detail=_told(error))


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    return text if len(text) < 1600 else f"{text[:800]} ... {text[-800:]}"


_COMPILE_ERRORS = (CoilworkError, CoilworkIRError, torch._dynamo.exc.BackendCompilerFailed)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _bits(value: Tensor) -> Tensor:
    if value.layout is not torch.strided:
        value = value.to_dense()
    return torch.nan_to_num(value.detach().resolve_conj().resolve_neg())
