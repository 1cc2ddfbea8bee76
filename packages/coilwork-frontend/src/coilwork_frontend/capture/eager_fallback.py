"""Graphs that AOTAutograd cannot make ATen graphs of: they run as Dynamo captured them, in eager mode.

So are writes into views of an expanded input, into inputs that share memory in two types, and sizes from data of which an
operator has to know more than the program says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import fx

from coilwork_frontend.errors import CoilworkError, CoilworkFallbackWarning, CompileError, describe
from coilwork_frontend.torch_compat.failures import FOR_DYNAMO


def is_told(error: Exception) -> bool:
    """Whether `error` is for others to see: the user, if it is ours, or Dynamo, which goes on with a smaller graph."""
    return isinstance(error, (CoilworkError, *FOR_DYNAMO))


def run_as_captured(captured: fx.GraphModule, error: Exception) -> Callable[..., Any]:
    """What runs `captured`, because of `error`, with a warning that says why. What eager rejects is rejected by the call."""
    said = error if isinstance(error, CompileError) else _not_traced(error)
    warnings.warn(f"a graph runs in eager mode: {said}", CoilworkFallbackWarning, stacklevel=3)
    # a call of the module would print where an error is raised
    forward: Callable[..., Any] = captured.forward
    return forward


def _not_traced(error: Exception) -> CompileError:
    return CompileError(
        "not-traced",
        "torch cannot trace a graph that it captured",
        reason=f"{type(error).__name__}: {error}",
        remedy='options={"strict": True} for the traceback',
    )


def warn_of_rewrites(error: Exception) -> None:
    """Say that a captured graph is compiled without rewrites, because of `error`."""
    warnings.warn(
        f"a graph is compiled without rewrites: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
        stacklevel=3,
    )


def warn_of_partition(error: Exception) -> None:
    """Say that forward and backward are compiled as they were captured, because of `error`.

    Raises:
        Exception: `error`, if it is for others to see.
    """
    if is_told(error):
        raise error
    warnings.warn(
        f"forward and backward are compiled without rewrites and layouts: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
        stacklevel=3,
    )
