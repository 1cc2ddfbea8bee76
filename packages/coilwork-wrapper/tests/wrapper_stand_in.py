"""A runtime for generated modules whose kernels are written in kernel IR and run by the reference
interpreter.

`emit_python(..., runtime="wrapper_stand_in")` makes modules import it under the name `rt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_ir.interpretation.memory import view_as_line
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_wrapper.layouts import (
    check_aligned_layout,
    check_layout,
    check_rank,
    empty_pool,
    empty_strided,
    empty_strided_cpu,
    empty_strided_cuda,
    ensure_aligned,
    ensure_aligned_layout,
    ensure_layout,
    fork_stream,
    join_stream,
    on_stream,
    pool_view,
    record_event,
    reinterpret,
    reinterpret_dtype,
    synchronize_event,
    wait_event,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CppKernel:
    """What a module says of a kernel; `source` is kernel IR here."""

    name: str
    source: str
    entry: str
    args: tuple[str, ...]
    arg_names: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    bytes: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVersion:
    """How a GPU kernel may run for some sizes."""

    guard: str = ""
    mapping: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """What a module says of a GPU kernel."""

    name: str
    source: str
    entry: str
    args: tuple[str, ...]
    arg_names: tuple[str, ...]
    grid: tuple[str, ...]
    configs: tuple[Mapping[str, int], ...]
    versions: tuple[KernelVersion, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    bytes: str = ""
    target: str = ""


class LayoutMemory:
    """Remembers the layouts of one call's inputs."""

    def __init__(self) -> None:
        self._known: list[tuple[object, ...]] | None = None

    def match(self, *tensors: torch.Tensor) -> bool:
        """True if all are as those that were learnt.

        Raises:
            TypeError: another number of tensors than were learnt.
        """
        if self._known is not None and len(self._known) != len(tensors):
            raise TypeError("wrong length")
        return self._known == [_layout(tensor) for tensor in tensors]

    def learn(self, *tensors: torch.Tensor) -> None:
        """Recognise tensors like these."""
        self._known = [_layout(tensor) for tensor in tensors]


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def build(kernels: Iterable[CppKernel]) -> dict[str, Callable[..., None]]:
    """A launcher per kernel, called with tensors, then sizes."""
    return {kernel.name: _launcher(kernel.source) for kernel in kernels}


def _launcher(text: str) -> Callable[..., None]:
    kernel = parse_kernel(text)

    def launch(*values: Any) -> None:
        count = len(kernel.args)
        lines = [view_as_line(value) for value in values[:count]]
        names = [arg.name for arg in kernel.args]
        interpret_kernel(kernel, dict(zip(names, lines, strict=True)), list(values[count:]))

    return launch


def random_input(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Ones of this layout."""
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=device).fill_(1)


def run_standalone(
    kernels: Iterable[CppKernel],
    make_call: Callable[..., Callable[[list[Any]], Sequence[Any]]],
    make_inputs: Callable[[], list[Any]],
    make_constants: Callable[[], Mapping[str, torch.Tensor]] = dict,
) -> None:
    """Call once and print shapes and sums of the results."""
    for result in make_call(build(kernels), make_constants())(make_inputs()):
        print(list(result.shape), float(result.sum()))


__all__ = [
    "CppKernel",
    "KernelVersion",
    "LayoutMemory",
    "TritonKernel",
    "build",
    "check_aligned_layout",
    "check_layout",
    "check_rank",
    "empty_pool",
    "empty_strided",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "ensure_aligned",
    "ensure_aligned_layout",
    "ensure_layout",
    "fork_stream",
    "join_stream",
    "on_stream",
    "pool_view",
    "random_input",
    "record_event",
    "reinterpret",
    "reinterpret_dtype",
    "run_standalone",
    "synchronize_event",
    "wait_event",
]
