"""One call of a program with the roles of its inputs and results: rows before it, the program, rows after it.

The native interpreter does the same (`executor/native/running/roles.hpp`); a test runs every row by both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime.calling.tensors import (
    align,
    count_apart,
    detach_view,
    lay_out,
    make_view,
    mark,
    resolve,
    set_creation,
    share_count,
    show_memory_of,
)
from coilwork_runtime.manifest.roles import Act, Place, Roles, Row
from coilwork_runtime.torch_compat import is_transformed

Call = Callable[[list[Any]], Sequence[Any]]


@dataclass(slots=True)
class _Values:
    """The values of one call.

    Attributes:
        given: the inputs as they came that rows ask for after the call; others may go while the program runs.
        args: as they are handed on.
        results: as the program gives them, and as they become.
        hidden: what neither is.
        copies: by row, an input and the copy whose contents go back to it.
    """

    given: Mapping[int, Any]
    args: list[Any]
    results: list[Any] = field(default_factory=list)
    hidden: dict[int, Any] = field(default_factory=dict)
    copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def read(self, at: tuple[Place, int]) -> Any:
        place, position = at
        if place is Place.OUT:
            return self.results[position]
        return self.given[position] if place is Place.IN else self.hidden[position]

    def write(self, at: tuple[Place, int], value: Any) -> None:
        place, position = at
        if place is Place.OUT:
            self.results[position] = value
        else:
            self.hidden[position] = value


@dataclass(frozen=True, slots=True)
class InterpretedCall:
    """A call by the boxed convention that applies `roles` around `inner`; `functions` are
    callables by name.
    """

    inner: Call
    roles: Roles
    functions: Mapping[str, Callable[..., Any]]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        rows = self.roles.rows
        for row in reversed(rows[len(rows) - self.roles.before :]):
            args = self.functions[row.name](args)
        values = _Values(given={position: args[position] for position in self.roles.kept}, args=args)
        first = 0
        for number in reversed(range(len(rows))):
            row = rows[number]
            if row.act is Act.INSTEAD and is_transformed():
                values.results = list(self.functions[row.name](args))
                first = number + 1
                break
            if row.value[0] is Place.IN:
                _prepare_input(row, number, values)
        else:
            values.results = list(self.inner(args))
        for number in range(first, len(rows)):
            self._finish(rows[number], number, values)
        if self.roles.gives >= 0:
            del values.results[self.roles.gives :]
        return values.results

    def _finish(self, row: Row, number: int, values: _Values) -> None:
        if row.act is Act.MADE:
            made = self.functions[row.name](*map(values.read, row.takes))
            for at, value in zip(row.gives, made, strict=True):
                values.write(at, value)
        elif row.value[0] is Place.IN:
            _finish_input(row, number, values)
        elif row.act is Act.IS:
            values.write(row.value, values.read(row.source))
        elif row.act not in (Act.INSTEAD, Act.BEFORE):
            values.write(row.value, _RESULTS[row.act](row, values.read(row.value), values))


def _prepare_input(row: Row, number: int, values: _Values) -> None:
    """Replace the input of `row` before the call, as its role says."""
    _, position = row.value
    value = values.args[position]
    if row.act is Act.ALIGNED:
        made = align(value)
    elif row.act is Act.RESOLVED:
        made = resolve(value, bool(row.flags & 2))
    elif row.act is Act.STRIDED:
        made = lay_out(value, row.strides)
    else:
        return
    if made is not value:
        values.args[position] = made
        if row.flags & 1:
            values.copies[number] = value, made


def _finish_input(row: Row, number: int, values: _Values) -> None:
    """Write back to the input of `row`, or set it, after the call."""
    if number in values.copies:
        value, copy = values.copies.pop(number)
        value.copy_(copy)
    elif row.act is Act.SET:
        with torch.no_grad():
            values.read(row.value).set_(values.read(row.source))


def _number_of(row: Row, result: Any, values: _Values) -> bool | float:
    number = result.item() if isinstance(result, torch.Tensor) else result
    return bool(number) if row.flags else float(number)


def _view_of(row: Row, result: Any, values: _Values) -> Any:
    if row.flags and result._is_view():
        return result
    return make_view(result, values.read(row.source), row.name)


def _count_with(row: Row, result: Any, values: _Values) -> Any:
    if row.source[0] is Place.NOWHERE:
        return count_apart(result)
    return share_count(result, values.read(row.source))


_RESULTS: Final[Mapping[Act, Callable[[Row, Any, _Values], Any]]] = MappingProxyType(
    {
        Act.NUMBER: _number_of,
        Act.CONSTANT: lambda row, result, values: row.constant,
        Act.DETACHED: lambda row, result, values: detach_view(result),
        Act.COUNTED: _count_with,
        Act.VIEW: _view_of,
        Act.SHOWN: lambda row, result, values: show_memory_of(
            result, values.read(row.source), bool(row.flags)
        ),
        Act.MARKED: lambda row, result, values: mark(
            result, bool(row.flags & 1), bool(row.flags & 2), bool(row.flags & 4)
        ),
        Act.CREATED: lambda row, result, values: set_creation(result, row.name),
        Act.STRIDED: lambda row, result, values: lay_out(result, row.strides),
    }
)
