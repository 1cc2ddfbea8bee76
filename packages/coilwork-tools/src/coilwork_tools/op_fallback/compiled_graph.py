"""A compiled graph as AOTAutograd calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from coilwork_frontend.calling_convention.aten_graph import AtenGraph
from coilwork_frontend.calling_convention.convention import Roles
from coilwork_frontend.capture.eager_fallback import box_graph, warn_of_graph
from coilwork_runtime import bind_roles
from coilwork_runtime.tensor_kinds import Call
from coilwork_tools.explain.report import CompileReport


@dataclass(eq=False)
class CompiledGraph:
    """A compiled graph, called with one list of inputs, which it empties (AOTAutograd's boxed convention).

    `direct`, if there is one, takes the inputs one by one. `roles` are those around both that are not applied
    yet, if there are such.
    """

    _boxed_call: ClassVar = True

    call: Call
    report: CompileReport
    direct: Callable[..., Sequence[Any]] | None = None
    roles: Roles | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self.call(args)

    def apply_roles(self, outer: Roles) -> CompiledGraph:
        """This with `outer` around it, and with its own roles: all of them are interpreted at once."""
        roles = outer if self.roles is None else self.roles.wrap(outer)
        bound = bind_roles(self.call, str(roles.convention), roles.functions, direct=self.direct)
        return CompiledGraph(bound.call, self.report, bound.direct)


def run_in_eager(graph: AtenGraph, report: CompileReport, error: Exception) -> CompiledGraph:
    """The captured graph as it is, because of `error`, with a warning; `report` is what is known of it."""
    warn_of_graph(error, report.graph_id)
    return CompiledGraph(graph.as_captured(box_graph(graph.gm)), report)
