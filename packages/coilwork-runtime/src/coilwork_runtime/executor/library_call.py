"""Calls of programs that are shared libraries: inputs and results cross as in the native executor, in C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from coilwork_cache import Store
from coilwork_runtime.errors import ExecutorUnavailableError
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.tensor_kinds import TensorKinds

Kind = Literal["tensor", "size", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryProgram:
    """A loaded program, by the addresses of what calling it takes.

    Attributes:
        run: of a function over handles of constants, handles of inputs, which it takes over, integers among
            the inputs, and room for handles and integers of results. It returns 0, or the kind of a failure.
        constants: of the constants' handles, which stay the caller's.
        inputs: kinds of the inputs, in order.
        outputs: of the results, likewise.
        fail: raises the error of a kind of failure.
    """

    run: int
    constants: int
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    fail: Callable[[int], NoReturn]


def make_library_call(
    program: LibraryProgram,
    instead: Callable[[list[Any]], Sequence[Any]],
    kinds: TensorKinds,
    store: Store | None,
) -> Callable[..., Sequence[Any]] | None:
    """Return a callable over one list of inputs, which it empties, or over the inputs one by one.

    What is rare is done by `instead`: tensors of other kinds than `kinds`, and calls under a mode that
    watches operators. None where the native executor is not at hand, in the wheel or in `store`.
    """
    try:
        extension = find_executor_extension(store, may_build=False)
    except ExecutorUnavailableError:
        return None
    made: Callable[..., Sequence[Any]] = extension.LibraryCall(
        program.run,
        program.constants,
        "".join(kind[0] for kind in program.inputs),
        "".join(kind[0] for kind in program.outputs),
        kinds.keys,
        instead,
        program.fail,
    )
    return made
