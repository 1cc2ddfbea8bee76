"""Compile and build a graph, leaving to ATen the calls whose kernels cannot be made."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork.capture.refused_calls import RefusedCallError
from coilwork.drive import make_call
from coilwork.errors import CoilworkFallbackWarning
from coilwork.executors import Driven
from coilwork.job import Job
from coilwork.stages import Compiled, run_stages
from coilwork_cache import Store
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin
from coilwork_lowering import MistracedError
from coilwork_runtime import Builder, KernelBuildError

MOST_RETRIES: Final = 8
# Of more calls than these, which one kernel is for, the one at fault is not looked for.
_MOST_SUSPECTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left to ATen.

    Attributes:
        operators: all calls of these, or some of them.
        nodes: the calls, as pairs of an operator and a node of the graph, for operators that are left there alone.
    """

    operators: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...] = ()

    def extended(self, origins: Sequence[Origin]) -> Left:
        """With the calls `origins`; of an operator that has failed in another call before, all calls."""
        failing = {op for op, _ in self.nodes}
        fresh = [origin for origin in origins if not self.holds(origin)]
        everywhere = {origin.op for origin in fresh if origin.op in failing}
        pairs = [*self.nodes, *((o.op, o.node) for o in fresh)]
        return Left(
            operators=tuple(dict.fromkeys((*self.operators, *(origin.op for origin in fresh)))),
            nodes=tuple(dict.fromkeys(pair for pair in pairs if pair[0] not in everywhere)),
        )

    def holds(self, origin: Origin) -> bool:
        """Whether the call is left to ATen already."""
        if (origin.op, origin.node) in self.nodes:
            return True
        return origin.op in self.operators and all(op != origin.op for op, _ in self.nodes)


def build_with_retries(job: Job, builder: Builder, store: Store) -> tuple[Compiled, Driven]:
    """What the stages make of the job, and its callable; `store` keeps what is built.

    An error that names calls is a warning, and the graph is lowered again with the one at fault as a call of ATen; not with
    `strict`, not when it names none that is new, and not more than `MOST_RETRIES` times.

    Raises:
        CoilworkIRError, KernelBuildError: the last failure.
        RefusedCallError: eager refuses the call that the graph is compiled for.
        MistracedError: at once: the captured operators are not those of the program.
    """
    left = Left(operators=job.options.fallback)
    for attempt in range(MOST_RETRIES + 1):
        compiled: Compiled | None = None
        try:
            compiled = _stages(job, left)
            with job.clock.stage("build"):
                return compiled, make_call(compiled, job, builder, store)
        except MistracedError:
            raise
        except (CoilworkIRError, KernelBuildError) as error:
            if job.is_refused():
                raise RefusedCallError(str(error)) from error
            suspects = [origin for origin in _culprits(error, compiled) if not left.holds(origin)]
            if job.options.strict or job.options.batch_invariant or not suspects or attempt == MOST_RETRIES:
                raise
            if isinstance(error, CoilworkIRError):
                suspects = _narrowed(job, left, suspects)
            _warn(job, suspects, error)
            left = left.extended(suspects)
    raise AssertionError("the last attempt returns or raises")


def _stages(job: Job, left: Left) -> Compiled:
    return run_stages(replace(job, left_to_aten=left.nodes), fallback=left.operators)


def _narrowed(job: Job, left: Left, suspects: list[Origin]) -> list[Origin]:
    """Those of the calls without which the rest compiles, one if it is one: a kernel that cannot be made names all it computes."""
    if len(suspects) > _MOST_SUSPECTS:
        return suspects
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        rest = suspects[len(half) :]
        if not _is_named(job, left.extended(half), suspects):
            suspects = half
        elif not _is_named(job, left.extended(rest), suspects):
            suspects = rest
        else:
            break
    return suspects


def _is_named(job: Job, left: Left, suspects: Sequence[Origin]) -> bool:
    """Whether the stages still fail, and name one of `suspects`, with `left` as calls of ATen."""
    try:
        _stages(job, left)
    except CoilworkIRError as error:
        return not set(suspects).isdisjoint(error.origins)
    return False


def _warn(job: Job, origins: Sequence[Origin], error: Exception) -> None:
    """Say what runs in ATen, at the user's line."""
    names = ", ".join(dict.fromkeys(origin.op for origin in origins))
    text = f"{names} run as ATen's own kernels in graph {job.graph_id}: {error}"
    place = next((origin for origin in origins if origin.file), None)
    if place is None:
        warnings.warn(text, CoilworkFallbackWarning, stacklevel=3)
    else:
        warnings.warn_explicit(text, CoilworkFallbackWarning, place.file, place.line)


def _culprits(error: CoilworkIRError | KernelBuildError, compiled: Compiled | None) -> tuple[Origin, ...]:
    """The calls of operators that an error is about."""
    origins: Sequence[Origin] = ()
    if isinstance(error, CoilworkIRError):
        origins = error.origins
    elif compiled is not None:
        origins = {kernel.name: kernel.origins for kernel in compiled.program.kernels}.get(error.kernel, ())
    return tuple(dict.fromkeys(origin for origin in origins if "." in origin.op))
