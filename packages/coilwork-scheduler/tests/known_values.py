"""Parts of graphs, schedules and results that a test knows to be numbers, tensors or kernels."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import KernelCall, Schedule


def number_of(size: Expr | int | None) -> int:
    """Return `size`, which must be a number."""
    found = size if size is None or isinstance(size, int) else as_int(size)
    assert found is not None, size
    return found


def tensors_of(results: Iterable[object]) -> list[Tensor]:
    """Return `results`, of which each must be a tensor."""
    found = []
    for result in results:
        assert isinstance(result, Tensor), result
        found.append(result)
    return found


def kernel_calls(made: Schedule) -> list[KernelCall]:
    """Return the steps that launch a kernel."""
    return [step for step in made.steps if isinstance(step, KernelCall)]
