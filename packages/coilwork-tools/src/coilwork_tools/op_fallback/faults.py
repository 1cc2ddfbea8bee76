"""What an error says of a graph's calls: if they can be at fault, and which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_frontend.errors import CoilworkError
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin
from coilwork_runtime import (
    DeviceError,
    ExecutorUnavailableError,
    KernelBuildError,
    MissingCompilerError,
    MissingTritonError,
    ScratchFolderError,
)

# A setting is wrong, or the machine lacks something.
_NOT_OF_CALLS: Final = (
    CoilworkError,
    DeviceError,
    ExecutorUnavailableError,
    MissingCompilerError,
    MissingTritonError,
    ScratchFolderError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKinds:
    """The types of a compiler's own errors that say more than others.

    Attributes:
        of_nodes: each is about one node, and says which.
        of_programs: no choice of calls changes these.
    """

    of_nodes: tuple[type[Exception], ...] = ()
    of_programs: tuple[type[Exception], ...] = ()

    def is_of_calls(self, error: Exception) -> bool:
        """False if no choice of calls changes `error`."""
        return not isinstance(error, (*_NOT_OF_CALLS, *self.of_programs))

    def is_of_one_node(self, error: Exception) -> bool:
        """Tell if `error` is about one node, and says which."""
        return isinstance(error, self.of_nodes)


def list_named_calls(error: Exception, kernels: Mapping[str, Sequence[Origin]]) -> tuple[Origin, ...]:
    """The calls that `error` names: those of a node or an instruction, or of one of `kernels`, by name."""
    origins: Sequence[Origin] = ()
    if isinstance(error, CoilworkIRError):
        origins = error.origins
    elif isinstance(error, KernelBuildError):
        origins = kernels.get(error.kernel, ())
    return tuple(dict.fromkeys(origin for origin in origins if "." in origin.op))
