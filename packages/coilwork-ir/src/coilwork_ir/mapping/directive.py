"""The base of directives, and what legality rules look at: the ranges, accesses and values of a kernel by
name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from coilwork_ir.index import Expr, stride_of
from coilwork_ir.index import as_int as number_in
from coilwork_ir.kernels.nodes import Kernel, Range, Store
from coilwork_ir.kernels.rewrite import kernel_roots
from coilwork_ir.mapping.form import print_form
from coilwork_ir.mapping.numbers import Number, Open, values_of
from coilwork_ir.scalar import Contraction, Load, Reduce, Scalar, Scan, Sort, postorder


@dataclass(frozen=True, slots=True)
class Directive:
    """One thing that a mapping says about how a kernel runs.

    A directive is a value; what it may be said of is `why_illegal`. Each class has its text form in
    `TEMPLATE`, whose first word is the directive's keyword, and in the first line of its docstring what it
    means.
    """

    # no `ABC`, of whose classes `isinstance` takes ten times as long: mappings are searched by class
    TEMPLATE: ClassVar[str]
    # its rule looks values up by name, which are names in the text of the whole kernel, not of a nest's part
    # of it
    NAMES_VALUES: ClassVar[bool] = False

    @classmethod
    def keyword(cls) -> str:
        """The word that the directive begins with."""
        return cls.TEMPLATE.split(" ", 1)[0]

    @property
    def text(self) -> str:
        """Its canonical text."""
        return print_form(self.TEMPLATE, self)

    @abstractmethod
    def why_illegal(self, kernel: Kernel, beside: Sequence[Directive]) -> str | None:
        """Why it may not be said of `kernel`, `beside` the directives of its scope, itself among them; None
        if it may.
        """

    @property
    def open_numbers(self) -> tuple[Open, ...]:
        """Its numbers that are not chosen."""
        found: list[Open] = []
        for field in fields(self):
            value = getattr(self, field.name)
            found += [part for part in (value if isinstance(value, tuple) else (value,)) if _is_open(part)]
        return tuple(found)

    def close(self, chosen: dict[str, int]) -> Self:
        """The directive with the numbers that `chosen` names."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                changed: Any = tuple(_choose(part, chosen) for part in value)
            else:
                changed = _choose(value, chosen)
            if changed is not value and changed != value:
                changes[field.name] = changed
        return replace(self, **changes) if changes else self


def _is_open(value: object) -> bool:
    return isinstance(value, Open)


def _choose(value: Any, chosen: dict[str, int]) -> Any:
    return chosen.get(value.name, value) if isinstance(value, Open) else value


# Kernels as rules see them


def ranges_by_name(kernel: Kernel) -> dict[str, Range]:
    """The ranges of `kernel`; of a combined one those of its body."""
    return {r.symbol.name: r for r in body_of(kernel).ranges}


def body_of(kernel: Kernel) -> Kernel:
    """The computation of each member of a combined kernel; any other kernel itself."""
    return kernel if kernel.combined is None else kernel.combined.body


def values_in(kernel: Kernel) -> tuple[Scalar, ...]:
    """Every value of `kernel`, operands first."""
    return tuple(postorder(kernel_roots(body_of(kernel))))


def orders_along(kernel: Kernel, name: str) -> list[Scan | Sort]:
    """The scans and sorts that run along the range `name`."""
    return [v for v in values_in(kernel) if isinstance(v, Scan | Sort) and v.axis.name == name]


def reduces(kernel: Kernel) -> list[Reduce | Contraction]:
    """The reductions and contractions of `kernel`."""
    return [v for v in values_in(kernel) if isinstance(v, Reduce | Contraction)]


def combines(kernel: Kernel) -> bool:
    """True if `kernel` reduces, contracts, scans or sorts, or has a core that does."""
    return body_of(kernel).core is not None or any(
        isinstance(v, Reduce | Contraction | Scan | Sort) for v in values_in(kernel)
    )


def loads_of(kernel: Kernel, arg: str) -> list[Load]:
    """The loads of the argument `arg`."""
    return [v for v in values_in(kernel) if isinstance(v, Load) and v.buffer == arg]


def stores_of(kernel: Kernel, arg: str) -> list[Store]:
    """The stores to the argument `arg`."""
    return [store for store in body_of(kernel).stores if store.buffer == arg]


def is_dense_along(kernel: Kernel, symbol: Expr) -> bool:
    """True if something is accessed at unit stride along `symbol`."""
    places = [v.index[0] for v in values_in(kernel) if isinstance(v, Load)]
    places += [store.index for store in body_of(kernel).stores]
    return any(_step(place, symbol) == 1 for place in places)


def _step(place: Expr, symbol: Expr) -> int | None:
    step = stride_of(place, symbol)
    return None if step is None else number_in(step)


# Reasons that several rules give


def why_no_ranges(
    kernel: Kernel, names: Iterable[str], kinds: Sequence[str] = ("parallel", "walked", "reduction")
) -> str | None:
    """Why `names` are not distinct ranges of `kernel`, each of one of `kinds`; None if they are.

    Where nothing combines along them, reduced ranges are parallel ones: a nest may store what others reduce.
    """
    known = ranges_by_name(kernel)
    if "parallel" in kinds and not combines(kernel):
        kinds = (*kinds, "reduction")
    seen: set[str] = set()
    for name in names:
        entry = known.get(name)
        if entry is None:
            return f"the kernel has no range {name}"
        if entry.kind not in kinds:
            return f"{name} is a {entry.kind} range, not a {' or '.join(kinds)} one"
        if name in seen:
            return f"{name} occurs twice"
        seen.add(name)
    return None


def why_not_positive(number: Number, what: str) -> str | None:
    """Why `number`, called `what`, is none that a directive counts by; None if it is."""
    if not values_of(number):
        return f"{what} has no value to choose"
    return None if min(values_of(number)) >= 1 else f"{what} is {min(values_of(number))}, less than 1"


def why_twice(directive: Directive, names: Iterable[str], beside: Sequence[Directive]) -> str | None:
    """Why another directive of the same class in `beside` already says it of one of the ranges `names`; None
    if none does.
    """
    wanted = set(names)
    for other in beside:
        if type(other) is type(directive) and other != directive:
            for name in getattr(other, "ranges", ()):
                if name in wanted:
                    return f"`{other.text}` has {name} already"
    return None
