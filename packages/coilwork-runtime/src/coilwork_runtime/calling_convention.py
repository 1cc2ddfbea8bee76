"""The calling convention of a program: the roles of its inputs and results, applied around its call.

Rows before the call replace inputs, rows after it make results. The native executor interprets them once it
is loaded (`executor/native/call/roles.hpp`), else `InterpretedCall` does; a test runs every row by both. The
functions on tensors come first: copies, views, and tensors whose writes are counted together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime.manifest.convention_parser import Act, At, Place, Roles, Row, parse_roles
from coilwork_runtime.native_build import EXECUTOR
from coilwork_runtime.torch_compat import (
    creation_kind,
    get_storage_identity,
    is_alias,
    is_transformed,
    keeps_graph,
    negative_view,
    read_creation,
    record_gradients,
    transform_facts,
    write_creation,
)

ALIGNMENT_BYTES: Final = 16


def align(value: torch.Tensor) -> torch.Tensor:
    """`value`, or a copy if it does not start at a multiple of 16 bytes."""
    return _copy_of(value) if value.data_ptr() % ALIGNMENT_BYTES else value


def resolve(value: Any, is_conjugate: bool) -> Any:
    """`value`, or a copy in whose memory are its numbers; with `is_conjugate`, their conjugates, and it is
    marked so.
    """
    if value is None or not (value.is_neg() or value.is_conj() > is_conjugate):
        return value
    return _copy_of(value.conj()).conj() if is_conjugate else _copy_of(value)


def lay_out(value: Any, strides: tuple[int, ...]) -> Any:
    """`value`, or a copy with these strides; below zero, the order of dimensions: -1 the innermost."""
    if not isinstance(value, torch.Tensor):
        return value
    if any(step < 0 for step in strides):
        strides = _nest(value.shape, strides)
    if value.stride() == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)


def _nest(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of memory without gaps, in which dimensions are nested in `order`."""
    strides, step = [0] * len(shape), 1
    for dimension in sorted(range(len(shape)), key=lambda k: -order[k]):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def detach_view(value: Any) -> Any:
    """`value`, as no view."""
    return value.detach() if value._is_view() else value


def mark(value: torch.Tensor, negated: bool, conjugated: bool, is_gradient: bool) -> torch.Tensor:
    """Return a view of `value` with torch's bits; no view, unless `value` is one or a gradient."""
    marked = negative_view(value) if negated else value
    marked = marked.conj() if conjugated else marked
    if value.is_inference() or not value._is_view():
        return marked if is_gradient else marked.detach()
    # it takes the writes that the view takes
    if type(marked) is torch.Tensor:
        write_creation(marked, read_creation(value))
    return marked


def share_count(value: object, source: object) -> Any:
    """Return a tensor like `value` that counts writes with `source`; `value` itself if they share no
    memory.
    """
    if type(value) is not torch.Tensor or not isinstance(source, torch.Tensor):
        return value
    if get_storage_identity(value) != get_storage_identity(source):
        return value
    # a detached tensor keeps the count, also when it is given other contents
    counted = source.detach()
    if value is not source:
        counted.data = value
    return counted


def show_memory_of(value: Any, source: Any, is_view: bool) -> Any:
    """Return a tensor like `value`, which shows memory of `source`, and like that one of inference mode or
    not.

    It is no view of `source`; a view of something else if `is_view`.
    """
    if value.is_inference() is source.is_inference() or value.dtype != source.dtype:
        return value
    view = source.detach().as_strided(value.shape, value.stride(), value.storage_offset())
    return view if is_view else view.detach()


def count_apart(value: object) -> Any:
    """Return a tensor like `value` and in its memory, whose writes are counted apart; no view."""
    return value.data if type(value) is torch.Tensor else value


def set_creation(value: object, creation: str) -> Any:
    """`value`, a view, as if it had been made in the way of `creation`; of several parts what is no view
    becomes one.
    """
    if type(value) is not torch.Tensor or value.is_inference():
        return value
    kind = creation_kind(creation)
    if not value._is_view():
        if not kind.is_of_parts:
            return value
        value = value.view_as(value)
    write_creation(value, kind.kind)
    return value


def make_view(value: object, base: object, creation: str) -> Any:
    """Return a view of `base` like `value`; `value` itself if they share no memory, or are no plain
    tensors.
    """
    if type(value) is not torch.Tensor or type(base) is not torch.Tensor or value.is_quantized:
        return value
    recorded = torch.is_grad_enabled()
    if value is base:
        view = value[...]  # the quickest of torch's ways
    elif not is_alias(value, base):
        return value
    elif recorded:
        view = _view_at(value, base)
    else:
        # views that were made without recording refuse to be written to once it is on, and so do views of
        # them
        record_gradients(True)
        try:
            view = _view_at(value, base)
        finally:
            record_gradients(False)
        recorded = True
    if not creation or creation_kind(creation).recorded is recorded:
        return view
    return set_creation(view, creation)


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _view_at(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return a view of `base` with the place, type and bits of `value`."""
    view = base if base.dtype == value.dtype else _flatten_storage(base, value.dtype)
    view = view.as_strided(value.shape, value.stride(), value.storage_offset())
    view = view if view.is_conj() == value.is_conj() else view.conj()
    return view if view.is_neg() == value.is_neg() else negative_view(view)


def _flatten_storage(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the storage of `base` as elements of another type."""
    size = base.element_size()
    unit = math.lcm(size, dtype.itemsize)
    count = base.untyped_storage().nbytes() // unit * unit // size
    flat = base.as_strided((count,), (1,), 0)
    # no other type is read through a bit of torch's
    flat = flat.conj() if flat.is_conj() else flat
    flat = negative_view(flat) if flat.is_neg() else flat
    # of complex numbers read as others autograd would know no base
    return (
        torch.view_as_real(flat) if base.is_complex() and dtype == base.dtype.to_real() else flat.view(dtype)
    )


# ---- one call in Python ----


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
    donated: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "donated", list_donated(self.roles))

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
            if self.donated and keeps_graph():
                # a graph that is kept may run again, so the program overwrites copies
                for position in self.donated:
                    args[position] = _copy_of(args[position])
            values.results = list(self.inner(args))
        for number in range(first, len(rows)):
            self._finish(rows[number], number, values)
        if self.roles.gives >= 0:
            del values.results[self.roles.gives :]
        return values.results

    def _finish(self, row: Row, number: int, values: _Values) -> None:
        if row.act is Act.MADE:
            results = self.functions[row.name](*map(values.read, row.takes))
            for at, value in zip(row.gives, results, strict=True):
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
        prepared = align(value)
    elif row.act is Act.RESOLVED:
        prepared = resolve(value, bool(row.flags & 2))
    elif row.act is Act.STRIDED:
        prepared = lay_out(value, row.strides)
    else:
        return
    if prepared is not value:
        values.args[position] = prepared
        if row.flags & 1:
            values.copies[number] = value, prepared


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


# ---- binding ----


Direct = Callable[..., Sequence[Any]]

# What is done with results alone, whatever the mode of gradients in which the call is made.
_DIRECT: Final = frozenset(
    {Act.NUMBER, Act.CONSTANT, Act.DETACHED, Act.COUNTED, Act.VIEW, Act.IS, Act.DONATED}
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A call by the boxed convention; `direct`, if there is one, does the same with the inputs one by one."""

    call: Call
    direct: Direct | None = None


def bind_roles(
    call: Call,
    roles: str,
    functions: Mapping[str, Callable[..., Any]],
    *,
    direct: Direct | None = None,
) -> Bound:
    """`call`, and `direct`, which does the same with the inputs one by one, with `roles` around them.

    `roles` are text, as `coilwork_ir.calling_convention` writes them; `functions` are the callables that they
    name.

    Raises:
        ValueError: the text is damaged, or speaks of what torch has not.
        KeyError: a function is missing.
    """
    rows = _read(roles, functions)
    if rows.gives < 0 and not rows.rows:
        return Bound(call, direct)
    goes_direct = direct is not None and all(row.act in _DIRECT for row in rows.rows)
    native = _bind_natively(call, rows, functions, separate=False)
    if native is not None and (direct is None or direct is call):
        return Bound(native, native if goes_direct else None)
    interpreted = native or InterpretedCall(call, rows, functions)
    return Bound(interpreted, _bind_separate(direct, rows, functions) if goes_direct and direct else None)


def bind_separate(call: Direct, roles: str, functions: Mapping[str, Callable[..., Any]]) -> Direct:
    """`call`, which takes the inputs one by one, with `roles` around it.

    Raises:
        ValueError, KeyError: as `bind_roles`.
    """
    return _bind_separate(call, _read(roles, functions), functions)


def list_donated(roles: Roles) -> tuple[int, ...]:
    """Return the positions of inputs whose memory is the program's."""
    return tuple(row.value[1] for row in roles.rows if row.act is Act.DONATED)


def _bind_separate(call: Direct, rows: Roles, functions: Mapping[str, Callable[..., Any]]) -> Direct:
    if rows.gives < 0 and not rows.rows:
        return call
    native: Direct | None = _bind_natively(call, rows, functions, separate=True)
    if native is not None:
        return native
    interpreted = InterpretedCall(lambda args: call(*args), rows, functions)
    return lambda *args: interpreted([*args])


def _read(text: str, functions: Mapping[str, Callable[..., Any]]) -> Roles:
    roles = parse_roles(text)
    for name in roles.names:
        if name not in functions:
            raise KeyError(name)
    for row in roles.rows:
        if row.act in (Act.VIEW, Act.CREATED) and row.name:
            creation_kind(row.name)
    return roles


def _bind_natively(
    call: Callable[..., Any], roles: Roles, functions: Mapping[str, Callable[..., Any]], *, separate: bool
) -> Any:
    """Return the native interpreter of `roles` around `call`; None if the executor is not loaded."""
    extension = sys.modules.get(EXECUTOR)
    if extension is None:
        return None
    return extension.Roles(
        call,
        separate,
        roles.gives,
        tuple(_encode(row, functions) for row in roles.rows),
        roles.kept,
        (
            torch.Tensor,
            align,
            resolve,
            lay_out,
            share_count,
            make_view,
            show_memory_of,
            write_creation,
            negative_view,
            *transform_facts(),
            keeps_graph,
            _copy_of,
        ),
    )


def _encode(row: Row, functions: Mapping[str, Callable[..., Any]]) -> tuple[Any, ...]:
    """Return the row as `roles.cpp` reads it."""
    extra: Any = None
    recorded, of_parts = -1, False
    match row.act:
        case Act.VIEW | Act.CREATED if row.name:
            creation = creation_kind(row.name)
            extra, of_parts = creation.kind, creation.is_of_parts
            recorded = -1 if creation.recorded is None else int(creation.recorded)
        case Act.STRIDED:
            extra = row.strides
        case Act.CONSTANT:
            extra = row.constant
        case Act.MARKED:
            extra = read_creation
        case Act.MADE | Act.INSTEAD | Act.BEFORE:
            extra = functions[row.name]
    values = (row.act, *row.value, *row.source, row.flags)
    return *map(int, values), extra, recorded, of_parts, _flat(row.takes), _flat(row.gives)


def _flat(places: Sequence[At]) -> tuple[int, ...]:
    return tuple(int(number) for at in places for number in at)
