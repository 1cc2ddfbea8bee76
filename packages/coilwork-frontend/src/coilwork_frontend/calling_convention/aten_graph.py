"""One ATen graph that is compiled, as those see it who call what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coilwork_frontend.calling_convention.activation_strides import Strides
from coilwork_frontend.calling_convention.convention import (
    NOTHING_MOVED,
    Convention,
    Outside,
    Role,
    Roles,
    describe_call,
    describe_program,
)
from coilwork_frontend.calling_convention.input_memory import (
    list_aligned_inputs,
    list_aligned_updates,
    name_inputs,
)
from coilwork_frontend.calling_convention.operator_call import Call, operator_call
from coilwork_frontend.calling_convention.parameter_freezing import Prepared
from coilwork_frontend.calling_convention.result_aliasing import SharedMemory
from coilwork_frontend.likely_sizes import list_likely_sizes
from coilwork_ir.boundary import Boundary
from coilwork_ir.loops.nodes import Graph

BindRoles = Callable[[Call, str, Mapping[str, Callable[..., Any]]], Call]
"""A call with roles around it, given as text with the functions that they name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenGraph:
    """What an ATen graph takes and gives, and the calls and roles that follow from it.

    Attributes:
        convention: what the graph takes and gives, and the graph.
        example_inputs: fake tensors and sizes, one per placeholder.
        bind: interprets roles.
        aligns_processors: inputs on processors that are overwritten are taken to be aligned, too.
    """

    convention: Convention
    example_inputs: Sequence[Any]
    bind: BindRoles
    aligns_processors: bool = False

    @property
    def gm(self) -> torch.fx.GraphModule:
        """The ATen graph that is compiled."""
        return self.convention.gm

    @property
    def role(self) -> Role:
        """Return which part of the user's function the graph is."""
        return self.convention.role

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the graph has tensors on, sorted."""
        return list_devices(self.gm)

    @property
    def is_resized(self) -> bool:
        """True if the graph changes how much memory a tensor has."""
        return any("resize_storage_bytes_" in str(node.target) for node in self.gm.graph.nodes)

    @property
    def strides(self) -> list[tuple[int, ...] | None]:
        """Strides of each static tensor input; `None` leaves what the captured graph says."""
        return [_strides(value) for value in self.example_inputs]

    @property
    def aligned_updates(self) -> tuple[int, ...]:
        """Positions of inputs that are overwritten, and aligned when the program runs."""
        return list_aligned_updates(self.gm, on_cpu=self.aligns_processors)

    def operators(self, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """A call that runs the graph's operators one by one, by the boxed convention; results get the strides
        of `saved`."""
        return self.bind_captured(operator_call(self.gm), saved)

    def bind_captured(self, call: Call, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """`call`, which runs the captured operators, for inputs as the compiled graph gets them; results get
        the strides of `saved`."""
        return self.bind(call, str(self.convention.make_captured_roles(self.example_inputs, saved)), {})

    def program_roles(self) -> Roles:
        """The roles of inputs and results around whatever drives the program."""
        return describe_program(self._outside())

    def call_roles(self, shared: Sequence[SharedMemory], prepared: Prepared | None = None) -> Roles:
        """The further roles around that. `shared` are results that share memory, as captured; with
        `prepared`, the graph is its main graph.
        """
        return describe_call(replace(self._outside(shared), prepared=prepared))

    def finish_program(self, call: Call) -> Call:
        """`call`, which drives the program, with the roles around it."""
        roles = self.program_roles()
        return self.bind(call, str(roles.convention), roles.functions)

    def describe_boundary(
        self, graph: Graph, lowered: torch.fx.GraphModule, symbols: Sequence[tuple[Any, object]]
    ) -> Boundary:
        """Return what is known of the inputs and results of `graph`, the loops of `lowered`, which this graph
        was rewritten to. `symbols` are pairs of a size symbol and torch's.
        """
        return Boundary(
            aligned=list_aligned_inputs(graph, lowered, returned=self.convention.returned),
            updated=name_inputs(graph, self.aligned_updates),
            donated=name_inputs(graph, self.convention.donated),
            likely=list_likely_sizes(symbols, lowered),
            marked_results=self.convention.marked_results,
        )

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

    def _outside(self, shared: Sequence[SharedMemory] = ()) -> Outside:
        return Outside(
            convention=self.convention,
            operators=self.operators,
            shared=shared,
            updates=self.aligned_updates,
        )


def list_devices(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """The devices that a captured graph has tensors on, sorted."""
    values = [node.meta.get("val") for node in gm.graph.nodes]
    devices = {str(value.device) for value in values if isinstance(value, torch.Tensor)}
    return tuple(sorted(devices - {"meta"}))


def _strides(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return strides if all(type(s) is int for s in strides) else None
