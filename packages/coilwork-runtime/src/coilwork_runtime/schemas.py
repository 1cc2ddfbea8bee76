"""Operator schemas as values: names, types and defaults of parameters, types of results."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from coilwork_runtime.torch_compat import operator_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """The type of a parameter or result.

    `name`: `Tensor`, `int`, `float`, `bool`, `str`, `number`, `Device`, `ScalarType`, `Layout`,
    `MemoryFormat`, `Generator`, …, or `Optional` or `List` of `element`.
    """

    name: str
    element: Type | None = None

    def __str__(self) -> str:
        return self.name if self.element is None else f"{self.name}[{self.element}]"

    def mentions(self, name: str) -> bool:
        """True if it is, or is made of, the type called `name`."""
        return self.name == name or (self.element is not None and self.element.mentions(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter.

    `length`: for a list, the length that a single number given in its place is repeated to, if there is one.
    """

    name: str
    type: Type
    default: Any = None
    has_default: bool = False
    length: int | None = None
    is_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """An operator overload: `aten::mm` and `out`."""

    name: str
    overload: str
    parameters: tuple[Parameter, ...]
    results: tuple[Type, ...]

    @property
    def writes_in_place(self) -> bool:
        """Out variants and operators named `op_` return what they were given, which their C functions leave
        out.
        """
        return any(p.is_out for p in self.parameters) or self.name.endswith("_")


def parse_type(text: str) -> Type:
    """Read a type as torch prints it, e.g. `"List[Optional[Tensor]]"`. A symbolic integer is an
    integer here.
    """
    head, bracket, rest = text.partition("[")
    if bracket and head in ("Optional", "List"):
        return Type(name=head, element=parse_type(rest.removesuffix("]")))
    return Type(name="int" if text == "SymInt" else text)


def find_schema(target: str) -> Schema | None:
    """The schema of `"aten.mm.out"`; `None` if torch has no such operator overload."""
    try:
        return _schema(target)
    except LookupError:
        return None


@functools.cache
def _schema(target: str) -> Schema:
    """As `find_schema`. That there is none is not remembered: a library may register it later.

    Raises:
        LookupError: there is none.
    """
    parts = target.split(".")
    if len(parts) != 3:
        raise LookupError(target)
    namespace, name, overload = parts
    found = operator_schema(namespace, name, overload)
    if found is None:
        raise LookupError(target)
    return Schema(
        name=f"{namespace}::{name}",
        overload=found.overload_name,
        parameters=tuple(
            Parameter(
                name=a.name,
                type=parse_type(str(a.real_type)),
                default=a.default_value if a.has_default_value() else None,
                has_default=a.has_default_value(),
                length=a.N,
                is_out=a.is_out,
            )
            for a in found.arguments
        ),
        results=tuple(parse_type(str(r.real_type)) for r in found.returns),
    )
