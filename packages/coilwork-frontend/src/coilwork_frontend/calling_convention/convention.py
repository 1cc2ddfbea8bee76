"""What a compiled ATen graph takes and gives, and what stands around its program so that callers have what
eager gives them.

`open_convention` decides it before anything is compiled. Two tables say what is put around the program
afterwards, in which order,
and why: `PROGRAM_ADAPTERS` what every driver of the program needs, `CALL_ADAPTERS` what its caller sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import torch
from torch import fx

from coilwork_frontend.calling_convention.donated_buffers import donated_inputs
from coilwork_frontend.calling_convention.marked_results import returning_memory, with_marked_results
from coilwork_frontend.calling_convention.negated_inputs import resolve_marked_inputs
from coilwork_frontend.calling_convention.nonstrided_outputs import (
    Composition,
    returning_parts,
    with_composed,
)
from coilwork_frontend.calling_convention.numbers import with_numbers
from coilwork_frontend.calling_convention.operator_call import Call, operator_call
from coilwork_frontend.calling_convention.replayed_views import with_replayed_views
from coilwork_frontend.calling_convention.returned_views import returning_views_of_inputs
from coilwork_frontend.calling_convention.saved_strides import (
    Strides,
    captured_operands,
    lay_out_operands,
    lay_out_results,
    list_free_results,
)
from coilwork_frontend.calling_convention.set_outputs import returning_exchanged, with_exchanged
from coilwork_frontend.calling_convention.shared_results import (
    SharedMemory,
    separate_direct_results,
    with_shared_results,
)
from coilwork_frontend.calling_convention.transformed import with_transforms
from coilwork_frontend.calling_convention.updates import with_aligned_updates
from coilwork_frontend.calling_convention.version_counters import with_counted_versions
from coilwork_frontend.torch_compat.autograd import aliased_inputs, can_report_strides, returned_outputs
from coilwork_frontend.torch_compat.tensors import Marks
from coilwork_ir.passes import Before, Pass, PassTable

Role = Literal["forward", "backward", "inference"]
"""Which part of the user's function an ATen graph is."""
NOTHING_MOVED: Final[Mapping[int, Strides]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What one ATen graph takes and gives.

    Attributes:
        role: which part of the user's function the graph is.
        captured: the graph that AOTAutograd made.
        gm: the same, returning what a program can return; this is compiled.
        donated: positions of inputs whose memory is the graph's to overwrite.
        returned: how many of the first outputs the caller gets, rather than the backward graph; `None`: all.
        free: positions of results whose strides autograd asks for, since nobody else sees them.
        exchanged: positions of inputs that are set to the last outputs of `gm` after the call.
        composition: what is made of the last outputs of `gm` after the call, those of `exchanged` being
            before them.
        marked: positions of outputs that are returned as views with torch's marks, and these.
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
        """What of this changes the program, as text for a cache key."""
        return f"{self.donated}\n{self.returned}\n{self.free}"

    @property
    def marked_results(self) -> int | None:
        """How many of the first results the caller takes with torch's marks: what a backward graph reads it
        may not."""
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

    def operators(self, example_inputs: Sequence[Any], saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """A call that runs the graph's operators one by one, by the boxed convention; results get the strides
        of `saved`."""
        return lay_out_results(self.as_captured(operator_call(self.gm), example_inputs), saved)

    def as_captured(self, call: Call, example_inputs: Sequence[Any]) -> Call:
        """`call`, which runs the captured operators, for inputs as the compiled graph gets them."""
        if self.role != "backward":
            return call
        return lay_out_operands(call, captured_operands(self.gm, example_inputs))


def open_convention(gm: fx.GraphModule, role: Role, *, may_report_strides: bool = False) -> Convention:
    """The convention of `gm`, which AOTAutograd is having compiled.

    With `may_report_strides`, autograd can be told how the forward graph's results lie, so that what it saves
    may lie as it likes.
    """
    captured = gm
    if role != "backward":
        gm = returning_views_of_inputs(gm)
    donated = donated_inputs(gm) if role == "backward" else ()
    gm, exchanged = returning_exchanged(gm)
    gm, composition = returning_parts(gm)
    returned = returned_outputs() if role == "forward" else None
    gm, marked = returning_memory(gm, returned)
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


@dataclass(frozen=True, slots=True)
class Adapted:
    """A call by the boxed convention; `direct`, if there is one, does the same with the inputs one by one."""

    call: Call
    direct: Callable[..., Sequence[Any]] | None = None

    def wrap(self, call: Call) -> Adapted:
        """`call` in the place of this one; where that is another, nothing does the same with the inputs one
        by one."""
        return self if call is self.call else Adapted(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What adapters read besides the call.

    Attributes:
        convention: of the graph.
        example_inputs: fake tensors and sizes, one per placeholder.
        shared: results that share memory, as captured.
        updates: positions of inputs that are overwritten, and that the program takes to be aligned.
        any_unaligned: tells if one of the inputs of a call, at some positions, is not aligned.
    """

    convention: Convention
    example_inputs: Sequence[Any] = ()
    shared: Sequence[SharedMemory] = ()
    updates: tuple[int, ...] = ()
    any_unaligned: Callable[[list[Any], tuple[int, ...]], bool] = lambda *_: False


def _share_results(value: Adapted, outside: Outside) -> Adapted:
    recorded = outside.convention.role == "forward"
    call = with_shared_results(value.call, outside.shared, recorded=recorded)
    return Adapted(call, separate_direct_results(value.direct, outside.shared))


def _count_versions(value: Adapted, outside: Outside) -> Adapted:
    convention = outside.convention
    return value.wrap(with_counted_versions(convention.gm, value.call, convention.returned))


def _take_transforms(value: Adapted, outside: Outside) -> Adapted:
    convention = outside.convention
    if convention.role != "backward":
        return value
    return value.wrap(with_transforms(value.call, convention.operators(outside.example_inputs)))


def _compose_outputs(value: Adapted, outside: Outside) -> Adapted:
    return value.wrap(with_composed(value.call, outside.convention.composition))


def _set_inputs(value: Adapted, outside: Outside) -> Adapted:
    return value.wrap(with_exchanged(value.call, outside.convention.exchanged))


def _mark_results(value: Adapted, outside: Outside) -> Adapted:
    convention = outside.convention
    if not (convention.exchanged or convention.composition is not None or convention.marked):
        return value
    are_gradients = convention.role == "backward"
    return value.wrap(with_marked_results(value.call, convention.marked, are_gradients=are_gradients))


def _replay_views(value: Adapted, outside: Outside) -> Adapted:
    convention = outside.convention
    if convention.role == "backward":
        return value
    return value.wrap(with_replayed_views(convention.captured, value.call, aliased_inputs()))


def _align_updates(value: Adapted, outside: Outside) -> Adapted:
    return value.wrap(with_aligned_updates(value.call, outside.updates, outside.any_unaligned))


def _resolve_inputs(value: Adapted, outside: Outside) -> Adapted:
    return value.wrap(resolve_marked_inputs(outside.convention.gm, value.call))


def _convert_numbers(value: Adapted, outside: Outside) -> Adapted:
    return value.wrap(with_numbers(outside.convention.gm, value.call))


PROGRAM_ADAPTERS: Final[PassTable[Adapted, Outside]] = PassTable(
    passes=(
        Pass(name="align updates", run=_align_updates, why="kernels access what they overwrite in vectors"),
        Pass(name="resolve inputs", run=_resolve_inputs, why="a program reads memory, not torch's marks"),
        Pass(
            name="convert numbers", run=_convert_numbers, why="a program returns tensors and integers alone"
        ),
    ),
    order=(
        Before(
            "align updates",
            "resolve inputs",
            "resolving may put a copy in an input's place, and the program gets that",
        ),
        Before("resolve inputs", "convert numbers", "inputs before results; neither sees the other's"),
    ),
)
"""What every driver of a program leaves to its surroundings, from the inside out."""

CALL_ADAPTERS: Final[PassTable[Adapted, Outside]] = PassTable(
    passes=(
        Pass(name="share results", run=_share_results, why="eager gives several tensors of one memory"),
        Pass(name="count versions", run=_count_versions, why="autograd notices writes to what it saved"),
        Pass(name="take transforms", run=_take_transforms, why="batches of gradients have no memory"),
        Pass(name="compose outputs", run=_compose_outputs, why="sparse tensors lie in no strided memory"),
        Pass(name="set inputs", run=_set_inputs, why="a program keeps none of the memory that it made"),
        Pass(name="mark results", run=_mark_results, why="callers see conjugates and negations as views"),
        Pass(name="replay views", run=_replay_views, why="views of inputs are eager's, whatever their size"),
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
    ),
)
"""What the caller of a compiled graph sees, from the inside out."""


def finish_program(call: Call, outside: Outside) -> Call:
    """`call`, which drives a program, with what the program leaves to its surroundings."""
    return PROGRAM_ADAPTERS.run(Adapted(call), outside).call


def finish_call(call: Call, direct: Callable[..., Sequence[Any]] | None, outside: Outside) -> Adapted:
    """The call of a compiled graph as its caller has it."""
    return CALL_ADAPTERS.run(Adapted(call, direct), outside)
