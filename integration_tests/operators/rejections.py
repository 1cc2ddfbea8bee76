"""Calls that eager rejects: compiled code has to reject them, too, at compile time or when it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from coilwork.backend import backend as coilwork_backend
from integration_tests.operators.checks import MOST_FAILURES, Outcome
from integration_tests.operators.database import Sample, rejected_samples


def check_rejections(
    name: str, op: Any, *, device: str, tell: Callable[[str], None] = lambda text: None
) -> list[Outcome]:
    """One outcome if every call that eager rejects is rejected, else one per call that is accepted."""

    def outcome(status: str, detail: str = "", sample: str = "", samples: int = 0) -> Outcome:
        return Outcome(
            op=name, way="errors", dtype="", status=status, detail=detail, sample=sample, samples=samples
        )

    try:
        given = rejected_samples(op, device)
    except Exception as error:  # noqa: BLE001  the database's own failures are not ours
        return [outcome("skipped", f"no samples: {error}")]
    accepted: list[Outcome] = []
    rejected = 0
    for sample in given:
        reason = _refusal(op.op, sample)
        if reason is None:
            continue
        tell(sample.describe())
        rejected += 1
        if _refusal(_compiled(op.op, coilwork_backend), sample) is not None:
            continue
        torchs = _refusal(_compiled(op.op, torch._dynamo.lookup_backend("aot_eager")), sample) is None
        accepted.append(outcome("torch" if torchs else "accepted", reason, sample.describe()))
        if len(accepted) >= MOST_FAILURES:
            break
    if not rejected:
        return [outcome("skipped", "eager rejects no sample of the database")]
    return accepted or [outcome("ok", samples=rejected)]


def _refusal(function: Callable[..., Any], sample: Sample) -> str | None:
    """The error that the call raises; None if it raises none."""
    arguments, keywords = sample.fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001  any error is a refusal
            return f"eager raises {type(error).__name__}: {str(error)[:300]}"
    return None


def _compiled(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()

    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    compiled: Callable[..., Any] = torch.compile(call, backend=backend)
    return compiled
