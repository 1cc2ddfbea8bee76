"""Kernels that have forms for some sizes, and one for all: which configurations are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from coilwork_runtime.specs import TritonKernel

_LIKELY: Final = "LIKELY"
_T = TypeVar("_T")


def form_of(config: Mapping[str, int]) -> int:
    """The form that a configuration is of: the higher, the fewer sizes it is for; 0 is for all."""
    return config.get(_LIKELY, 0)


def forms_of(spec: TritonKernel) -> tuple[int, ...]:
    """The forms of `spec`, that for the fewest sizes first."""
    return tuple(sorted({form_of(config) for config in spec.configs}, reverse=True))


def of_one_form(spec: TritonKernel, form: int) -> TritonKernel:
    """`spec` with the configurations of one form. A search may try others of the first one alone."""
    chosen = tuple(config for config in spec.configs if form_of(config) == form)
    if form == forms_of(spec)[0]:
        return replace(spec, configs=chosen, departure="")
    return replace(spec, configs=chosen, departure="", space={}, limits=())


def with_other_forms(spec: TritonKernel, guesses: Sequence[_T]) -> tuple[_T, ...]:
    """The first of `guesses`, one for each configuration of `spec`, and the first of each other form."""
    found: dict[int, _T] = {}
    for guess, config in zip(guesses, spec.configs, strict=True):
        found.setdefault(form_of(config) if spec.departure else 0, guess)
    return (guesses[0], *(guess for guess in found.values() if guess is not guesses[0]))
