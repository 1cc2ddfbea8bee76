"""Compile and build a graph, leaving to ATen the operators whose kernels cannot be generated or built."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

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

MOST_RETRIES: Final = 3


def build_with_retries(job: Job, builder: Builder, store: Store) -> tuple[Compiled, Driven]:
    """What the stages make of the job, and its callable; `store` keeps what is built.

    An error that names operators is a warning, and the graph is lowered again with them as calls of ATen; not with
    `strict`, not when it names none that is new, and not more than `MOST_RETRIES` times.

    Raises:
        CoilworkIRError, KernelBuildError: the last failure.
        MistracedError: at once: the captured operators are not those of the program.
    """
    fallback = job.options.fallback
    for attempt in range(MOST_RETRIES + 1):
        compiled: Compiled | None = None
        try:
            compiled = run_stages(job, fallback=fallback)
            with job.clock.stage("build"):
                return compiled, make_call(compiled, job, builder, store)
        except MistracedError:
            raise
        except (CoilworkIRError, KernelBuildError) as error:
            fresh = tuple(name for name in _culprits(error, compiled) if name not in fallback)
            if job.options.strict or job.options.batch_invariant or not fresh or attempt == MOST_RETRIES:
                raise
            warnings.warn(
                f"{', '.join(fresh)} run as ATen's own kernels in graph {job.graph_id}: {error}",
                CoilworkFallbackWarning,
                stacklevel=2,
            )
            fallback = (*fallback, *fresh)
    raise AssertionError("the last attempt returns or raises")


def _culprits(error: CoilworkIRError | KernelBuildError, compiled: Compiled | None) -> tuple[str, ...]:
    """The operators that an error is about."""
    if isinstance(error, CoilworkIRError):
        return _operators(error.origins)
    if compiled is None:
        return ()
    origins = {kernel.name: kernel.origins for kernel in compiled.program.kernels}
    return _operators(origins.get(error.kernel, ()))


def _operators(origins: Sequence[Origin]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origin.op for origin in origins if "." in origin.op))
