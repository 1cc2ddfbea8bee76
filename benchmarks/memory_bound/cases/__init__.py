"""Every case, by family; to add one, put it into its family's `CASES`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks.memory_bound.case import Case
from benchmarks.memory_bound.cases import (
    attention,
    detection,
    diffusion,
    features,
    fields,
    gather,
    gradients,
    images,
    layers,
    layouts,
    losses,
    norms,
    open_sizes,
    optimizers,
    packing,
    pipelines,
    pointwise,
    reductions,
    scans,
    softmax,
    states,
    tokens,
    training,
)

_WITH_KNOWN_SIZES: tuple[Case, ...] = (
    *softmax.CASES,
    *norms.CASES,
    *reductions.CASES,
    *scans.CASES,
    *pointwise.CASES,
    *gather.CASES,
    *gradients.CASES,
    *layouts.CASES,
    *layers.CASES,
    *losses.CASES,
    *states.CASES,
    *images.CASES,
    *tokens.CASES,
    *training.CASES,
    *attention.CASES,
    *packing.CASES,
    *optimizers.CASES,
    *detection.CASES,
    *diffusion.CASES,
    *pipelines.CASES,
    *fields.CASES,
    *features.CASES,
)
CASES: tuple[Case, ...] = (
    *_WITH_KNOWN_SIZES,
    *open_sizes.with_open_sizes(_WITH_KNOWN_SIZES),
    *open_sizes.with_other_sizes(_WITH_KNOWN_SIZES),
)


def find_case(name: str) -> Case:
    """The case of that name. ValueError if there is none."""
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(f"no case is called {name!r}")


def select(words: Sequence[str], sets: Collection[str]) -> tuple[Case, ...]:
    """Cases of `sets` whose name has one of `words` in it, or all of them without words."""
    lowered = [word.lower() for word in words]
    return tuple(
        case
        for case in CASES
        if case.set in sets and (not lowered or any(word in case.name.lower() for word in lowered))
    )
