"""The entry point of `torch.compile(model, backend="coilwork")`, `coilwork.compile` and `coilwork.options`.

`backend` compiles one of Dynamo's graphs; `GraphStages` compiles its ATen graphs, which AOTAutograd makes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork.caches import open_caches
from coilwork.compile_graph import compile_graph, open_traces
from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork.job import DECIDED
from coilwork.stage_settings import (
    can_draw_own_numbers,
    can_pack_weights,
    list_rewrites,
    make_layout_options,
    make_lowering_options,
    make_rewrite_options,
)
from coilwork_frontend.calling_convention.convention import Role, Roles
from coilwork_frontend.calling_convention.parameter_freezing import list_freezable
from coilwork_frontend.calling_convention.result_aliasing import SharedMemory
from coilwork_frontend.capture.dtype_checks import EagerKernels
from coilwork_frontend.capture.eager_fallback import warn_of_partition, warn_of_rewrites
from coilwork_frontend.compile_captured import Halves, compile_captured
from coilwork_frontend.option_sources import UserOptions, check_fallback, check_rewrites, make_compile
from coilwork_frontend.option_table import warn_of_unkeyed
from coilwork_frontend.torch_compat.aot_autograd import BoxedCallable, list_static_positions
from coilwork_frontend.torch_compat.cache_artifacts import register_artifacts
from coilwork_frontend.torch_compat.dynamo import prepare_dynamo
from coilwork_frontend.torch_compat.saved_functions import is_compiling_ahead
from coilwork_frontend.torch_compat.versions import check_torch_version
from coilwork_frontend.user_passes import name_of, run_passes
from coilwork_lowering import AddedGuard, GuardWatch, decompositions, partition, watch_decompositions
from coilwork_lowering.facts.operand_checks import has_valid_types
from coilwork_lowering.facts.scalar_overflow import has_valid_numbers
from coilwork_lowering.registry import RULES
from coilwork_lowering.rewrites import REWRITES, Fired, complete_values
from coilwork_lowering.rewrites.constant_folding import freeze, rewrite_captured
from coilwork_runtime import LayoutError, bind_separate
from coilwork_tools.check_mode.divergence import add_captured_check
from coilwork_tools.check_mode.watch import watch_in_eager
from coilwork_tools.saved_calls import SavedCall
from coilwork_tools.stored_traces import StoredTraces

# ---- Options ----


USER_OPTIONS: Final = UserOptions(
    table=OPTIONS, around=ContextVar("coilwork.options", default=MappingProxyType({}))
)
resolve = USER_OPTIONS.resolve


def options(**settings: object) -> AbstractContextManager[None]:
    """Give `settings` to what this thread compiles inside of the block; a call's own options win.

    A function is compiled at its first call. Functions that are compiled already stay as they are.

    Raises:
        OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
    """
    return USER_OPTIONS.enter(settings, source="coilwork.options")


logger = logging.getLogger("coilwork")

register_artifacts(lambda: open_caches(resolve()))


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
    settings = check_settings(mode, options)
    if settings.cache:
        warn_of_unkeyed(settings)
    make_call = partial(compile_captured, gm, example_inputs)
    if is_compiling_ahead():
        store, changed = open_caches(settings), settings.list_changed()
        return SavedGraph.make(lambda keys: make_call(lambda: GraphStages(settings, keys)), changed, store)
    return make_call(partial(GraphStages, settings))


class SavedGraph(SavedCall):
    """The call of a captured graph, which `save_compiled_function` writes down."""

    @classmethod
    def open_traces(cls, settings: Mapping[str, Any]) -> StoredTraces:
        return open_traces(resolve(options=settings), compiled_for="code")


def check_settings(mode: str | None, options: Mapping[str, object] | None) -> CompileOptions:
    """Return the settings of one compilation, with all errors and warnings that need no graph.

    Raises:
        OptionError: unknown mode or option, operator or rewrite, of which the message names the nearest known
            one; a shared cache without a secret.
        UnsupportedTorchError: torch is outside the supported range.
    """
    check_torch_version()
    settings = resolve(mode=mode, options=options)
    check_fallback(settings.fallback, RULES)
    check_rewrites(settings.skip_rewrites, (one.name for one in (*REWRITES, *settings.rewrites)))
    if settings.cache and settings.redis_url:
        # a wrong setting is an error for the user, not a reason for eager mode
        open_caches(settings)
    return settings


# Torch loads this module as its entry point, and then registers `backend`.
prepare_dynamo("coilwork", backend)
compile: Final = make_compile(backend, USER_OPTIONS.around, partial(check_settings, None))


class GraphStages:
    """Compiles the ATen graphs of one captured graph.

    `log` lists the rewrites of the captured and the joint graph, `guards` the guards on sizes that compiling
    added. The keys of records of traced graphs are appended to `keys`.
    """

    eager_kernels = EagerKernels(accept_types=has_valid_types, accept_numbers=has_valid_numbers)

    def __init__(self, options: CompileOptions, keys: list[str] | None = None) -> None:
        self.options = options
        self.keys = keys
        self.promises = options.promises
        self.log: list[Fired] = []
        self.guards: list[AddedGuard] = []

    @property
    def decompositions(self) -> dict[Any, Callable[..., Any]]:
        table = decompositions(make_lowering_options(self.options, self.options.fallback))
        return watch_decompositions(table, self.guards.append)

    @property
    def traces(self) -> StoredTraces | None:
        if self.options.keeps_traces:
            return open_traces(self.options, self.keys)
        logger.info("a captured graph is traced: %s", self.options.tracing_reason)
        return None

    def rewrite(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        options = self.options
        frozen = list_freezable(example_inputs) if options.freezing else None
        settings = make_rewrite_options(options, on_gpu=_has_gpu_tensors(example_inputs))
        self.log.extend(rewrite_captured(gm, settings, options.rewrites, frozen=frozen))

    def leave_out_rewrites(self, error: Exception) -> GraphStages | None:
        options = self.options
        names = tuple(rewrite.name for rewrite in REWRITES)
        if options.strict or options.rewrites or set(names) <= set(options.skip_rewrites):
            return None
        warn_of_rewrites(error)
        return GraphStages(replace(options, skip_rewrites=names))

    def partition(self, joint: torch.fx.GraphModule, example_inputs: Sequence[Any], **rest: Any) -> Halves:
        """Return the halves of a joint graph, after the user's passes."""
        options = self.options
        watch = GuardWatch(joint)
        joint = run_passes(joint, options.joint_passes, where="joint", complete_values=complete_values)
        only_compiled = self.promises.must_compile or bool(options.rewrites)
        halves = partition(
            joint,
            example_inputs,
            layout=make_layout_options(
                options, saves_captured=bool(options.passes) or options.checks.has_any
            ),
            lowering=make_lowering_options(options, options.fallback),
            rewrites=list_rewrites("aten", options),
            record=self.log.extend,
            on_fault=None if only_compiled else warn_of_partition,
            **rest,
        )
        self.guards.extend(watch.take_added())
        return halves

    def compile(
        self,
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        role: Role,
        shared: Sequence[SharedMemory],
        is_refused: Callable[[], bool],
    ) -> BoxedCallable:
        options = self.options
        run = partial(run_passes, where=role, complete_values=complete_values)
        if role == "backward":
            # rewrites of the joint graph are in the report of the forward graph
            return compile_graph(run(gm, options.passes), example_inputs, role=role, options=options)
        compile_role = partial(compile_graph, role=role, options=options, guards=tuple(self.guards))
        compile_role = partial(compile_role, shared=shared, is_refused=is_refused)
        done = tuple(self.log)
        if role == "inference":
            gm = run(gm, options.joint_passes)
        if role == "inference" and options.freezing:
            rewrites, layout = list_rewrites("aten", options), make_layout_options(options)
            packs = can_pack_weights(options)
            gm, fired, prepared = freeze(gm, list_static_positions(), rewrites, layout, packs=packs)
            if prepared is not None:
                inputs = [*(example_inputs[position] for position in prepared.kept), *prepared.values]
                main, done = run(prepared.main, options.passes), (*done, *fired)
                return compile_role(main, inputs, rewrites=done, layout=DECIDED, prepared=prepared)
        return compile_role(run(gm, options.passes), example_inputs, rewrites=done)

    def apply_roles(self, call: Callable[..., Any], roles: Roles) -> Callable[..., Any]:
        return bind_separate(call, str(roles.convention), roles.functions)

    def is_other_shape(self, error: Exception) -> bool:
        return isinstance(error, LayoutError) and error.code == "operator-shape"

    def watch_in_eager(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return watch_in_eager(call, self.options.checks, "a captured graph")

    def watch(
        self, call: Callable[..., Any], captured: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        passes = [name_of(item) for item in (*self.options.joint_passes, *self.options.passes)]
        if not self.options.check or not (self.log or passes):
            return call
        same_numbers = not can_draw_own_numbers(self.options, _has_gpu_tensors(example_inputs))
        return add_captured_check(call, captured, fired=self.log, passes=passes, same_numbers=same_numbers)


def _has_gpu_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
