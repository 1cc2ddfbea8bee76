"""A program compiled by one backend: what its call takes, and whether its results are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Final

import torch
from torch import Tensor

from benchmarks.backends import compile_with
from benchmarks.kernels import KernelTime, kernel_times
from benchmarks.layout_programs.programs import LayoutProgram, OpenedCall, Setting, open_call
from benchmarks.measure import measure_cuda_peak_bytes

_REPEATS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A program that one backend has compiled.

    Attributes:
        call: runs it.
        peak_mb: the most memory above what is there before a call.
        results: the result of a call and the gradients of the parameters.
        is_repeatable: a second call gives the same bits.
    """

    call: Callable[[], Tensor]
    peak_mb: float
    results: tuple[Tensor, ...]
    is_repeatable: bool


def compile_program(program: LayoutProgram, backend: str, setting: Setting) -> Compiled:
    """Compile `program` for its sizes, and use the profiler once: its first use takes seconds."""
    # else sizes that differ between programs of a process are left open
    torch._dynamo.config.automatic_dynamic_shapes = False
    compiler = lambda module: compile_with(_make_function(module), backend)  # noqa: E731
    call = open_call(program, compiler, "cuda", setting=setting)
    results, again = _call(call), _call(call)
    kernel_times(call, repeats=1)
    return Compiled(
        call=call,
        peak_mb=measure_cuda_peak_bytes(call) / 1e6,
        results=results,
        is_repeatable=all(map(torch.equal, results, again)),
    )


def _call(call: OpenedCall) -> tuple[Tensor, ...]:
    result = call().detach()
    return (result, *(gradient.clone() for gradient in call.list_gradients()))


def _make_function(module: torch.nn.Module) -> Callable[..., Tensor]:
    """Return a function with code of its own, for which Dynamo has nothing yet, that calls `module`."""

    def call(x: Tensor) -> Tensor:
        found: Tensor = module(x)
        return found

    return FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)


def measure_difference(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of what `results` differ from those expected by, as a share of theirs, at most."""
    pairs = [(one.double(), other.double()) for one, other in zip(results, expected, strict=True)]
    # a bias before a norm has a gradient of rounding errors alone
    most = max(float(other.abs().max()) for _, other in pairs)
    counted = [(one, other) for one, other in pairs if float(other.abs().max()) > 1e-3 * most]
    return max(float((one - other).norm() / other.norm()) for one, other in counted)


def time_call(call: Callable[[], Tensor], leave: Callable[[], None] = lambda: None) -> list[KernelTime]:
    """Return the time of each kernel of `call`; `leave` is called when the GPU has finished."""
    return kernel_times(call, repeats=_REPEATS, leave=leave)


def sum_times(kernels: Sequence[KernelTime]) -> float:
    """Return the microseconds of all kernels."""
    return sum(kernel.total_us for kernel in kernels)
