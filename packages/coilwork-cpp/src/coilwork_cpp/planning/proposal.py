"""A mapping in the making: a nest of a kernel, the directives so far, and what the next ones rest on."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace

from coilwork_cpp.planning.regions import Region
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import Block, Directive, Invariant, Nest, Vector, find, find_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A nest with its directives so far, and the facts that mapping passes look at.

    Attributes:
        kernel: one piece of the launch.
        region: what the nest does of it.
        nest: its stores or check, and the directives so far.
        common: directives of all nests.
        args: the launch's tensors by name, scratch memory among them.
        loops: what was measured of loops on the machine.
        named: directives that a template names for the nest; no pass decides about such.
    """

    kernel: Kernel
    region: Region
    nest: Nest
    common: tuple[Directive, ...]
    args: MappingOf[str, TensorArg]
    loops: Loops
    named: tuple[Directive, ...] = ()

    def add(self, directives: tuple[Directive, ...]) -> Proposal:
        """The proposal with more directives, but for those of kinds that a template names."""
        kinds = {type(one) for one in self.named}
        more = tuple(one for one in directives if type(one) not in kinds)
        return replace(self, nest=replace(self.nest, directives=(*self.nest.directives, *more)))

    @property
    def vector(self) -> Expr | None:
        """The range that is the vector, if that has been said."""
        found = find(self.nest.directives, Vector)
        if found is None:
            return None
        return next(r.symbol for r in self.kernel.ranges if r.symbol.name == found.range)

    @property
    def tile(self) -> int:
        """Points of the vector in one unit of work."""
        vector = find(self.nest.directives, Vector)
        blocks = find_all(self.nest.directives, Block)
        return next((one.by for one in blocks if vector is not None and one.range == vector.range), 0)

    @property
    def fixed(self) -> bool:
        """True if the order in which reductions combine is promised."""
        return find(self.common, Invariant) is not None
