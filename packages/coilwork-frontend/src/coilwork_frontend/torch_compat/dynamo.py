"""Private parts of Dynamo: its table of back ends, its compile lock, counters, errors and guards.

Threads: `torch.compile(f, backend="coilwork")` looks the name up, loads the entry point, and refuses a name
that is in the table by then, so of threads that compile first at once all but one fail. Loading takes a
second. `allow_registering_again` exchanges the table while our entry point loads. Forks: a child finds the
compile lock taken if a thread of its parent compiles, and waits forever, with `eager` too.
`free_compile_lock_in_children` gives the child a new lock. Recurrent layers: Dynamo ends a graph at each
`nn.RNN`, `nn.GRU` and `nn.LSTM` unless a setting of the whole process allows them;
`allow_recurrent_layers` sets it while Dynamo looks at one for our back end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
import torch.distributed
from torch import fx
from torch._dispatch.python import no_python_dispatcher
from torch._dynamo import config, convert_frame, eval_frame, utils
from torch._dynamo.backends import registry
from torch._dynamo.exc import (
    TensorifyScalarRestartAnalysis,
    TorchDynamoException,
    exceptions_allowed_to_be_fallback,
)
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.utils import counters, graph_break_reasons
from torch._dynamo.variables.builder import VariableBuilder
from torch._guards import TracingContext
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.utils import redirect_to_mode
from torch.autograd import forward_ad
from torch.utils._dtype_abbrs import dtype_abbrs
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

from coilwork_frontend.torch_compat.fake_devices import keep_absent_device
from coilwork_frontend.torch_compat.recurrent_operators import describe_recurrent_call

CapturedAgain: Final = TensorifyScalarRestartAnalysis
"""Tells Dynamo to capture its frame again, with constants for some fractions."""

# ---- Table of back ends ----


class _Reentrant(dict[str, Any]):
    """Back ends by name, some of which are reported missing, so that each thread may load and register
    them."""

    def __init__(self, known: dict[str, Any], names: frozenset[str]) -> None:
        super().__init__(known)
        # another thread may be entering its own back end there
        self._before = known
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names and (super().__contains__(name) or name in self._before)

    def __missing__(self, name: str) -> Any:
        return self._before[name]


def allow_registering_again(name: str) -> None:
    """Let torch register back end `name` several times. To be called while its entry point loads."""
    known = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(known, dict):
        vars(registry)["_COMPILER_FNS"] = _Reentrant(known, frozenset((name,)))


# ---- Names of types ----


def name_all_types() -> None:
    """Name the types of less than a byte that torch forgot, in the text of graphs. To be called once.

    Torch prints the joint graph of every training step, for its log.
    """
    for name, dtype in vars(torch).items():
        if isinstance(dtype, torch.dtype):
            dtype_abbrs.setdefault(dtype, name)


# ---- Lock of compilations ----


def free_compile_lock_in_children() -> None:
    """Give forked children a new compile lock from now on. To be called once in a process.

    A thread that forks while it compiles releases the lock that it took, since `with` holds on to that one.
    """
    os.register_at_fork(after_in_child=_renew_lock)


def _renew_lock() -> None:
    if hasattr(convert_frame, "compile_lock"):
        vars(convert_frame)["compile_lock"] = threading.RLock()


# ---- Checkpoints ----


def allow_scans_in_checkpoints() -> None:
    """Let checkpointed regions hold scans, as they hold other higher-order operators. To be called once."""
    for mode in (_CachingTorchDispatchMode, _CachedTorchDispatchMode):
        if mode not in scan_op.python_key_table:
            redirect_to_mode(scan_op, mode)


# ---- Recurrent layers ----


_LAYERS: Final = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
# where a back end is kept by what torch wraps around it
_WRAPPED: Final = ("compiler_fn", "_torchdynamo_orig_backend", "func")


def allow_recurrent_layers(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace recurrent layers, from now on, into the graphs that it captures for `backend`.

    To be called once in a process. The graphs of other back ends end at these layers as before. Dynamo would
    run each layer on fake tensors step by step, which takes long and fixes how many steps there are; their
    results are described instead.
    """
    wrap_module, run_node = VariableBuilder.wrap_module, utils.run_node

    def wrap(self: VariableBuilder, value: torch.nn.Module) -> Any:
        if not isinstance(value, _LAYERS) or not _is_for(self.tx.output.compiler_fn, backend):
            return wrap_module(self, value)
        with config.patch(allow_rnn=True):
            return wrap_module(self, value)

    def run(tracer: Any, node: fx.Node, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        described = None
        if node.op == "call_function" and _is_for(getattr(tracer, "compiler_fn", None), backend):
            described = describe_recurrent_call(node.target, args)
        return run_node(tracer, node, args, kwargs, nnmodule) if described is None else described

    type.__setattr__(VariableBuilder, "wrap_module", wrap)
    vars(utils)["run_node"] = run


def _is_for(compiler: object, backend: Callable[..., Any]) -> bool:
    """Tell if Dynamo's `compiler` is `backend`, or wraps it."""
    seen = 0
    while compiler is not None and compiler is not backend and seen < len(_WRAPPED) ** 2:
        compiler = next((found for name in _WRAPPED if (found := getattr(compiler, name, None))), None)
        seen += 1
    return compiler is backend


# ---- All of these ----


def prepare_dynamo(name: str, backend: Callable[..., Any]) -> None:
    """Make Dynamo do for `backend`, which has that name, what this module says.

    To be called once in a process, while the back end's entry point loads.
    """
    allow_registering_again(name)
    free_compile_lock_in_children()
    name_all_types()
    keep_absent_device()
    allow_scans_in_checkpoints()
    allow_recurrent_layers(backend)


# ---- Graph breaks ----


def count_graph_breaks() -> dict[str, int]:
    """Return how often Dynamo ended a graph in this process so far, by reason, each on one line.

    The reason ends with the user's line, unless Dynamo was reset since.
    """
    places: dict[str, str] = {}
    for one in graph_break_reasons:
        for frame in one.user_stack[-1:]:
            places[one.reason] = f" at {frame.filename}:{frame.lineno}"
    found = counters["graph_break"].items()
    return {
        " ".join(str(reason).split()) + places.get(str(reason), ""): int(count) for reason, count in found
    }


DYNAMO_LOG: Final = "torch._dynamo.convert_frame"
"""The log that tells which functions Dynamo does not compile any more, and why."""


# How many frames a call of a function with `fullgraph=True` compiled so far; -1 outside of such calls.
_set_frame_count: Final[Callable[[int], int] | None] = getattr(
    eval_frame, "set_fullgraph_compiled_frame_count", None
)


@contextmanager
def allow_graph_breaks() -> Iterator[None]:
    """Let Dynamo compile behind graph breaks of functions that code compiled with `fullgraph=True` calls.

    Torch 2.13 would run what is behind the first break in eager mode, and tell nobody.
    """
    if _set_frame_count is None:
        yield
        return
    count = _set_frame_count(-1)
    try:
        yield
    finally:
        _set_frame_count(count)


# ---- Errors ----


DYNAMO_ERRORS: Final[tuple[type[Exception], ...]] = (TorchDynamoException, *exceptions_allowed_to_be_fallback)
"""Errors that Dynamo handles: it tells the user, or tries a smaller graph."""


# ---- Process groups ----


def is_process_group(value: Any) -> bool:
    """Tell if `value` is a process group; never in a torch that was built without `torch.distributed`."""
    if not torch.distributed.is_available():
        return False
    return isinstance(value, torch.distributed.ProcessGroup)


def guard_identity(node: fx.Node) -> None:
    """Guard the identity of the input `node` of the graph that Dynamo is compiling; it only guards the
    class."""
    context, argument = TracingContext.try_get(), node.meta.get("grapharg")
    if context is not None and argument is not None:
        context.guards_context.dynamo_guards.add(argument.source.make_guard(GuardBuilder.ID_MATCH))


# ---- Differentiation ----


def may_carry_tangents() -> bool:
    """Tell if the caller is within `torch.autograd.forward_ad.dual_level()`."""
    return forward_ad._current_level >= 0


def guard_dual_level() -> None:
    """Guard the level of forward-mode differentiation of the frame that Dynamo is compiling.

    Dynamo has this guard, and installs it only where it has traced an entry into a level.
    """
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def decompose_after_autograd() -> AbstractContextManager[object]:
    """Make torch decompose operators after autograd and not before, while it is entered.

    Operators must have static sizes then: torch's own kernels take numbers.
    """
    context: AbstractContextManager[object] = no_python_dispatcher()
    return context


def list_constant_fractions() -> frozenset[str]:
    """Return the symbols of the frame that Dynamo captures for which its graphs have constants."""
    return frozenset(TensorifyState.force_specializations)


def capture_with_constants(symbols: Iterable[str]) -> None:
    """Have Dynamo capture its frame again, with constants for `symbols`, fractions among its inputs.

    Returns if it has done so before.

    Raises:
        CapturedAgain: for Dynamo.
    """
    missing = [symbol for symbol in symbols if not TensorifyState.should_specialize(symbol)]
    for symbol in missing:
        TensorifyState.specialize(symbol)
    if missing:
        raise CapturedAgain
