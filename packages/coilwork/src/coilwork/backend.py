"""`torch.compile(model, backend="coilwork")`: from Dynamo's graph to callables, through AOTAutograd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from coilwork.boundary.captured_results import (
    CapturedResult,
    captured_results,
    list_marks,
    with_created_views,
)
from coilwork.boundary.marked_results import restore_marks
from coilwork.boundary.shared_results import (
    ResultObject,
    SharedMemory,
    plan_shared_results,
    result_objects,
)
from coilwork.caching.shared_cache import shared_store
from coilwork.capture.collectives_in_place import write_collectives_out
from coilwork.capture.eager_calls import compile_around
from coilwork.capture.forward_mode import in_forward_mode
from coilwork.capture.label_margins import write_out_label_margins
from coilwork.capture.masked_selection import broadcast_selections
from coilwork.capture.nested_inputs import flattened, has_nested_inputs
from coilwork.capture.nested_regions import put_in_place
from coilwork.capture.opaque_inputs import has_opaque_inputs, left_to_eager
from coilwork.capture.overlapping_writes import (
    fill_what_is_expanded,
    repeated_elements,
    write_to_what_is_expanded,
    writes_to_overlaps,
    writes_to_repeats,
)
from coilwork.capture.process_groups import has_group_inputs, with_named_groups
from coilwork.capture.refused_calls import (
    EagerTrial,
    RefusedCallError,
    calls_gradients,
    restore_shapes,
    run_refused,
)
from coilwork.capture.refused_outputs import writes_other_types
from coilwork.capture.refused_types import has_refused_types
from coilwork.capture.resizing import keep_resizing
from coilwork.capture.scaled_products import restore_scaled_products
from coilwork.capture.shared_memory import with_shared_memory
from coilwork.capture.squeezed_sizes import Assertions, copy_for_squeezed_sizes, with_squeezed_sizes
from coilwork.capture.storages import (
    copy_of,
    find_misplaced_writes,
    give_expanded_storages,
    given_storages,
)
from coilwork.capture.taken_sizes import TakenSizes
from coilwork.capture.tensor_indices import read_indices
from coilwork.capture.told_checks import put_told_checks_first
from coilwork.capture.untraced import is_told, run_as_captured
from coilwork.capture.value_checks import check_values
from coilwork.checking.captured import with_captured_check
from coilwork.checking.watch import watched_in_eager
from coilwork.collector import collector_paused
from coilwork.compile_graph import compile_graph
from coilwork.errors import describe
from coilwork.fallback_names import check_fallback
from coilwork.given_options import resolve
from coilwork.job import DECIDED, Role
from coilwork.layout import layout_options
from coilwork.modes import announce_mode
from coilwork.options import CompileOptions
from coilwork.passes import name_of, run_passes
from coilwork.rewriting import (
    NAMES,
    announce_unkeyed,
    check_names,
    draws_its_own,
    packs_weights,
    rewrite_captured,
    rewrites_of,
    warn_of_partition,
    warn_of_rewrites,
)
from coilwork.stages import lowering_options
from coilwork.torch_compat.autograd import (
    BoxedCallable,
    compile_with_aot_autograd,
    result_facts,
    static_input_positions,
)
from coilwork.torch_compat.forked_compiles import free_compile_lock_in_children
from coilwork.torch_compat.registry import allow_registering_again
from coilwork.torch_compat.versions import check_torch_version
from coilwork_lowering import (
    AddedGuard,
    GuardWatch,
    decompositions,
    lay_out_convolutions,
    pad_products,
    partition,
    watched_decompositions,
)
from coilwork_lowering.rewrites import Fired, cleaned_up, pack_weights, split_constants

logger = logging.getLogger("coilwork")

# Torch loads this module as its entry point, and then registers `backend`.
allow_registering_again("coilwork")
free_compile_lock_in_children()


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph.

    Raises:
        OptionError: unknown mode or option.
        UnsupportedTorchError: torch is outside the supported range.
        CompileError: with `options={"strict": True}`, when a graph cannot be compiled.
    """
    check_torch_version()
    settings = resolve(mode=mode, options=options)
    announce_mode(settings.mode)
    check_names(settings)
    check_fallback(settings.fallback)
    if settings.cache and settings.redis_url:
        shared_store(
            settings.redis_url
        )  # wrong settings are the user's to know of, not a reason for eager mode
    return compile_dynamo_graph(gm, example_inputs, settings)


def compile_dynamo_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """`backend` with its settings already resolved."""
    if has_nested_inputs(example_inputs):
        return flattened(gm, example_inputs, lambda g, i: compile_dynamo_graph(g, i, options))
    if has_group_inputs(gm, example_inputs):
        return with_named_groups(gm, example_inputs, lambda g, i: compile_dynamo_graph(g, i, options))
    if has_opaque_inputs(gm, example_inputs):
        left = left_to_eager(gm, example_inputs, strict=options.strict or options.batch_invariant)
        return watched_in_eager(left, options, "a captured graph")
    restore_scaled_products(gm)
    if has_refused_types(gm):
        # not as a call of the module, which would print where an error is raised
        return gm.forward
    as_captured = in_forward_mode(gm, only_compiled=options.batch_invariant)
    if as_captured is not None:
        return watched_in_eager(as_captured, options, "a captured graph")
    lowering = lowering_options(options, options.fallback)
    announce_unkeyed(options)
    captured, results = copy_of(gm), captured_results(gm)
    creating = with_created_views(gm)
    sharing = with_shared_memory(gm, example_inputs, captured)
    squeezing, assertions = copy_for_squeezed_sizes(gm), Assertions()
    taken = TakenSizes(gm)
    trial = EagerTrial(captured, example_inputs)
    inputs, giving = give_expanded_storages(gm, example_inputs, captured)
    _mend_captured(gm)
    as_captured = _uncompiled_calls(gm, captured, example_inputs, trial, options)
    if as_captured is not None:
        return as_captured
    guards: list[AddedGuard] = []
    objects: list[ResultObject | None] = []
    try:
        log = list(rewrite_captured(gm, inputs, options))
    # A graph can do without rewrites of ours.
    except Exception as error:
        if options.strict or options.rewrites or is_told(error) or set(NAMES) <= set(options.skip_rewrites):
            raise
        warn_of_rewrites(error)
        return compile_dynamo_graph(copy_of(captured), example_inputs, replace(options, skip_rewrites=NAMES))
    compiler = partial(
        compile_with_aot_autograd,
        forward=taken.noting(
            assertions.noting(
                partial(
                    _compile_forward,
                    options=options,
                    log=log,
                    guards=guards,
                    results=results,
                    objects=objects,
                    is_refused=trial.refuses_training,
                )
            )
        ),
        backward=partial(_compile, role="backward", options=options, log=log, guards=guards),
        inference=taken.noting(
            assertions.noting(
                partial(
                    _compile_inference,
                    options=options,
                    log=log,
                    guards=guards,
                    results=results,
                    is_refused=trial.refuses,
                )
            )
        ),
        decompositions=watched_decompositions(decompositions(lowering), guards.append),
        partition=partial(_partition, options=options, log=log, guards=guards, objects=objects),
    )
    try:
        with collector_paused():
            compiled = giving(given_storages(gm, inputs, compiler))
    # Whatever torch's tracing raises is not the user's fault: eager runs the program, or says better what is wrong with it.
    except Exception as error:
        if isinstance(error, RefusedCallError) or not is_told(error):
            if trial.refuses():
                restore_shapes(captured, example_inputs)
                return run_refused(captured, error, strict=options.strict or options.batch_invariant)
            if trial.refuses_gradients():
                logger.info("a graph runs in eager mode, which refuses its gradient: %s", describe(error))
                forward: Callable[..., Any] = captured.forward
                return forward
        if options.strict or options.batch_invariant or is_told(error):
            raise
        return watched_in_eager(run_as_captured(captured, error), options, "a captured graph")
    compiled = creating(sharing(taken.around(with_squeezed_sizes(compiled, squeezing, assertions))))
    passes = [name_of(one) for one in (*options.joint_passes, *options.passes)]
    if not options.check or not (log or passes):
        return compiled
    return with_captured_check(
        compiled, captured, fired=log, passes=passes, same_numbers=not draws_its_own(options, example_inputs)
    )


def _mend_captured(gm: torch.fx.GraphModule) -> None:
    """Rewrite Dynamo's graph, in place, where torch's tracing would make of it what eager does not."""
    put_told_checks_first(gm)
    write_collectives_out(gm)
    put_in_place(gm)
    read_indices(gm)
    broadcast_selections(gm)
    check_values(gm)
    fill_what_is_expanded(gm)
    write_to_what_is_expanded(gm)
    write_out_label_margins(gm)
    keep_resizing(gm)


def _uncompiled_calls(
    gm: torch.fx.GraphModule,
    captured: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    trial: EagerTrial,
    options: CompileOptions,
) -> Callable[..., Any] | None:
    """What runs the graph in eager mode, if eager refuses what tracing takes, or writes that tracing gets wrong.

    Raises:
        CompileError: in the latter case, with `strict`.
    """
    if (calls_gradients(gm) or writes_other_types(gm) or writes_to_overlaps(gm)) and trial.refuses():
        restore_shapes(captured, example_inputs)
        forward: Callable[..., Any] = captured.forward
        return forward
    calls, error = find_misplaced_writes(gm)
    if error is None:
        calls = writes_to_repeats(gm)
        error = repeated_elements(calls[0]) if calls else None
    if error is None:
        return None
    if options.strict or options.batch_invariant:
        raise error
    names = {node.name for node in calls}
    if names <= {node.name for node in captured.graph.nodes}:
        return compile_around(
            captured, names, error, lambda part, inputs: compile_dynamo_graph(part, inputs, options)
        )
    return watched_in_eager(run_as_captured(captured, error), options, "a captured graph")


def _partition(
    joint: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: CompileOptions,
    log: list[Fired],
    guards: list[AddedGuard],
    objects: list[ResultObject | None],
    **rest: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The halves of a joint graph, after the user's passes.

    `log` gets what rewrites did to it, `guards` what it added, `objects` which results are one tensor.
    """
    watch = GuardWatch(joint)
    objects.extend(result_objects(joint, rest["num_fwd_outputs"]))
    joint = run_passes(joint, options.joint_passes, where="joint")
    rewrites = rewrites_of("aten", options)
    only_compiled = options.strict or options.batch_invariant or bool(options.rewrites)
    halves = partition(
        joint,
        inputs,
        layout=layout_options(options),
        lowering=lowering_options(options, options.fallback),
        rewrites=rewrites,
        record=log.extend,
        on_fault=None if only_compiled else warn_of_partition,
        **rest,
    )
    guards.extend(watch.added())
    return halves


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    role: Role,
    options: CompileOptions,
    log: list[Fired],
    guards: list[AddedGuard],
    shared: Sequence[SharedMemory] = (),
    is_refused: Callable[[], bool] = lambda: False,
) -> BoxedCallable:
    # The backward graph is often compiled at its first call, outside of the pause around AOTAutograd.
    with collector_paused():
        gm = run_passes(gm, options.passes, where=role)
        if role == "backward":
            # what was done to the joint graph is in the report of the forward graph
            return compile_graph(gm, example_inputs, role=role, options=options)
        done, added = tuple(log), tuple(guards)
        return compile_graph(
            gm,
            example_inputs,
            role=role,
            options=options,
            rewrites=done,
            guards=added,
            shared=shared,
            is_refused=is_refused,
        )


def _compile_forward(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions,
    log: list[Fired],
    guards: list[AddedGuard],
    results: Sequence[CapturedResult],
    objects: Sequence[ResultObject | None],
    is_refused: Callable[[], bool],
) -> BoxedCallable:
    """A forward graph, of whose results the joint graph told which are one tensor: `objects`."""
    shared = plan_shared_results(objects, results, result_facts(), recorded=True)
    gm = restore_marks(gm, list_marks(results, result_facts()))
    return _compile(
        gm,
        example_inputs,
        role="forward",
        options=options,
        log=log,
        guards=guards,
        shared=shared,
        is_refused=is_refused,
    )


def _compile_inference(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions,
    log: list[Fired],
    guards: list[AddedGuard],
    results: Sequence[CapturedResult],
    is_refused: Callable[[], bool],
) -> BoxedCallable:
    """An inference graph, of which what frozen parameters decide may be taken out before.

    `results` are those of Dynamo's graph.
    """
    gm = restore_marks(gm, list_marks(results, result_facts()))
    shared = plan_shared_results(result_objects(gm), results, result_facts(), recorded=False)
    gm = run_passes(gm, options.joint_passes, where="inference")
    if options.freezing:
        gm, fired = cleaned_up(gm, rewrites_of("aten", options))
        laid_out, _ = lay_out_convolutions(gm, layout_options(options))
        laid_out, _ = pad_products(laid_out, layout_options(options))
        if packs_weights(options):
            laid_out, _ = pack_weights(laid_out, static_input_positions())
        prepared = split_constants(laid_out, static_input_positions())
        if prepared is not None:
            main = run_passes(prepared.main, options.passes, where="inference")
            inputs = [*(example_inputs[position] for position in prepared.kept), *prepared.values]
            done = (*log, *fired)
            return compile_graph(
                main,
                inputs,
                role="inference",
                options=options,
                rewrites=done,
                guards=tuple(guards),
                layout=DECIDED,
                prepared=prepared,
                shared=shared,
                is_refused=is_refused,
            )
    return _compile(
        gm,
        example_inputs,
        role="inference",
        options=options,
        log=log,
        guards=guards,
        shared=shared,
        is_refused=is_refused,
    )
