"""The table of cases, and the sizes of their models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import torch

from integration_tests.ranks import dtensor_programs, exchanging_models, parallel_models, pipelines
from integration_tests.ranks.training import Build
from integration_tests.ranks.transformer import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training step (or inference).

    Attributes:
        is_half: it computes in bf16 whatever the dtype of its parameters is.
        is_measured: it is in the table of times.
        slow_s: so much longer the last rank compiles each graph.
    """

    build: Build
    is_half: bool = False
    is_measured: bool = False
    slow_s: float = 0.0


def _list_cases() -> dict[str, Case]:
    fsdp, ddp, context = parallel_models.fsdp, parallel_models.ddp, exchanging_models.context_parallel
    pipeline = pipelines.pipeline
    again = {"checkpoints": True}
    return {
        "tensor": Case(build=parallel_models.tensor_parallel, is_measured=True),
        "tensor, inference": Case(build=parallel_models.tensor_parallel_inference, is_measured=True),
        "tensor and sequence": Case(build=parallel_models.sequence_parallel, is_measured=True),
        "tensor and sequence, checkpoints": Case(build=partial(parallel_models.sequence_parallel, **again)),
        "uneven DTensors": Case(build=dtensor_programs.uneven_dtensors, is_measured=True),
        "FSDP2": Case(build=fsdp),
        "FSDP2, bf16": Case(build=partial(fsdp, mixed=True), is_half=True, is_measured=True),
        "FSDP2, bf16, no reshard": Case(
            build=partial(fsdp, mixed=True, reshards=False), is_half=True, is_measured=True
        ),
        "FSDP2, accumulated": Case(build=partial(fsdp, accumulates=2, reshards=False)),
        "FSDP2, checkpoints": Case(build=partial(fsdp, **again)),
        "DDP": Case(build=ddp, is_measured=True),
        "DDP, static graph": Case(build=partial(ddp, static_graph=True)),
        "DDP, no_sync": Case(build=partial(ddp, unsynchronized=True)),
        "DDP, unused": Case(build=partial(ddp, unused=True)),
        "DDP, checkpoints": Case(build=partial(ddp, **again)),
        "context, gathered": Case(build=context, is_measured=True),
        "context, by heads": Case(
            build=partial(context, mix=exchanging_models.mix_by_heads), is_measured=True
        ),
        "context, ring": Case(build=partial(context, mix=exchanging_models.mix_in_a_ring), is_measured=True),
        "context, checkpoints": Case(build=partial(context, **again)),
        "experts": Case(build=exchanging_models.mixture_of_experts, is_measured=True),
        "pipeline, 1F1B": Case(build=pipeline, is_measured=True),
        "pipeline, interleaved": Case(build=partial(pipeline, interleaved=True), is_measured=True),
        "pipeline, checkpoints": Case(build=partial(pipeline, **again)),
        "one rank compiles slower": Case(build=parallel_models.sequence_parallel, slow_s=4.0),
    }


CASES: Final = MappingProxyType(_list_cases())

# for curves, whose float64 version runs, too
SMALL: Final = Scale(width=32, heads=4, layers=4, vocabulary=50, batch=4, length=16, dtype=torch.float32)
MIDDLE: Final = replace(SMALL, width=256, vocabulary=512, length=128)
# for times
LARGE: Final = Scale(
    width=2048, heads=16, layers=4, vocabulary=8192, batch=4, length=1024, dtype=torch.bfloat16
)


def scale_for(case: Case, device: str, *, measured: bool) -> Scale:
    """Sizes of a case on a device; FSDP2's parameters are f32 in its mixed precision."""
    if device == "cpu":
        return SMALL
    if not measured:
        return MIDDLE
    return replace(LARGE, dtype=torch.float32) if case.is_half else LARGE
