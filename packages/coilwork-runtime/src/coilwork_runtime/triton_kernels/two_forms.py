"""Kernels that have a form for sizes as they likely are, and one for all others: which configurations are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from coilwork_runtime.specs import TritonKernel

_LIKELY: Final = "LIKELY"
_T = TypeVar("_T")


def is_for_all_sizes(config: Mapping[str, int]) -> bool:
    """Whether the configuration may run whatever the sizes are."""
    return config.get(_LIKELY, 0) == 0


def of_one_form(spec: TritonKernel, *, likely: bool) -> TritonKernel:
    """`spec` with the configurations of one form, and what a search may try of it: nothing of the one for all sizes."""
    chosen = tuple(config for config in spec.configs if is_for_all_sizes(config) != likely)
    if likely:
        return replace(spec, configs=chosen, departure="")
    return replace(spec, configs=chosen, departure="", space={}, limits=())


def with_the_general(spec: TritonKernel, guesses: Sequence[_T]) -> tuple[_T, ...]:
    """The first of `guesses`, one for each configuration of `spec`, and that for all sizes where there is one."""
    pairs = zip(guesses, spec.configs, strict=True)
    rest = [guess for guess, config in pairs if spec.departure and is_for_all_sizes(config)]
    return (guesses[0], *(guess for guess in rest if guess is not guesses[0]))
