"""One ATen graph as its callers see it: its inputs and results, and the roles around calls of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coilwork_frontend.calling_convention.activation_strides import Strides, find_saved_order
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
from coilwork_frontend.calling_convention.operator_call import Call, make_operator_call
from coilwork_frontend.calling_convention.parameter_freezing import Prepared
from coilwork_frontend.calling_convention.result_aliasing import SharedMemory
from coilwork_frontend.likely_sizes import list_likely_sizes
from coilwork_ir.calling_convention import Boundary
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.operators import find_target_info

BindRoles = Callable[[Call, str, Mapping[str, Callable[..., Any]]], Call]
"""Returns a call with roles around it; the roles are text, with the functions that they name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenGraph:
    """An ATen graph with its calling convention, and the calls and roles that follow from it.

    Attributes:
        convention: the graph, and the roles of its inputs and results.
        example_inputs: fake tensors and sizes, one per placeholder.
        bind: interprets roles.
        aligns_processors: inputs on CPUs that are overwritten are assumed to be aligned, too.
    """

    convention: Convention
    example_inputs: Sequence[Any]
    bind: BindRoles
    aligns_processors: bool = False

    @property
    def gm(self) -> torch.fx.GraphModule:
        """The graph that is compiled."""
        return self.convention.gm

    @property
    def role(self) -> Role:
        """The part of the user's function that the graph is."""
        return self.convention.role

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the graph has tensors on, sorted."""
        return list_devices(self.gm)

    @property
    def is_resized(self) -> bool:
        """True if the graph resizes a tensor's storage."""
        return any("resize_storage_bytes_" in str(node.target) for node in self.gm.graph.nodes)

    @property
    def reads_packed(self) -> bool:
        """True if the graph is given weights that lie in oneDNN's blocks."""
        return any(
            find_target_info(str(node.target)).packed_argument is not None
            for node in self.gm.graph.nodes
            if node.op == "call_function"
        )

    @property
    def strides(self) -> list[tuple[int | torch.SymInt, ...] | None]:
        """Strides of each tensor input of known ones; `None` leaves what the captured graph says.

        Inputs whose sizes are open have the strides that the forward graph gives them.
        """
        inputs = self.gm.graph.find_nodes(op="placeholder")
        return [
            _strides(value, is_open=find_saved_order(node) is not None)
            for node, value in zip(inputs, self.example_inputs, strict=False)
        ]

    @property
    def aligned_updates(self) -> tuple[int, ...]:
        """Positions of inputs that are overwritten, and are aligned when the program runs."""
        return list_aligned_updates(self.gm, on_cpu=self.aligns_processors)

    def operators(self, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """Return a call of the graph's operators one by one, by the boxed convention.

        Results get the strides of `saved`.
        """
        return self.bind_captured(make_operator_call(self.gm), saved)

    def bind_captured(self, call: Call, saved: Mapping[int, Strides] = NOTHING_MOVED) -> Call:
        """Return `call`, which runs the captured operators, adapted to the compiled graph's inputs.

        Results get the strides of `saved`.
        """
        return self.bind(call, str(self.convention.make_captured_roles(self.example_inputs, saved)), {})

    def program_roles(self) -> Roles:
        """Return the roles around the driver of the program."""
        return describe_program(self._make_outside())

    def call_roles(self, shared: Sequence[SharedMemory], prepared: Prepared | None = None) -> Roles:
        """Return the further roles around that.

        `shared` are results that share memory, as captured. With `prepared`, the graph is its main graph.
        """
        return describe_call(replace(self._make_outside(shared), prepared=prepared))

    def finish_program(self, call: Call) -> Call:
        """Return `call`, which drives the program, with the roles around it."""
        roles = self.program_roles()
        return self.bind(call, str(roles.convention), roles.functions)

    def describe_boundary(
        self, graph: Graph, lowered: torch.fx.GraphModule, symbols: Sequence[tuple[Any, object]]
    ) -> Boundary:
        """Return the facts about inputs and results of `graph`, lowered from `lowered`, a rewrite of this
        graph.

        `symbols` are pairs of a size symbol of ours and torch's.
        """
        return Boundary(
            aligned=list_aligned_inputs(graph, lowered, returned=self.convention.returned),
            updated=name_inputs(graph, self.aligned_updates),
            donated=name_inputs(graph, self.convention.donated),
            likely=list_likely_sizes(symbols, lowered),
            marked_results=self.convention.marked_results,
        )

    def constant(self, path: str) -> torch.Tensor:
        """Return the tensor attribute of the graph at `path`.

        Raises:
            KeyError: there is none.
        """
        value: object = self.gm
        for part in path.split("."):
            value = getattr(value, part, None)
        if not isinstance(value, torch.Tensor):
            raise KeyError(path)
        return value

    def _make_outside(self, shared: Sequence[SharedMemory] = ()) -> Outside:
        return Outside(
            convention=self.convention,
            operators=self.operators,
            shared=shared,
            updates=self.aligned_updates,
        )


def list_devices(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Return the devices that a captured graph has tensors on, sorted."""
    values = [node.meta.get("val") for node in gm.graph.nodes]
    devices = {str(value.device) for value in values if isinstance(value, torch.Tensor)}
    return tuple(sorted(devices - {"meta"}))


def _strides(value: object, *, is_open: bool) -> tuple[int | torch.SymInt, ...] | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = value.stride()
    return strides if is_open or all(type(s) is int for s in strides) else None
