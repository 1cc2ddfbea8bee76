"""Kernels that have versions for some sizes, and one for all: which configurations are whose, and how a call
chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.triton_kernels.open_mapping import close_mapping

# The compile-time parameter that tells versions apart: how many there are behind one.
_VERSION: Final = "VERSION"
_T = TypeVar("_T")


def version_of(spec: KernelSpec, config: Mapping[str, int]) -> int:
    """The number of the version of `spec` that a configuration is of; they are counted as `spec.versions`
    are.
    """
    count = len(spec.guards)
    # of a version that was selected all configurations are
    return count - 1 - config.get(_VERSION, 0) if count > 1 else 0


def select_version(spec: KernelSpec, number: int) -> KernelSpec:
    """`spec` as the one version of it that has this number."""
    return replace(
        spec,
        configs=tuple(config for config in spec.configs if version_of(spec, config) == number),
        versions=tuple(replace(one, guard=None) for one in spec.versions[number : number + 1]),
    )


def keep_versions(spec: KernelSpec, guesses: Sequence[_T]) -> tuple[_T, ...]:
    """The first of `guesses`, one for each configuration of `spec`, of each version; that of the first
    configuration leads.
    """
    found: dict[int, _T] = {}
    for guess, config in zip(guesses, spec.configs, strict=True):
        found.setdefault(version_of(spec, config), guess)
    return tuple(found.values())


def mapping_text(spec: KernelSpec, config: Mapping[str, int]) -> str | None:
    """How `spec` runs in `config`: the closed mapping; None if the kernel tells none."""
    number = version_of(spec, config)
    return close_mapping(spec.versions[number].mapping, config) if spec.versions else None
