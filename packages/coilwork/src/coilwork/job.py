"""What is compiled, and how: the facts that every step of one compilation reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.package_options import layout_options
from coilwork.targets import devices_of
from coilwork_frontend.calling_convention.convention import (
    NOTHING_MOVED,
    Convention,
    Outside,
    Role,
    Roles,
    describe_call,
    describe_program,
    open_convention,
)
from coilwork_frontend.calling_convention.frozen_parameters import Prepared
from coilwork_frontend.calling_convention.operator_call import Call, operator_call
from coilwork_frontend.calling_convention.saved_strides import Strides
from coilwork_frontend.calling_convention.shared_results import SharedMemory
from coilwork_frontend.calling_convention.updates import aligned_updates
from coilwork_frontend.graph_key import UnkeyableGraphError, graph_key_text
from coilwork_frontend.torch_compat.operators import convolutions_use_tf32
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.operators import list_operators
from coilwork_lowering import LayoutOptions
from coilwork_lowering.options import Accumulation
from coilwork_lowering.rewrites import Fired
from coilwork_runtime import TensorKinds, bind_roles, collect_kinds
from coilwork_tools.explain.clock import StageClock
from coilwork_tools.explain.trace import Trace, open_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One graph to compile.

    Attributes:
        convention: what the graph takes and gives, and the graph.
        example_inputs: fake tensors and sizes, one per placeholder.
        graph_id: a short name, the same in every process.
        key_text: canonical text for the cache key; `None` if the graph has none and is not cached.
        options: the settings.
        layout: what decides the layout of convolutions and products; the graphs of a training step come with it decided.
        rewrites: what rewrites did before, to the captured and the joint graph.
        left_to_aten: the calls that run as ATen's own, as pairs of an operator and a node of `gm`, of
            operators of which not all do.
        apart: names of calls that share no kernel with others.
        is_rewritten: rewrites and layouts that are still to be chosen may change `gm` first.
        is_refused: tells if eager refuses the call that the graph is compiled for.
        trace: where stage dumps go.
        clock: times of the stages so far.
    """

    convention: Convention
    example_inputs: Sequence[Any]
    graph_id: str
    key_text: str | None
    options: CompileOptions
    layout: LayoutOptions
    trace: Trace
    rewrites: tuple[Fired, ...] = ()
    left_to_aten: tuple[tuple[str, str], ...] = ()
    apart: tuple[str, ...] = ()
    is_rewritten: bool = True
    is_refused: Callable[[], bool] = field(default=lambda: False)
    clock: StageClock = field(default_factory=StageClock)

    @property
    def gm(self) -> torch.fx.GraphModule:
        """The ATen graph that is compiled."""
        return self.convention.gm

    @property
    def role(self) -> Role:
        """Which part of the user's function the graph is."""
        return self.convention.role

    def operators(self, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """A call that runs the graph's operators one by one, by the boxed convention; results get the strides of `saved`."""
        return self.as_captured(operator_call(self.gm), saved)

    def as_captured(self, call: Call, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """`call`, which runs the captured operators, for inputs as the compiled graph gets them; results get the
        strides of `saved`."""
        roles = self.convention.captured_roles(self.example_inputs, saved)
        return bind_roles(call, str(roles), {}).call

    def program_roles(self) -> Roles:
        """The roles of inputs and results around whatever drives the program."""
        return describe_program(self._outside())

    def call_roles(self, shared: Sequence[SharedMemory], prepared: Prepared | None = None) -> Roles:
        """The further roles around that. `shared` are results that share memory, as captured; with `prepared`,
        the graph is its main graph."""
        return describe_call(replace(self._outside(shared), prepared=prepared))

    def finish_program(self, call: Call) -> Call:
        """`call`, which drives the program, with the roles around it."""
        roles = self.program_roles()
        return bind_roles(call, str(roles.convention), roles.functions).call

    def _outside(self, shared: Sequence[SharedMemory] = ()) -> Outside:
        return Outside(
            convention=self.convention,
            operators=self.operators,
            shared=shared,
            updates=self.aligned_updates,
        )

    def kinds(self) -> TensorKinds:
        """The kinds of tensors that the graph takes."""
        resized = any("resize_storage_bytes_" in str(node.target) for node in self.gm.graph.nodes)
        return collect_kinds(self.example_inputs, resized=resized)

    @property
    def strides(self) -> list[tuple[int, ...] | None]:
        """Strides of each static tensor input; `None` leaves what the captured graph says."""
        return [_strides(value) for value in self.example_inputs]

    @property
    def aligned_updates(self) -> tuple[int, ...]:
        """Positions of inputs that are overwritten, and aligned when the program runs."""
        return aligned_updates(self.gm, on_cpu=self.options.triton_on_cpu)

    def constant(self, path: str) -> torch.Tensor:
        """The tensor attribute of the graph at `path`.

        Raises:
            KeyError: there is none.
        """
        value: object = self.gm
        for part in path.split("."):
            value = getattr(value, part, None)
        if not isinstance(value, torch.Tensor):
            raise KeyError(path)
        return value


DECIDED: Final = LayoutOptions(layout="captured", pad_products=False)
"""For graphs whose layouts are decided already."""


def open_job(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    role: Role,
    options: CompileOptions,
    rewrites: tuple[Fired, ...] = (),
    layout: LayoutOptions | None = None,
    reports_strides: bool = False,
) -> Job:
    """The job of compiling `gm`, to which `rewrites` have been done already.

    `layout` decides what is laid out otherwise. Default: what the options say for inference graphs, nothing for those that
    were laid out with their joint graph. With a pass or rewrite that has no uuid, nothing is cached.

    With `reports_strides`, autograd will be told how the forward graph's results lie, so that what it saves may lie as it likes: unless
    passes of the user's change the backward graph, or its operators run beside it to check it.

    Where `torch.use_deterministic_algorithms(True)` holds, floats are not added by atomic operations, whatever `options` say, and
    accelerators leave stores at positions from data to torch, and tensors without contents are torch's, which fills them.
    """
    key_text: str | None
    deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic:
        options = _deterministic(gm, options)
    may_report_strides = reports_strides and not options.passes and not options.checks.has_any
    convention = open_convention(gm, role, may_report_strides=may_report_strides)
    gm = convention.gm
    if layout is None:
        layout = layout_options(options, joins_scheduler=True) if role == "inference" else DECIDED
    try:
        # torch's own kernels read these settings when they run, ours when they are made
        settings = f"{deterministic=}\ntf32={convolutions_use_tf32()}"
        key_text = f"{graph_key_text(gm, example_inputs)}\n{layout}\n{convention.key_text}\n{settings}"
    except UnkeyableGraphError:
        key_text = None
    code = gm.code if key_text is None else key_text
    if options.unkeyed:
        key_text = None
    facts = options.key_text() + code
    graph_id = f"{role}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"
    return Job(
        convention=convention,
        example_inputs=example_inputs,
        graph_id=graph_id,
        key_text=key_text,
        options=options,
        layout=layout,
        trace=open_trace(options.trace, graph_id),
        rewrites=rewrites,
    )


def _deterministic(gm: torch.fx.GraphModule, options: CompileOptions) -> CompileOptions:
    """`options` under `torch.use_deterministic_algorithms(True)`."""
    accumulation: Accumulation = "sorted" if options.accumulation == "atomic" else options.accumulation
    parallel = any(not has_trait(device, PROCESSOR) for device in devices_of(gm))
    # which store wins where positions are equal is left open: torch's kernels sort, or raise
    racing = [f"aten.{name}" for name in list_operators(lambda info: info.has_racing_stores)]
    # `torch.utils.deterministic.fill_uninitialized_memory` gives these contents: ATen's kernels ask when they run
    uninitialized = [f"aten.{name}" for name in list_operators(lambda info: info.is_uninitialized)]
    fallback = (*options.fallback, *uninitialized, *(racing if parallel else ()))
    return replace(options, accumulation=accumulation, fallback=fallback)


def _strides(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return strides if all(type(s) is int for s in strides) else None
