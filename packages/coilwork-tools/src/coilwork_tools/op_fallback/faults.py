"""Read from an error which calls of a graph can be at fault.

Find the few calls of a graph at fault by bisection, for errors that name too many calls or none.

The search asks one question again and again: does the graph compile if these calls are treated otherwise? One
culprit among n calls takes about log n questions, and a budget bounds them. Where it ends, the answer is
larger than need be, but one that compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

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
        """Return True if `error` is about one node, and says which."""
        return isinstance(error, self.of_nodes)


def list_named_calls(error: Exception, kernels: Mapping[str, Sequence[Origin]]) -> tuple[Origin, ...]:
    """Return the calls that `error` names: those of a node or an instruction, or of one of `kernels`, by
    name.
    """
    origins: Sequence[Origin] = ()
    if isinstance(error, CoilworkIRError):
        origins = error.origins
    elif isinstance(error, KernelBuildError):
        origins = kernels.get(error.kernel, ())
    return tuple(dict.fromkeys(origin for origin in origins if "." in origin.op))


_T = TypeVar("_T")


@dataclass(slots=True)
class Budget:
    """The tries that are left: compilations of a graph to find what is wrong with it."""

    tries: int

    def spend(self) -> bool:
        """Take one try; False if there is none left."""
        self.tries -= 1
        return self.tries >= 0


def find_smallest_cure(
    suspects: Sequence[_T], cures: Callable[[Sequence[_T]], bool], budget: Budget
) -> tuple[_T, ...]:
    """Return a part of `suspects` that `cures` accepts and all of which it needs, if more suspects never cure
    less.

    `cures` is known to accept all of `suspects`. Each member takes log n tries: the shortest beginning of the
    suspects that cures ends with one.
    """
    needed: list[_T] = []
    rest = list(suspects)
    while True:
        low, high = 0, len(rest)
        while high - low > 1:
            if not budget.spend():
                return (*needed, *rest[:high])
            middle = (low + high) // 2
            if cures([*needed, *rest[:middle]]):
                high = middle
            else:
                low = middle
        needed.append(rest[high - 1])
        rest = rest[: high - 1]
        if not rest:
            return tuple(needed)
        if not budget.spend():
            return (*needed, *rest)
        if cures(needed):
            return tuple(needed)


def find_smallest_calls(
    suspects: Sequence[Origin], cures: Callable[[Sequence[Origin]], bool], budget: Budget
) -> tuple[Origin, ...]:
    """Return the answer of `find_smallest_cure`, operators first: the calls at fault are often all of one
    operator.

    Of operators that fail in more than one or two calls, all calls are in the answer.
    """
    by_operator: dict[str, list[Origin]] = {}
    for call in suspects:
        by_operator.setdefault(call.op, []).append(call)

    def calls_of(operators: Sequence[str]) -> list[Origin]:
        chosen = set(operators)
        return [call for call in suspects if call.op in chosen]

    operators = find_smallest_cure(list(by_operator), lambda some: cures(calls_of(some)), budget)
    calls = calls_of(operators)
    enough = Budget(min(max(budget.tries, 0), 2 * len(calls).bit_length() + 1))
    budget.tries -= enough.tries
    smallest = find_smallest_cure(calls, cures, enough)
    return smallest if enough.tries >= 0 else tuple(calls)
