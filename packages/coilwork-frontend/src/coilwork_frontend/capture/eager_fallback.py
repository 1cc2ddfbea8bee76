"""What runs in eager mode since it cannot be compiled, and what the user hears of that.

Graphs of which AOTAutograd cannot make ATen graphs run as Dynamo captured them: those that write into views
of an expanded input or into inputs that share memory in two types, or whose operators have to know more of
sizes from data than the program says. ATen graphs that no stage can compile run as AOTAutograd made them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from coilwork_frontend.capture.eager_trial import RefusedCallError
from coilwork_frontend.errors import CoilworkError, CoilworkFallbackWarning, CompileError, describe
from coilwork_frontend.torch_compat.dynamo import DYNAMO_ERRORS
from coilwork_frontend.user_warnings import warn_user
from coilwork_ir.loc import Origin

logger = logging.getLogger("coilwork")


def is_told(error: Exception) -> bool:
    """Tell whether `error` is for others to see: the user, if it is ours, or Dynamo, which goes on with a
    smaller graph.
    """
    return isinstance(error, (CoilworkError, *DYNAMO_ERRORS))


def run_as_captured(captured: fx.GraphModule, error: Exception) -> Callable[..., Any]:
    """Return what runs `captured`, because of `error`, with a warning that says why. What eager rejects is
    rejected by the call.
    """
    said = error if isinstance(error, CompileError) else explain_untraced(error)
    warn_user(f"a graph runs in eager mode: {said}", CoilworkFallbackWarning)
    # a call of the module would print where an error is raised
    forward: Callable[..., Any] = captured.forward
    return forward


def judge_fault(
    error: Exception, graph: str, *, only_compiled: bool, is_refused: Callable[[], bool]
) -> Exception | None:
    """Return what is to be raised for `graph`, which cannot be compiled as a whole because of `error`; None
    if some of it runs in eager mode.

    Raised is what eager refuses the call for that is compiled for (`is_refused`), and whatever it is if the
    graph is `only_compiled`.
    """
    if is_refused():
        return RefusedCallError(str(error))
    if isinstance(error, CoilworkError) and only_compiled:
        return error
    if only_compiled:
        return CompileError("graph-failed", f"graph {graph} cannot be compiled", reason=describe(error))
    logger.debug("graph %s is not compiled as a whole", graph, exc_info=True)
    return None


def warn_of_graph(error: Exception, graph: str) -> None:
    """Say that `graph` runs in eager mode, because of `error`."""
    warn_user(
        f"graph {graph} runs in eager mode: {describe(error)}\n"
        f'  try     options={{"strict": True}} for the traceback, COILWORK_TRACE=dir for every stage',
        CoilworkFallbackWarning,
    )


def warn_of_parts(error: Exception, graph: str, calls: Sequence[Origin]) -> None:
    """Say that `graph` is compiled in parts, between which `calls` run in eager mode, because of `error`; at
    the user's line of the first of them that has one."""
    named = ", ".join(dict.fromkeys(call.op for call in calls))
    text = (
        f"{named} run in eager mode between compiled parts of graph {graph}: {describe(error)}\n"
        f'  try     options={{"strict": True}} for the traceback, to report it'
    )
    place = next((call for call in calls if call.file), None)
    if place is None:
        warn_user(text, CoilworkFallbackWarning)
    else:
        warnings.warn_explicit(text, CoilworkFallbackWarning, place.file, place.line)


def box_graph(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """`graph` in eager mode, called with one list of inputs, which is emptied."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call


def explain_untraced(error: Exception) -> CompileError:
    """What the user is told of a graph that torch does not trace because of `error`."""
    return CompileError(
        "not-traced",
        "torch cannot trace a graph that it captured",
        reason=f"{type(error).__name__}: {error}",
        remedy='options={"strict": True} for the traceback',
    )


def warn_of_rewrites(error: Exception) -> None:
    """Say that a captured graph is compiled without rewrites, because of `error`."""
    warn_user(
        f"a graph is compiled without rewrites: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
    )


def warn_of_partition(error: Exception) -> None:
    """Say that forward and backward are compiled as they were captured, because of `error`.

    Raises:
        Exception: `error`, if it is for others to see.
    """
    if is_told(error):
        raise error
    warn_user(
        f"forward and backward are compiled without rewrites and layouts: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
    )


def warn_of_driver(graph: str, wanted: str, reason: object) -> None:
    """Say that Python drives `graph` instead of what was `wanted`."""
    text = describe(reason) if isinstance(reason, Exception) else reason
    warn_user(
        f"graph {graph} is driven by Python instead of {wanted}: {text}",
        CoilworkFallbackWarning,
    )


def warn_of_module(error: Exception, graph: str, *, strict: bool) -> None:
    """Say that there is no readable module of `graph`, which runs all the same.

    Raises:
        Exception: `error`, with `strict`.
    """
    if strict:
        raise error
    warn_user(f"graph {graph} has no readable module: {describe(error)}", CoilworkFallbackWarning)
