"""Compile one of Dynamo's graphs to a callable.

Graphs that must not be compiled run in eager mode; the others are rewritten by the table `MENDS`, given to
AOTAutograd, and wrapped for calls that the program is not for. `Stages`, made once per captured graph,
compiles the ATen graphs.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from torch import fx

from coilwork_frontend.calling_convention.activation_strides import lay_out_saved
from coilwork_frontend.calling_convention.convention import Role, Roles
from coilwork_frontend.calling_convention.lazy_conjugation import restore_marks
from coilwork_frontend.calling_convention.result_aliasing import (
    CapturedResult,
    ResultObject,
    SharedMemory,
    describe_results,
    identify_results,
    list_marks,
    make_view_roles,
    plan_shared_results,
)
from coilwork_frontend.capture.collectives import functionalize_collectives, has_group_inputs, name_groups
from coilwork_frontend.capture.dtype_checks import EagerKernels, has_rejected_types, has_writes_of_other_types
from coilwork_frontend.capture.eager_fallback import (
    Splits,
    compile_around,
    compile_halves,
    find_failing_call,
    find_failing_gradient,
    has_opaque_inputs,
    is_for_others,
    make_graph_error,
    make_trace_error,
    run_captured_graph,
    run_in_forward_mode,
    run_opaque,
)
from coilwork_frontend.capture.eager_trial import (
    EagerTrial,
    RefusedCallError,
    UnknownGradientError,
    has_gradient_calls,
    has_mixed_meta_tensors,
    restore_shapes,
    run_refused,
)
from coilwork_frontend.capture.input_storages import (
    compile_with_storages,
    copy_graph,
    find_misplaced_writes,
    give_expanded_storages,
    guard_shared_memory,
)
from coilwork_frontend.capture.operator_fixes import (
    broadcast_masked_select,
    keep_resize_operators,
    read_tensor_indices,
    replace_margin_losses,
    restore_scaled_products,
    sum_over_empty_dims,
)
from coilwork_frontend.capture.pytree_inputs import flatten_inputs, has_pytree_inputs
from coilwork_frontend.capture.runtime_checks import check_values, put_user_checks_first
from coilwork_frontend.capture.subgraphs import copy_scan_results, find_subgraph_effects, inline_subgraphs
from coilwork_frontend.capture.unbacked_sizes import (
    SqueezeAssertions,
    UnifiedSizes,
    copy_for_squeezed_sizes,
    guard_squeezed_sizes,
)
from coilwork_frontend.capture.write_overlaps import (
    fill_expansion_source,
    has_overlapping_writes,
    list_repeated_writes,
    make_repeated_error,
    write_expansion_source,
)
from coilwork_frontend.errors import CompileError, describe
from coilwork_frontend.recurrences.calls import replace_recurrent_calls
from coilwork_frontend.torch_compat.aot_autograd import (
    BoxedCallable,
    compile_with_aot_autograd,
    get_result_facts,
    leave_transforms,
    return_own_objects,
)
from coilwork_frontend.traced_graphs import TraceCache, compile_or_restore
from coilwork_ir.calling_convention import CallingConvention, CallRole
from coilwork_ir.passes import Before, Pass, PassTable

# ---- Garbage collection ----


@contextmanager
def pause_collector() -> Iterator[None]:
    """Switch Python's cyclic garbage collector off while it is entered; it may be nested.

    A compilation makes hundreds of thousands of values that live until its end. Walking over them, which
    frees nothing, costs up to two fifths of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Halves = tuple[fx.GraphModule, fx.GraphModule]
# A graph, its inputs, and a function that makes them from a caller's arguments.
Rearranged = tuple[fx.GraphModule, list[Any], Callable[[list[Any]], list[Any]]]
logger = logging.getLogger("coilwork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The guarantees of a compilation.

    Attributes:
        strict: a graph that cannot be compiled is an error, instead of running in eager mode with a warning.
        is_batch_invariant: results of a row do not depend on other rows, so nothing runs in eager mode.
    """

    strict: bool = False
    is_batch_invariant: bool = False

    @property
    def must_compile(self) -> bool:
        """True if an error is raised where a warning and eager mode would do."""
        return self.strict or self.is_batch_invariant


class Stages(Protocol):
    """Compiles the ATen graphs of one captured graph."""

    @property
    def promises(self) -> Promises: ...

    @property
    def eager_kernels(self) -> EagerKernels: ...

    @property
    def decompositions(self) -> dict[Any, Callable[..., Any]]:
        """Return the decompositions for AOTAutograd, by operator."""

    def rewrite(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Rewrite Dynamo's graph in place to a faster one."""

    def leave_out_rewrites(self, error: Exception) -> Stages | None:
        """Return stages without the rewrites that failed with `error`; None if `error` is to be raised."""

    def partition(self, joint: fx.GraphModule, example_inputs: Sequence[Any], **rest: Any) -> Halves:
        """Return the forward and the backward half of a joint graph."""

    def compile(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        role: Role,
        shared: Sequence[SharedMemory],
        is_refused: Callable[[], bool],
    ) -> BoxedCallable:
        """Compile an ATen graph to a callable. `shared` are results that share memory; `is_refused` tells if
        eager refuses the call."""

    def apply_roles(self, call: Callable[..., Any], roles: Roles) -> Callable[..., Any]:
        """Return `call`, which takes inputs one by one, with `roles` around it."""

    def is_other_shape(self, error: Exception) -> bool:
        """Tell if a compiled program failed because an operator returned another shape than captured."""

    @property
    def traces(self) -> TraceCache | None:
        """The records of graphs that earlier processes traced; None if none are used."""

    def watch_in_eager(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, which runs a captured graph in eager mode, with the checks that options ask for."""

    def watch(self, call: Callable[..., Any], captured: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        """Return `call`, compiled of `captured`, with the checks of rewrites that options ask for."""


def compile_captured(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    begin: Callable[[], Stages],
    splits: Splits | None = None,
) -> Callable[..., Any]:
    """Compile Dynamo's graph `gm`, which is changed in place; `begin` makes the stages of a captured graph.

    `splits` bounds how often the graph is split around a fault; by default it is of a whole graph.

    Raises:
        CompileError: with `strict`, the graph cannot be compiled.
    """
    start = CapturedInputs(gm=gm, inputs=example_inputs, roles=Roles(convention=CallingConvention(takes=0)))
    captured = CAPTURED_ROLES.run(start, None)
    compiled = _compile_flat(captured.gm, captured.inputs, begin, splits or Splits())
    if not captured.roles.convention.rows:
        return compiled
    return begin().apply_roles(compiled, captured.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedInputs:
    """Dynamo's graph, its inputs, and the roles that make these from a caller's arguments."""

    gm: fx.GraphModule
    inputs: Sequence[Any]
    roles: Roles

    def arrange(self, name: str, arranged: Rearranged) -> CapturedInputs:
        """Return the rearranged graph and inputs, with the role `name` inside of the roles so far."""
        gm, inputs, make = arranged
        rows = (CallRole(kind="before", name=name), *self.roles.convention.rows)
        roles = Roles(
            convention=CallingConvention(takes=len(inputs), rows=rows),
            functions=MappingProxyType({**self.roles.functions, name: make}),
        )
        return CapturedInputs(gm=gm, inputs=inputs, roles=roles)


def _flatten_inputs(captured: CapturedInputs, context: None) -> CapturedInputs:
    if not has_pytree_inputs(captured.inputs):
        return captured
    return captured.arrange("flatten", flatten_inputs(captured.gm, captured.inputs))


def _name_groups(captured: CapturedInputs, context: None) -> CapturedInputs:
    if not has_group_inputs(captured.gm, captured.inputs):
        return captured
    return captured.arrange("named", name_groups(captured.gm, captured.inputs))


CAPTURED_ROLES: Final[PassTable[CapturedInputs, None]] = PassTable(
    passes=(
        Pass(name="flatten inputs", run=_flatten_inputs, why="AOTAutograd knows flat inputs"),
        Pass(name="name groups", run=_name_groups, why="no program can hold a group, and torch bakes it in"),
    ),
    order=(Before("flatten inputs", "name groups", "a nested input may hold groups"),),
)
"""The roles of a captured graph's inputs, from the caller inwards."""


def _compile_flat(
    gm: fx.GraphModule, example_inputs: Sequence[Any], begin: Callable[[], Stages], splits: Splits
) -> Callable[..., Any]:
    """Compile a captured graph whose inputs are flat and hold no process group, in parts around a fault."""
    captured = copy_graph(gm)
    try:
        return _compile_whole(gm, example_inputs, begin, splits)
    # Whatever a step around torch's tracing raises is the compiler's fault, not the user's.
    except Exception as error:
        stages = begin()
        if isinstance(error, RefusedCallError) or is_for_others(error) or stages.promises.must_compile:
            raise
        return _compile_split(captured, make_graph_error(error), stages, begin, splits)


def _compile_whole(
    gm: fx.GraphModule, example_inputs: Sequence[Any], begin: Callable[[], Stages], splits: Splits
) -> Callable[..., Any]:
    """Compile a captured graph whose inputs are flat and hold no process group."""
    stages = begin()
    promises = stages.promises
    if has_opaque_inputs(gm, example_inputs):
        return stages.watch_in_eager(run_opaque(gm, example_inputs, strict=promises.must_compile))
    restore_scaled_products(gm)
    if has_rejected_types(gm, stages.eager_kernels):
        # not as a call of the module, which would print where an error is raised
        return gm.forward
    eager_call = run_in_forward_mode(gm, only_compiled=promises.is_batch_invariant)
    if eager_call is not None:
        return stages.watch_in_eager(eager_call)
    captured, results = copy_graph(gm), describe_results(gm)
    views = make_view_roles(gm, len(example_inputs))
    guard_memory = guard_shared_memory(gm, example_inputs, captured)
    squeezed, assertions = copy_for_squeezed_sizes(gm), SqueezeAssertions()
    unified = UnifiedSizes(gm, is_other_shape=stages.is_other_shape)
    trial = EagerTrial(captured, example_inputs)
    inputs, pass_storages = give_expanded_storages(gm, example_inputs, captured)
    MENDS.run(gm, None)
    eager_call = _run_unmended(gm, captured, example_inputs, trial, stages, begin, splits)
    if eager_call is not None:
        return eager_call
    try:
        stages.rewrite(gm, inputs)
    # A graph can do without rewrites of ours.
    except Exception as error:
        others = None if is_for_others(error) else stages.leave_out_rewrites(error)
        if others is None:
            raise
        plain = others
        return _compile_whole(copy_graph(captured), example_inputs, lambda: plain, splits)
    compilers = _Compilers(stages=stages, results=results, trial=trial)
    trace = partial(
        compile_with_aot_autograd,
        forward=unified.watch_compiler(assertions.watch_compiler(compilers.compile_forward)),
        backward=compilers.compile_backward,
        inference=unified.watch_compiler(assertions.watch_compiler(compilers.compile_inference)),
        decompositions=stages.decompositions,
        partition=compilers.partition,
    )
    compiler = partial(
        compile_or_restore,
        compiler=lambda gm, inputs, observer: trace(gm, inputs, observer=observer),
        cache=stages.traces,
        facts=str(results),
    )
    try:
        with pause_collector(), leave_transforms():
            compiled = pass_storages(compile_with_storages(gm, inputs, compiler))
    # Whatever torch's tracing raises is not the user's fault: eager runs the program, or says better what is
    # wrong with it.
    except Exception as error:
        uncompiled = _run_untraced(captured, example_inputs, error, trial, stages, begin, splits)
        if uncompiled is None:
            raise
        return uncompiled
    compiled = guard_memory(unified.guard(guard_squeezed_sizes(compiled, squeezed, assertions)))
    compiled = stages.apply_roles(compiled, Roles(convention=views))
    watched: Callable[..., Any] = stages.watch(compiled, captured, example_inputs)
    return watched


def _make_mend(fix: Callable[[fx.GraphModule], None]) -> Callable[[fx.GraphModule, None], fx.GraphModule]:
    """Return `fix`, which rewrites the graph in place, as a step of the table."""

    def run(gm: fx.GraphModule, context: None) -> fx.GraphModule:
        fix(gm)
        return gm

    return run


_OTHER_CALLS: Final = "they rewrite different calls, so either order does"

MENDS: Final[PassTable[fx.GraphModule, None]] = PassTable(
    passes=(
        Pass(
            name="user checks",
            run=_make_mend(put_user_checks_first),
            why="a failing check shows the user's message, not torch's",
        ),
        Pass(
            name="collectives",
            run=_make_mend(functionalize_collectives),
            why="AOTAutograd refuses collectives that write into their operands",
        ),
        Pass(
            name="nested regions",
            run=_make_mend(inline_subgraphs),
            why="a graph that is called is not fused or partitioned together with what surrounds it",
        ),
        Pass(
            name="results of scans",
            run=_make_mend(copy_scan_results),
            why="AOTAutograd refuses a scan that keeps what it returns for its gradients",
        ),
        Pass(
            name="recurrent layers",
            run=_make_mend(replace_recurrent_calls),
            why="torch's decompositions write out all steps, and drop the dropout between layers",
        ),
        Pass(
            name="tensor indices",
            run=_make_mend(read_tensor_indices),
            why="numbers in tensors index as numbers do",
        ),
        Pass(
            name="masked selection",
            run=_make_mend(broadcast_masked_select),
            why="a mask may have more elements than the tensor it selects from",
        ),
        Pass(
            name="sums over all",
            run=_make_mend(sum_over_empty_dims),
            why="over an empty list of dimensions, fake tensors sum over none, and eager over all",
        ),
        Pass(
            name="value checks",
            run=_make_mend(check_values),
            why="tracing does not see values, some of which eager refuses",
        ),
        Pass(
            name="filled expansions",
            run=_make_mend(fill_expansion_source),
            why="an expanded tensor is filled by filling its source once",
        ),
        Pass(
            name="written expansions",
            run=_make_mend(write_expansion_source),
            why="AOTAutograd adds up writes to elements that share memory",
        ),
        Pass(
            name="margin losses",
            run=_make_mend(replace_margin_losses),
            why="torch's decomposition takes padding behind the last label for labels",
        ),
        Pass(
            name="resizing",
            run=_make_mend(keep_resize_operators),
            why="resizing is differentiated as one operator",
        ),
    ),
    order=(
        Before("user checks", "collectives", _OTHER_CALLS),
        Before("collectives", "nested regions", _OTHER_CALLS),
        Before("nested regions", "results of scans", "an inlined region may call a scan"),
        Before("results of scans", "recurrent layers", _OTHER_CALLS),
        Before("recurrent layers", "tensor indices", _OTHER_CALLS),
        Before("tensor indices", "masked selection", _OTHER_CALLS),
        Before("masked selection", "sums over all", _OTHER_CALLS),
        Before("sums over all", "value checks", _OTHER_CALLS),
        Before("value checks", "filled expansions", _OTHER_CALLS),
        Before("filled expansions", "written expansions", "a fill of a whole tensor needs no view"),
        Before("written expansions", "margin losses", _OTHER_CALLS),
        Before("margin losses", "resizing", _OTHER_CALLS),
    ),
)
"""Rewrites of Dynamo's graph, in place, where torch's tracing differs from eager."""


def _run_unmended(
    gm: fx.GraphModule,
    captured: fx.GraphModule,
    example_inputs: Sequence[Any],
    trial: EagerTrial,
    stages: Stages,
    begin: Callable[[], Stages],
    splits: Splits,
) -> Callable[..., Any] | None:
    """Return a call that does without tracing `gm`: eager refuses the call, or tracing would get a write or
    an effect wrong. None if there is no such reason.

    Raises:
        CompileError: tracing would get something wrong, and only compiled code may run.
    """
    if (
        has_gradient_calls(gm) or has_writes_of_other_types(gm) or has_overlapping_writes(gm)
    ) and trial.refuses():
        restore_shapes(captured, example_inputs)
        forward: Callable[..., Any] = captured.forward
        return forward
    calls, error = find_misplaced_writes(gm)
    if error is None:
        calls = list_repeated_writes(gm)
        error = make_repeated_error(calls[0]) if calls else None
    if error is None:
        calls, error = find_subgraph_effects(captured)
    if error is None:
        return None
    if stages.promises.must_compile:
        raise error
    names = {node.name for node in calls}
    if names <= {node.name for node in captured.graph.nodes}:
        return compile_around(captured, names, error, _compile_part(begin, splits))
    return stages.watch_in_eager(run_captured_graph(captured, error))


def _run_untraced(
    captured: fx.GraphModule,
    example_inputs: Sequence[Any],
    error: Exception,
    trial: EagerTrial,
    stages: Stages,
    begin: Callable[[], Stages],
    splits: Splits,
) -> Callable[..., Any] | None:
    """Return a call that runs a graph which `error` keeps from being compiled; None if `error` is to be
    raised."""
    only_compiled = stages.promises.must_compile
    if isinstance(error, RefusedCallError) or not is_for_others(error):
        is_of_gradients = isinstance(error, UnknownGradientError)
        if not is_of_gradients and trial.refuses():
            restore_shapes(captured, example_inputs)
            return run_refused(captured, error, strict=only_compiled)
        if is_of_gradients or trial.refuses_gradients():
            logger.info("a graph runs in eager mode, which refuses its gradient: %s", describe(error))
            forward: Callable[..., Any] = captured.forward
            return forward
    if only_compiled or is_for_others(error):
        return None
    return _compile_split(captured, error, stages, begin, splits)


def _compile_split(
    captured: fx.GraphModule, error: Exception, stages: Stages, begin: Callable[[], Stages], splits: Splits
) -> Callable[..., Any]:
    """Compile `captured` around the call that `error` names, or in halves; one call runs in eager mode."""
    part = _compile_part(begin, splits)
    failing = find_failing_call(captured, error)
    if failing is None:
        failing = find_failing_gradient(captured, error)
    if failing is not None:
        reason = error if isinstance(error, CompileError) else make_trace_error(error)
        return compile_around(captured, {failing}, reason, part)
    halves = compile_halves(captured, error, splits, part)
    return stages.watch_in_eager(run_captured_graph(captured, error)) if halves is None else halves


def _compile_part(
    begin: Callable[[], Stages], splits: Splits
) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    return lambda part, inputs: compile_captured(part, inputs, begin, splits)


@dataclass(slots=True, kw_only=True)
class _Compilers:
    """The compilers that AOTAutograd calls. `objects` are the tensor objects of the forward graph's results,
    read off the joint graph."""

    stages: Stages
    results: Sequence[CapturedResult]
    trial: EagerTrial
    objects: list[ResultObject | None] = field(default_factory=list)

    def partition(self, joint: fx.GraphModule, inputs: Sequence[Any], **rest: Any) -> Halves:
        return_own_objects(joint, rest["num_fwd_outputs"])
        self.objects.extend(identify_results(joint, rest["num_fwd_outputs"]))
        return self.stages.partition(joint, inputs, **rest)

    def compile_forward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        if has_mixed_meta_tensors(gm):
            raise UnknownGradientError("a call takes tensors on meta beside others")
        shared = plan_shared_results(self.objects, self.results, get_result_facts(), recorded=True)
        gm = restore_marks(gm, list_marks(self.results, get_result_facts()))
        is_refused = self.trial.refuses_training
        return self.stages.compile(gm, example_inputs, role="forward", shared=shared, is_refused=is_refused)

    def compile_backward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        # It is often compiled at its first call, outside of the pause around AOTAutograd.
        with pause_collector():
            inputs = lay_out_saved(gm, example_inputs)
            return self.stages.compile(gm, inputs, role="backward", shared=(), is_refused=lambda: False)

    def compile_inference(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
        if has_mixed_meta_tensors(gm):
            raise RefusedCallError("a call takes tensors on meta beside others")
        gm = restore_marks(gm, list_marks(self.results, get_result_facts()))
        shared = plan_shared_results(identify_results(gm), self.results, get_result_facts(), recorded=False)
        is_refused = self.trial.refuses
        return self.stages.compile(gm, example_inputs, role="inference", shared=shared, is_refused=is_refused)
