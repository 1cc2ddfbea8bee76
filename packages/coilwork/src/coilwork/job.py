"""A job: one ATen graph to compile, with the settings and facts that every stage reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.stage_settings import make_layout_options
from coilwork_frontend.calling_convention.aten_graph import AtenGraph, list_devices
from coilwork_frontend.calling_convention.convention import Role, open_convention
from coilwork_frontend.calling_convention.operator_call import Call
from coilwork_frontend.graph_text import identify_graph
from coilwork_frontend.torch_compat.operators import can_convolve_in_tf32
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.operators import list_undetermined
from coilwork_lowering import LayoutOptions
from coilwork_lowering.options import Accumulation
from coilwork_lowering.rewrites import Fired
from coilwork_runtime import bind_roles
from coilwork_tools.explain.report import StageClock, open_clock
from coilwork_tools.explain.trace_folder import Trace, open_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(AtenGraph):
    """One graph to compile.

    Attributes:
        graph_id: a short name, the same in every process.
        key_text: canonical text for the cache key; `None` if the graph has none and is not cached.
        options: the settings.
        layout: how layouts of convolutions and products are chosen; graphs of a training step come decided.
        rewrites: rewrites that were done to the captured and the joint graph.
        fallback: operators whose calls all run as ATen's own kernels.
        left_to_aten: further calls that do, as pairs of an operator and a node of `gm`.
        apart: names of calls that share no kernel with others.
        is_rewritten: rewrites and layouts may still change `gm`.
        is_refused: tells if eager refuses the call that the graph is compiled for.
        trace: where stage dumps go.
        clock: times of the stages so far.
    """

    graph_id: str
    key_text: str | None
    options: CompileOptions
    layout: LayoutOptions
    trace: Trace
    rewrites: tuple[Fired, ...] = ()
    fallback: tuple[str, ...] = ()
    left_to_aten: tuple[tuple[str, str], ...] = ()
    apart: tuple[str, ...] = ()
    is_rewritten: bool = True
    is_refused: Callable[[], bool] = lambda: False
    clock: StageClock = field(default_factory=StageClock)


DECIDED: Final = LayoutOptions(layout="captured", pad_products=False)
"""The settings for graphs whose layouts are chosen already."""


def open_job(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    role: Role,
    options: CompileOptions,
    rewrites: tuple[Fired, ...] = (),
    layout: LayoutOptions | None = None,
    reports_strides: bool = False,
    is_refused: Callable[[], bool] = lambda: False,
) -> Job:
    """Return the job of compiling `gm`, to which `rewrites` have been done already.

    `layout` says how layouts are chosen. Default: by the options for inference graphs; not at all for graphs
    of a training step, whose layouts were chosen in the joint graph. With a pass or rewrite without uuid,
    nothing is cached.

    With `reports_strides`, autograd is told the strides of the forward graph's results, so that strides of
    saved tensors are free. User passes and checks that run captured operators exclude that.

    Under `torch.use_deterministic_algorithms(True)`, floats are not added atomically. On accelerators, stores
    at positions from data are torch's, and so are uninitialised tensors, which torch fills.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic:
        options = _deterministic(gm, options)
    may_report_strides = reports_strides and not options.passes and not options.checks.has_any
    convention = open_convention(gm, role, may_report_strides=may_report_strides)
    gm = convention.gm
    if layout is None:
        layout = make_layout_options(options) if role == "inference" else DECIDED
    # torch's own kernels read these settings when they run, ours when they are made
    settings = f"{deterministic=}\ntf32={can_convolve_in_tf32()}"
    key_text, code = identify_graph(gm, example_inputs, str(layout), convention.key_text, settings)
    digest = hashlib.sha256((options.key_text() + code).encode()).hexdigest()
    graph_id = f"{role}_{digest[:10]}"
    return Job(
        convention=convention,
        example_inputs=example_inputs,
        bind=_bind,
        aligns_processors=options.triton_on_cpu,
        graph_id=graph_id,
        key_text=None if options.unkeyed_names else key_text,
        options=options,
        layout=layout,
        is_refused=is_refused,
        trace=open_trace(options.trace, graph_id),
        clock=open_clock(graph_id, is_shown=options.progress),
        rewrites=rewrites,
    )


def _bind(call: Call, roles: str, functions: Mapping[str, Callable[..., Any]]) -> Call:
    return bind_roles(call, roles, functions).call


def _deterministic(gm: torch.fx.GraphModule, options: CompileOptions) -> CompileOptions:
    """Return `options` as changed by `torch.use_deterministic_algorithms(True)`."""
    accumulation: Accumulation = "sorted" if options.accumulation == "atomic" else options.accumulation
    is_parallel = any(not has_trait(device, PROCESSOR) for device in list_devices(gm))
    fallback = (*options.fallback, *list_undetermined(is_parallel=is_parallel))
    return replace(options, accumulation=accumulation, fallback=fallback)
