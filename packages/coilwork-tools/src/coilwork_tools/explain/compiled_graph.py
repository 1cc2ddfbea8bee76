"""A compiled graph: its callable, and the report of what was compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coilwork_frontend.calling_convention.convention import Roles
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

    def change_report(self, **facts: Any) -> CompiledGraph:
        """This with other `facts` in its report."""
        return CompiledGraph(self.call, replace(self.report, **facts), self.direct, self.roles)
