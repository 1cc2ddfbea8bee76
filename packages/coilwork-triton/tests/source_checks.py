"""What tests ask of written kernels and say of values that differ."""

from __future__ import annotations

from collections.abc import Callable

from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.mapping import Versions


def versions_of(source: KernelSource) -> Versions:
    """Return the versions of the mapping of `source`, which must have one."""
    assert source.versions is not None
    return source.versions


def prefix_with(name: str) -> Callable[[str], str]:
    """Return the `msg` of `torch.testing.assert_close` that says which value differs."""
    return lambda message: f"{name}: {message}"
