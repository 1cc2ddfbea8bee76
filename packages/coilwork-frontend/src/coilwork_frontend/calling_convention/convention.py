"""The calling convention of a compiled ATen graph: roles of inputs and results, as two tables.

A program takes and returns plain tensors; a role says what is done to an input before a call, or to a result
after it, so that callers get what eager gives. `open_convention` decides the convention before anything is
compiled. `PROGRAM_ROLES` lists the roles around every driver of the program, `CALL_ROLES` those around that.
Roles are data (`coilwork_ir.calling_convention`); whoever calls the program interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import torch
from torch import fx

from coilwork_frontend.calling_convention.activation_strides import (
    Strides,
    list_captured_strides,
    list_free_results,
    make_stride_input_roles,
    make_stride_result_roles,
)
from coilwork_frontend.calling_convention.input_memory import list_donated_inputs, make_update_roles
from coilwork_frontend.calling_convention.lazy_conjugation import (
    make_mark_roles,
    make_resolve_roles,
    return_unmarked,
)
from coilwork_frontend.calling_convention.operator_call import Call
from coilwork_frontend.calling_convention.output_epilogues import (
    Composition,
    make_composition_roles,
    make_number_roles,
    make_set_roles,
    return_composition_parts,
    return_set_sources,
)
from coilwork_frontend.calling_convention.parameter_freezing import FrozenParameters, Prepared
from coilwork_frontend.calling_convention.result_aliasing import (
    SharedMemory,
    make_sharing_roles,
    make_version_roles,
)
from coilwork_frontend.calling_convention.view_results import replay_views, return_input_views
from coilwork_frontend.torch_compat.aot_autograd import (
    can_report_strides,
    count_returned_outputs,
    list_aliased_inputs,
)
from coilwork_frontend.torch_compat.tensors import Marks
from coilwork_ir.calling_convention import CallingConvention, CallRole, InputRole, Value
from coilwork_ir.calling_convention import Role as ValueRole
from coilwork_ir.passes import Before, Pass, PassTable

Role = Literal["forward", "backward", "inference"]
"""Which part of the user's function an ATen graph is."""
NOTHING_MOVED: Final[Mapping[int, Strides]] = MappingProxyType({})
NO_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """The inputs and results of one ATen graph.

    Attributes:
        role: which part of the user's function the graph is.
        captured: the graph that AOTAutograd made.
        gm: the same, changed to return what a program can return; this is compiled.
        donated: positions of inputs whose memory is the graph's to overwrite.
        returned: how many of the first outputs the caller gets, rather than the backward graph; `None`: all.
        free: positions of results with free strides: only autograd sees them, and is told the strides.
        exchanged: positions of inputs that are set to the last outputs of `gm` after the call.
        composition: makes results of the last outputs of `gm` after the call; those of `exchanged` stand
            before these outputs.
        marked: positions and marks of outputs that are returned as negated or conjugated views.
    """

    role: Role
    captured: fx.GraphModule
    gm: fx.GraphModule
    donated: tuple[int, ...] = ()
    returned: int | None = None
    free: tuple[int, ...] = ()
    exchanged: tuple[int, ...] = ()
    composition: Composition | None = None
    marked: tuple[tuple[int, Marks], ...] = ()

    @property
    def key_text(self) -> str:
        """Return the part that changes the program, as text for a cache key."""
        return f"{self.donated}\n{self.returned}\n{self.free}"

    @property
    def marked_results(self) -> int | None:
        """Return how many of the first results may carry marks, negated or conjugated; None: all.

        Results that a backward graph reads may not.
        """
        if self.exchanged or self.composition is not None:
            return 0
        if self.role != "forward":
            return None
        returned: int = self.returned or 0
        (results,) = self.gm.graph.output_node().args
        assert isinstance(results, list | tuple)
        values = [node.meta.get("val") for node in results[:returned] if isinstance(node, fx.Node)]
        # of what is returned here AOTAutograd makes views, which see a conjugate's real numbers in memory
        is_complex = any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
        return 0 if is_complex else returned

    @property
    def takes(self) -> int:
        """Return the number of inputs."""
        return sum(node.op == "placeholder" for node in self.gm.graph.nodes)

    @property
    def kept_results(self) -> int:
        """Return how many of the first results of `gm` go to AOTAutograd."""
        parts = 0 if self.composition is None else self.composition.parts
        return _count_results(self.gm) - parts - len(self.exchanged)

    def make_captured_roles(
        self, example_inputs: Sequence[Any], saved: Mapping[int, Strides] = NOTHING_MOVED
    ) -> CallingConvention:
        """Return the roles around a call of the captured operators, which takes the compiled graph's inputs.

        Results get the strides of `saved`.
        """
        operands = list_captured_strides(self.gm, example_inputs) if self.role == "backward" else {}
        roles = CallingConvention(takes=self.takes)
        return roles.add(*make_stride_input_roles(operands), *make_stride_result_roles(saved))


def open_convention(gm: fx.GraphModule, role: Role, *, may_report_strides: bool = False) -> Convention:
    """Return the convention of `gm`, which AOTAutograd is having compiled.

    With `may_report_strides`, autograd is told the strides of the forward graph's results, so that the
    strides of saved tensors are free.
    """
    captured = gm
    if role != "backward":
        gm = return_input_views(gm)
    donated = list_donated_inputs(gm) if role == "backward" else ()
    gm, exchanged = return_set_sources(gm)
    gm, composition = return_composition_parts(gm)
    returned = count_returned_outputs() if role == "forward" else None
    gm, marked = return_unmarked(gm, returned)
    if exchanged or composition is not None:
        returned = None
    asked = may_report_strides and returned is not None and can_report_strides()
    return Convention(
        role=role,
        captured=captured,
        gm=gm,
        donated=donated,
        returned=returned,
        free=list_free_results(gm, returned) if asked and returned is not None else (),
        exchanged=exchanged,
        composition=composition,
        marked=marked,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Rows of roles, and the functions that some of them name."""

    convention: CallingConvention
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: NO_FUNCTIONS)

    def add(self, rows: Iterable[ValueRole], **functions: Callable[..., Any]) -> Roles:
        """Return these roles with `rows` around them, and the `functions` that they name."""
        added = self.convention.add(*rows)
        if added is self.convention:
            return self
        return Roles(convention=added, functions=MappingProxyType({**self.functions, **functions}))

    def wrap(self, outer: Roles) -> Roles:
        """Return these roles with `outer` around them."""
        return Roles(
            convention=self.convention.wrap(outer.convention),
            functions=MappingProxyType({**self.functions, **outer.functions}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The facts that roles are made from.

    Attributes:
        convention: that of the graph.
        operators: makes a call of the operators of a backward graph one by one, by the boxed convention.
        shared: results that share memory, as captured.
        updates: positions of inputs that are overwritten and assumed to be aligned.
        prepared: the part computed from frozen parameters, if the graph is the rest.
    """

    convention: Convention
    operators: Callable[[], Call]
    shared: Sequence[SharedMemory] = ()
    updates: tuple[int, ...] = ()
    prepared: Prepared | None = None


def _share_results(roles: Roles, outside: Outside) -> Roles:
    recorded = outside.convention.role == "forward"
    return roles.add(make_sharing_roles(outside.shared, recorded=recorded))


def _count_versions(roles: Roles, outside: Outside) -> Roles:
    convention = outside.convention
    return roles.add(make_version_roles(convention.gm, convention.returned))


def _take_transforms(roles: Roles, outside: Outside) -> Roles:
    if outside.convention.role != "backward":
        return roles
    return roles.add([CallRole(kind="instead", name="operators")], operators=outside.operators())


def _compose_outputs(roles: Roles, outside: Outside) -> Roles:
    composition = outside.convention.composition
    if composition is None:
        return roles
    first = _count_results(outside.convention.gm) - composition.parts
    return roles.add(make_composition_roles(composition, first), composition=composition.tail)


def _set_inputs(roles: Roles, outside: Outside) -> Roles:
    convention = outside.convention
    return roles.add(make_set_roles(convention.exchanged, convention.kept_results))


def _mark_results(roles: Roles, outside: Outside) -> Roles:
    convention = outside.convention
    return roles.add(make_mark_roles(convention.marked, are_gradients=convention.role == "backward"))


def _replay_views(roles: Roles, outside: Outside) -> Roles:
    convention = outside.convention
    replay = (
        None if convention.role == "backward" else replay_views(convention.captured, list_aliased_inputs())
    )
    if replay is None:
        return roles
    row, make_views = replay
    return roles.add([row], views=make_views)


def _keep_frozen(roles: Roles, outside: Outside) -> Roles:
    if outside.prepared is None:
        return roles
    return roles.add([CallRole(kind="before", name="frozen")], frozen=FrozenParameters(outside.prepared))


def _give_away(roles: Roles, outside: Outside) -> Roles:
    return roles.add(
        InputRole(value=Value("in", position), kind="donated") for position in outside.convention.donated
    )


def _align_updates(roles: Roles, outside: Outside) -> Roles:
    return roles.add(make_update_roles(outside.updates))


def _resolve_inputs(roles: Roles, outside: Outside) -> Roles:
    return roles.add(make_resolve_roles(outside.convention.gm))


def _convert_numbers(roles: Roles, outside: Outside) -> Roles:
    return roles.add(make_number_roles(outside.convention.gm))


PROGRAM_ROLES: Final[PassTable[Roles, Outside]] = PassTable(
    passes=(
        Pass(name="give away", run=_give_away, why="the memory of donated buffers serves results"),
        Pass(
            name="align updates",
            run=_align_updates,
            why="kernels use vector accesses on inputs that they overwrite",
        ),
        Pass(name="resolve inputs", run=_resolve_inputs, why="a program reads memory, not torch's bits"),
        Pass(
            name="convert numbers", run=_convert_numbers, why="a program returns tensors and integers alone"
        ),
    ),
    order=(
        Before("give away", "align updates", "an input that is replaced by a copy stays the caller's"),
        Before(
            "align updates",
            "resolve inputs",
            "resolving may put a copy in an input's place, and the program gets that",
        ),
        Before("resolve inputs", "convert numbers", "inputs before results; neither sees the other's"),
    ),
)
"""The roles around a program, whoever drives it, from the program outwards."""

CALL_ROLES: Final[PassTable[Roles, Outside]] = PassTable(
    passes=(
        Pass(name="share results", run=_share_results, why="eager returns several tensors in one memory"),
        Pass(
            name="count versions", run=_count_versions, why="autograd notices writes to tensors that it saved"
        ),
        Pass(name="take transforms", run=_take_transforms, why="batched gradients have no memory"),
        Pass(name="compose outputs", run=_compose_outputs, why="sparse tensors have no strided memory"),
        Pass(name="set inputs", run=_set_inputs, why="a program cannot keep memory for an input"),
        Pass(name="mark results", run=_mark_results, why="callers see conjugates and negations as views"),
        Pass(name="replay views", run=_replay_views, why="views of inputs are eager's, whatever their size"),
        Pass(name="keep frozen", run=_keep_frozen, why="what depends on parameters alone is computed once"),
    ),
    order=(
        Before("share results", "count versions", "versions are counted of the tensors that are returned"),
        Before(
            "count versions",
            "take transforms",
            "one is of forward graphs and one of backward graphs: neither sees the other",
        ),
        Before("take transforms", "compose outputs", "operators return the same parts as the program"),
        Before("compose outputs", "set inputs", "the parts stand behind what inputs are set to"),
        Before("set inputs", "mark results", "marked results are counted among those that are returned"),
        Before("mark results", "replay views", "a view of an input is taken from the marked result"),
        Before("replay views", "keep frozen", "all other rows speak of the inputs of the main graph"),
    ),
)
"""The further roles around a compiled graph, from the inside outwards."""


def describe_program(outside: Outside) -> Roles:
    """Return the roles around the driver of a graph's program."""
    return PROGRAM_ROLES.run(Roles(convention=CallingConvention(takes=outside.convention.takes)), outside)


def describe_call(outside: Outside) -> Roles:
    """Return the roles between the driver of the program and the caller of the compiled graph."""
    convention = outside.convention
    kept = convention.kept_results
    gives = None if kept == _count_results(convention.gm) else kept
    return CALL_ROLES.run(Roles(convention=CallingConvention(takes=convention.takes, gives=gives)), outside)


def _count_results(gm: fx.GraphModule) -> int:
    (results,) = gm.graph.output_node().args
    return len(results) if isinstance(results, list | tuple) else 1
