"""Run in eager mode what is not compiled, and tell the user.

A whole captured graph runs in eager mode if its inputs are opaque, if they may carry forward-mode tangents,
or if AOTAutograd cannot trace it and it cannot be split. `compile_around` leaves single calls to eager mode
and compiles the rest; `compile_halves` is for errors that name no call.
`GuardedProgram` runs the captured graph for calls that a compiled program turns out not to be for. The
`warn_of_...` functions word all warnings of fallbacks, from the captured graph to the driver.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.capture.eager_trial import RefusedCallError
from coilwork_frontend.errors import (
    CoilworkError,
    CoilworkFallbackWarning,
    CompileError,
    describe,
    warn_at,
    warn_user,
)
from coilwork_frontend.random_state import get_random_state, restore
from coilwork_frontend.torch_compat.dynamo import (
    DYNAMO_ERRORS,
    allow_graph_breaks,
    guard_dual_level,
    may_carry_tangents,
)
from coilwork_frontend.torch_compat.sizes import asks_for_data
from coilwork_frontend.torch_compat.tensors import (
    differentiate_alone,
    is_functional_wrapper,
    is_subclass_wrapper,
    list_tensors,
)
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.loc import Origin, get_trace_origin

# ---- Captured graphs ----


logger = logging.getLogger("coilwork")


class CapturedGraph:
    """A captured `graph` that runs in eager mode; the log says `reason` the first time."""

    def __init__(self, graph: fx.GraphModule, reason: str) -> None:
        self._graph = graph
        self._reason = reason
        self._announced = False

    def run(self, *args: Any) -> Any:
        """Run the graph in eager mode."""
        return self._graph.forward(*args)  # a call of the module would print where an error is raised

    def announce(self) -> None:
        """Log once that the graph runs, and why."""
        if not self._announced:
            self._announced = True
            logger.warning("%s: the captured graph runs, in eager mode", self._reason)


class GuardedProgram:
    """A compiled program that leaves a call to the captured graph if its assumptions fail at run time.

    The program must not have overwritten an input by then. With `random`, the generators' states are restored
    first. A graph that is not `faithful` may compute something else than the user's program: its error is
    raised if it raises one, otherwise the program's.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        captured: CapturedGraph,
        *,
        is_failure: Callable[[Exception], bool],
        random: bool,
        faithful: bool = True,
    ) -> None:
        """`is_failure` tells if an error of the program means that an assumption failed."""
        self._compiled = compiled
        self._captured = captured
        self._is_failure = is_failure
        self._random = random
        self._faithful = faithful

    def __call__(self, *args: Any) -> Any:
        numbers = get_random_state() if self._random else None
        failure: Exception | None = None
        try:
            return self._compiled(*args)
        # others are raised again
        except Exception as error:
            if not self._is_failure(error):
                raise
            if not self._faithful:
                failure = error
        if numbers is not None:
            restore(numbers)
        results = self._captured.run(*args)
        if failure is not None:
            raise failure
        self._captured.announce()
        return results


# ---- Single calls ----


# What torch's interpreter of graphs adds to an error that a call raises.
_EXECUTING: Final = re.compile(r"While executing %(\w+) :")

# The function that runs autograd's formulas.
_AUTOGRAD: Final = "_engine_run_backward"

CompilePart = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_around(
    captured: fx.GraphModule, calls: Collection[str], error: CompileError, compiler: CompilePart
) -> Callable[..., Any]:
    """Return a callable of `captured` that runs `calls`, names of its nodes, in eager mode.

    Dynamo traces the graph again at its first call, and compiles with `compiler` the parts between these
    calls, as between graph breaks. `captured` is changed in place. A warning at the source line of the first
    call gives `error` as the reason.
    """
    text = f"{_describe_calls(calls)} in eager mode, and the graph is compiled in parts: {error}"
    warn_at(text, CoilworkFallbackWarning, _find_place(captured, calls))
    for node in captured.graph.nodes:
        if node.name in calls:
            node.op, node.target = "call_function", _call_in_eager_mode(node.op, node.target)
    return _compile_again(captured, compiler)


@dataclass(slots=True, kw_only=True)
class Splits:
    """A count of how often a captured graph and its parts may still be split, to find a call that cannot be
    compiled.
    """

    left: int = 24


def compile_halves(
    captured: fx.GraphModule, error: Exception, splits: Splits, compiler: CompilePart
) -> Callable[..., Any] | None:
    """Return a callable of `captured`, which `error` keeps from being compiled as a whole, in two parts.

    Dynamo traces the graph again at its first call, and compiles both parts with `compiler`. A part that
    cannot be compiled is split in turn, so one call in the end runs in eager mode. None if the graph has one
    call, if `splits` says so, if `error` is about the graph as a whole, or if a part would begin within a
    transform of torch's. `captured` is changed in place.
    """
    calls = [node for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    if len(calls) < 2 or splits.left < 1 or any(map(_enters_context, calls)):
        return None
    if _is_of_whole_graph(captured, error):
        return None
    splits.left -= 1
    logger.info("a graph of %s calls is compiled in two parts: %s", len(calls), describe(error))
    with captured.graph.inserting_before(calls[len(calls) // 2]):
        captured.graph.call_function(_end_part)
    return _compile_again(captured, compiler)


def _is_of_whole_graph(captured: fx.GraphModule, error: Exception) -> bool:
    """Tell if no single call of `captured` can be the reason of `error`.

    Torch names the call at which its tracing stops; an error of torch's that names none is about inputs that
    share memory, or about streams, unless it asks for a size that only data tell, or is one of autograd's
    formulas. Dynamo does not take parts of nested tensors out of one graph into another, though. A mistraced
    graph computes something else than the program does.
    """
    if isinstance(error, CoilworkIRError):
        return error.code == "mistraced"
    if asks_for_data(error) or _is_of_gradients(error):
        values = [node.meta.get("example_value") for node in captured.graph.nodes]
        return any(map(is_subclass_wrapper, list_tensors(values)))
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in ("torch", "triton")


def _enters_context(node: fx.Node) -> bool:
    """Return True if `node` enters or leaves a transform or a mode, as `vmap` or autocast."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_nesting") or name.startswith(("_enter_", "_exit_"))


def _do_nothing() -> None:
    """End a part of a graph, as Dynamo does not trace this."""


_end_part: Callable[[], None] = torch.compiler.disable(_do_nothing)


def _compile_again(captured: fx.GraphModule, compiler: CompilePart) -> Callable[..., Any]:
    """Return a callable of `captured` that Dynamo traces again, at its first call."""
    has_open_sizes = any(
        isinstance(node.meta.get("example_value"), torch.SymInt)
        for node in captured.graph.find_nodes(op="placeholder")
    )

    traces = {node.name: node.meta.get("stack_trace") for node in captured.graph.nodes}

    def compile_part(part: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        _restore_places(part, traces)
        return compiler(part, inputs)

    @cache
    def open_parts() -> Callable[..., Any]:
        # Dynamo traces no code that was made while it compiled what is around it
        captured.recompile()
        forward: Callable[..., Any] = captured.forward
        in_parts: Callable[..., Any] = torch.compile(
            forward, backend=compile_part, dynamic=True if has_open_sizes else None
        )
        return in_parts

    def call(*args: Any) -> Any:
        # nor what it takes out of a compiled function that it is handed
        with allow_graph_breaks():
            return open_parts()(*args)

    return call


def _restore_places(part: fx.GraphModule, traces: Mapping[str, object]) -> None:
    """Give nodes of `part`, which Dynamo traced in code of a graph, the `traces` of that graph's nodes."""
    for node in part.graph.nodes:
        place = get_trace_origin("", node.meta.get("stack_trace"))
        trace = traces.get(place.code.partition(" = ")[0])
        if trace and place.file.startswith("<eval_with_key>"):
            node.meta["stack_trace"] = trace


def find_failing_call(captured: fx.GraphModule, error: Exception) -> str | None:
    """Return the name of the call of `captured` at which tracing stopped with `error`.

    None if `error` names no call, or if there is no other call.
    """
    calls = [node.name for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    named = [name for name in _EXECUTING.findall(str(error)) if name in calls]
    return named[-1] if named and len(calls) > 1 else None


def find_failing_gradient(captured: fx.GraphModule, error: Exception) -> str | None:
    """Return the name of the first call of `captured` whose gradient torch cannot trace by itself.

    An `error` of autograd's formulas names no call. The formulas of `cumsum` and `prod` ask how many elements
    there are, which only data tell. None if `error` is no error of theirs, if there is no such call,
    or if there is no other call.
    """
    calls = [node for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    for node in calls if len(calls) > 1 and _is_of_gradients(error) else ():
        try:
            differentiate_alone(node)
        except Exception:  # noqa: BLE001  whatever the call fails with
            return str(node.name)
    return None


def _is_of_gradients(error: Exception) -> bool:
    """Tell if torch raised `error` while autograd traced gradients."""
    return any(frame.name == _AUTOGRAD for frame in traceback.extract_tb(error.__traceback__))


def _find_place(captured: fx.GraphModule, calls: Collection[str]) -> Origin | None:
    """Return the first of `calls` whose source line `captured` knows."""
    for node in captured.graph.nodes:
        if node.name in calls:
            origin = get_trace_origin(node.name, node.meta.get("stack_trace"))
            if origin.file:
                return origin
    return None


def _describe_calls(calls: Collection[str]) -> str:
    first, *others = sorted(calls)
    return f"{first} and {len(others)} other calls run" if others else f"{first} runs"


def _call_in_eager_mode(op: str, target: Any) -> Callable[..., Any]:
    """Return a function that calls `target` (a function, or a method's name) and that Dynamo does not
    trace."""

    def call_in_eager_mode(*args: Any, **kwargs: Any) -> Any:
        if op == "call_function":
            return target(*args, **kwargs)
        return getattr(args[0], target)(*args[1:], **kwargs)

    disabled: Callable[..., Any] = torch.compiler.disable(call_in_eager_mode)
    return disabled


# ---- Errors and warnings ----


def is_for_others(error: Exception) -> bool:
    """Tell if `error` must be raised: ours, for the user, or one with which Dynamo tries a smaller graph."""
    return isinstance(error, (CoilworkError, *DYNAMO_ERRORS))


def run_captured_graph(captured: fx.GraphModule, error: Exception) -> Callable[..., Any]:
    """Warn that `captured` runs in eager mode because of `error`, and return the callable that runs it.

    The warning stands at the source line of the call that `error` names, or of the only call.
    """
    reason = error if isinstance(error, CompileError) else make_trace_error(error)
    calls = [node.name for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    what = f"a graph of one call, {calls[0]}," if len(calls) == 1 else "a graph"
    place = _find_place(captured, calls if len(calls) == 1 else _EXECUTING.findall(str(error)))
    warn_at(f"{what} runs in eager mode: {reason}", CoilworkFallbackWarning, place)
    # a call of the module would print where an error is raised
    forward: Callable[..., Any] = captured.forward
    return forward


def judge_fault(
    error: Exception, graph: str, *, only_compiled: bool, is_refused: Callable[[], bool]
) -> Exception | None:
    """Return the error to raise for `graph`, which `error` keeps from being compiled as a whole.

    It is a `RefusedCallError` if eager refuses the call (`is_refused`), and a `CompileError` if the graph is
    `only_compiled`. None: some of the graph runs in eager mode.
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
    """Warn that `graph` runs in eager mode because of `error`."""
    warn_user(
        f"graph {graph} runs in eager mode: {describe(error)}\n"
        f'  try     options={{"strict": True}} for the traceback, COILWORK_TRACE=dir for every stage',
        CoilworkFallbackWarning,
    )


def warn_of_parts(error: Exception, graph: str, calls: Sequence[Origin]) -> None:
    """Warn that `graph` is compiled in parts, and `calls` between them run in eager mode, because of `error`.

    The warning stands at the source line of the first call that has one.
    """
    named = ", ".join(dict.fromkeys(call.op for call in calls))
    text = (
        f"{named} run in eager mode between compiled parts of graph {graph}: {describe(error)}\n"
        f'  try     options={{"strict": True}} for the traceback, to report it'
    )
    warn_at(text, CoilworkFallbackWarning, next((call for call in calls if call.file), None))


def box_graph(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a callable that runs `graph` in eager mode; it takes one list of inputs and empties it."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call


def make_trace_error(error: Exception) -> CompileError:
    """Return the error that tells the user that torch cannot trace a graph because of `error`."""
    return CompileError(
        "not-traced",
        "torch cannot trace a graph that it captured",
        reason=f"{type(error).__name__}: {error}",
        remedy='options={"strict": True} for the traceback',
    )


def make_graph_error(error: Exception) -> CompileError:
    """Return the error that tells the user that a captured graph cannot be compiled because of `error`."""
    return CompileError(
        "graph-failed",
        "a captured graph cannot be compiled",
        reason=describe(error),
        remedy='options={"strict": True} for the traceback, to report it',
    )


def warn_of_rewrites(error: Exception) -> None:
    """Warn that a captured graph is compiled without rewrites because of `error`."""
    warn_user(
        f"a graph is compiled without rewrites: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
    )


def warn_of_partition(error: Exception) -> None:
    """Warn that forward and backward are compiled as they were captured because of `error`.

    Raises:
        Exception: `error`, if it must be raised (`is_for_others`).
    """
    if is_for_others(error):
        raise error
    warn_user(
        f"forward and backward are compiled without rewrites and layouts: {describe(error)}\n"
        '  try     options={"strict": True} for the traceback, to report it',
        CoilworkFallbackWarning,
    )


def warn_of_driver(graph: str, wanted: str, reason: object) -> None:
    """Warn that Python drives `graph` instead of the `wanted` driver."""
    text = describe(reason) if isinstance(reason, Exception) else reason
    warn_user(
        f"graph {graph} is driven by Python instead of {wanted}: {text}",
        CoilworkFallbackWarning,
    )


def warn_of_module(error: Exception, graph: str, *, strict: bool) -> None:
    """Warn that no readable module was written for `graph`, which runs without it.

    Raises:
        Exception: `error`, with `strict`.
    """
    if strict:
        raise error
    warn_user(f"graph {graph} has no readable module: {describe(error)}", CoilworkFallbackWarning)


# ---- Opaque inputs ----


def has_opaque_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell if a real input of Dynamo's graph is opaque: its memory is not laid out as its fake tensor says.

    These are oneDNN's tensors (`x.to_mkldnn()`) and tensors that `torch.func.functionalize` wraps. Fake
    tensors show them as plain. Torch's guards tell them apart, so other inputs never meet this graph, nor
    these another.
    """
    return bool(_list_opaque(gm, example_inputs))


def run_opaque(gm: fx.GraphModule, example_inputs: Sequence[Any], *, strict: bool) -> Callable[..., Any]:
    """Warn of the first opaque input, and return the captured graph, to run in eager mode.

    Raises:
        CompileError: instead of the warning, with `strict`.
    """
    node, value = _list_opaque(gm, example_inputs)[0]
    error = _explain_opaque(node.name, value)
    if strict:
        raise error
    warn_user(f"a graph runs in eager mode: {error}", CoilworkFallbackWarning)
    return gm


def _explain_opaque(name: str, value: torch.Tensor) -> CompileError:
    if is_functional_wrapper(value):
        return CompileError(
            "opaque-input",
            f"input {name} is wrapped by torch.func.functionalize, which generated code cannot read",
            reason="torch cannot trace the gradients of a graph inside of it",
            remedy=(
                "call the compiled function without functionalize: the compiler does the same to its graph"
            ),
        )
    return CompileError(
        "opaque-input",
        f"input {name} has layout {value.layout}, which generated code cannot read",
        reason="torch captures it as a tensor with strides, which it does not have",
        remedy="call .to_dense() before the compiled function",
    )


def _list_opaque(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[tuple[fx.Node, torch.Tensor]]:
    opaque: list[tuple[fx.Node, torch.Tensor]] = []
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        captured = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and isinstance(captured, torch.Tensor):
            is_opaque = value.layout != captured.layout or is_functional_wrapper(value)
            opaque += [(node, value)] if is_opaque else []
    return opaque


# ---- Forward-mode differentiation ----


def run_in_forward_mode(gm: fx.GraphModule, *, only_compiled: bool) -> Callable[..., Any] | None:
    """Return a callable that runs Dynamo's graph `gm` in eager mode, if tensors may carry forward-mode
    tangents.

    None outside of `torch.autograd.forward_ad.dual_level()`: the graph is compiled. Torch's operators compute
    tangents beside their results; kernels would drop them without an error. A guard separates the two cases.

    Raises:
        CompileError: within a level, with `only_compiled`.
    """
    guard_dual_level()
    if not may_carry_tangents():
        return None
    if only_compiled:
        raise CompileError(
            "forward-mode",
            "a graph is called within torch.autograd.forward_ad.dual_level()",
            reason="only torch's own operators compute tangents",
            remedy="call it outside of the level, or use torch.func.jvp within what is compiled",
        )
    captured = CapturedGraph(gm, "tensors may carry tangents of forward-mode differentiation")
    captured.announce()
    return captured.run
