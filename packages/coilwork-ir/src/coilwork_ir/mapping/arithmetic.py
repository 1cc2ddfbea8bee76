"""Arithmetic: matrix units, the order of their blocks, how exact functions and products of sums are; and what
may be chosen of open numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel, get_factors
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.mapping.directive import Directive, Number, explain_no_ranges, explain_not_positive, get_body
from coilwork_ir.mapping.stored_matrix import find_stored_matrix
from coilwork_ir.mapping.tiling import Resident, Tile
from coilwork_ir.scalar import find_contractions, list_loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit(Directive):
    """Blocks of a contraction are multiplied by matrix units, or each thread has a square of results in
    registers.
    """

    TEMPLATE: ClassVar[str] = "unit {unit:mma|fma}"

    unit: Literal["mma", "fma"]

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """The kernel contracts, or has a core that does."""
        core = get_body(kernel).core
        contractions = find_contractions(list_kernel_roots(get_body(kernel)))
        if not contractions and core is None:
            return "the kernel is no contraction"
        factors = get_factors(core) if core is not None else tuple(node.left for node in contractions)
        exact = any(factor.dtype.itemsize > 2 for factor in factors)
        return "matrix units do not multiply exactly in f32" if exact and self.unit == "mma" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Directive):
    """The device's copy engine brings blocks of the arguments, factors of contractions, to shared memory."""

    TEMPLATE: ClassVar[str] = "fetch {args:names}"

    args: tuple[str, ...]

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """All that contractions load of each is a matrix in rows of whole vectors."""
        body = get_body(kernel)
        fits: dict[str, bool] = {}
        for node in find_contractions(list_kernel_roots(body)):
            for factor in node.operands:
                for load in list_loads((factor,)):
                    matrix = find_stored_matrix(body, node, factor)
                    fits[load.buffer] = fits.get(load.buffer, True) and matrix is not None
        odd = next((arg for arg in self.args if not fits.get(arg, False)), None)
        return None if odd is None else f"{odd} is no factor that lies in whole vectors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialise(Directive):
    """A program's warps have roles: one brings blocks by the copy engine, and so many groups multiply them,
    each as many warps as `warps` says.

    Groups share the rows of a tile. With `pingpong` each has a tile of its own, so that one multiplies while
    another stores.
    """

    TEMPLATE: ClassVar[str] = "specialise {consumers:whole} consumers [{pingpong:flag}]"

    consumers: int
    pingpong: bool = False

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Programs stay for several tiles of an attention, or of a contraction whose factors all come by the
        copy engine.
        """
        reason = explain_not_positive(self.consumers, "the number of consumers")
        if reason is not None:
            return reason
        if not any(isinstance(d, Resident) for d in directives):
            return "a program has one tile"
        if get_body(kernel).core is not None:
            return None
        contractions = find_contractions(list_kernel_roots(get_body(kernel)))
        if not contractions:
            return "the kernel is no contraction"
        fetched = {arg for d in directives if isinstance(d, Fetch) for arg in d.args}
        factors = [factor for node in contractions for factor in node.operands]
        loaded = [load.buffer for load in list_loads(factors)]
        missing = next((buffer for buffer in loaded if buffer not in fetched), None)
        return None if missing is None else f"threads load {missing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Directive):
    """Programs follow each other in groups of so many rows of blocks, which share what they read in the
    cache.
    """

    TEMPLATE: ClassVar[str] = "order {ranges:names} grouped {by:number}"

    ranges: tuple[str, ...]
    by: Number

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Parallel ranges that are tiled to programs."""
        reason = explain_no_ranges(kernel, self.ranges, ("parallel",)) or explain_not_positive(
            self.by, "the group"
        )
        if reason is not None:
            return reason
        tiled = {name for d in directives if isinstance(d, Tile) for name in d.ranges}
        missing = [name for name in self.ranges if name not in tiled]
        return f"{missing[0]} is not tiled" if missing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions(Directive):
    """Functions come from a vector library, some units in the last place off, or are exact."""

    TEMPLATE: ClassVar[str] = "functions {kind:exact|vector}"

    kind: Literal["exact", "vector"]

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Vector functions only where the numerics are not strict and no order of results is promised."""
        if self.kind == "exact":
            return None
        if kernel.numerics == "strict":
            return "strict numerics allow exact functions alone"
        invariant = [d for d in directives if d.keyword() == "invariant"]
        return "an element's place would decide how it is rounded" if invariant else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Directive):
    """The device's compiler may round `a * b + c` once."""

    TEMPLATE: ClassVar[str] = "contract"

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Fast numerics."""
        return None if kernel.numerics == "fast" else f"{kernel.numerics} numerics round every operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Directive):
    """Choose only open numbers of which the first expression is at most the second."""

    TEMPLATE: ClassVar[str] = "limit {left:expr} at most {right:expr}"

    left: Expr
    right: Expr

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """Both are over open numbers of the mapping."""
        known = {number.name for d in directives for number in d.open_numbers}
        unknown = sorted(
            s.name for s in self.left.free_symbols | self.right.free_symbols if s.name not in known
        )
        return f"{unknown[0]} is no open number" if unknown else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choose(Directive):
    """Choose these open numbers together, in one of the ways that are listed.

    A mapping has one of these for each way.
    """

    TEMPLATE: ClassVar[str] = "choose {names:names} as {values:wholes}"

    names: tuple[str, ...]
    values: tuple[int, ...]

    def why_illegal(self, kernel: Kernel, directives: Sequence[Directive]) -> str | None:
        """A value for each name, of those that the open number may have."""
        if len(self.names) != len(self.values):
            return f"there are {len(self.values)} values for {len(self.names)} numbers"
        known = {number.name: number.values for d in directives for number in d.open_numbers}
        for name, value in zip(self.names, self.values, strict=True):
            if value not in known.get(name, ()):
                return f"{name} is no open number" if name not in known else f"?{name} is never {value}"
        return None

    def allows(self, chosen: Mapping[str, int]) -> bool:
        """Tell if those of its numbers that are `chosen` are so in this way."""
        return all(
            chosen.get(name, value) == value for name, value in zip(self.names, self.values, strict=True)
        )
