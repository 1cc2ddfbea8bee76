"""A driver's call with the roles of its inputs and results, and who interprets them.

The native executor does, once it is loaded, whoever drives the program; else Python does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_runtime.calling import tensors
from coilwork_runtime.calling.interpreting import Call, InterpretedCall
from coilwork_runtime.manifest.roles import Act, At, Roles, Row, parse_roles
from coilwork_runtime.native_build import EXECUTOR
from coilwork_runtime.torch_compat import (
    creation_kind,
    negative_view,
    read_creation,
    transform_facts,
    write_creation,
)

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

    `roles` are text, as `coilwork_ir.roles` writes them; `functions` the callables that they name.

    Raises:
        ValueError: the text is damaged, or speaks of what torch has not.
        KeyError: a function is missing.
    """
    found = _read(roles, functions)
    if found.gives < 0 and all(row.act is Act.DONATED for row in found.rows):
        return Bound(call, direct)
    goes_direct = direct is not None and all(row.act in _DIRECT for row in found.rows)
    native = _in_native(call, found, functions, separate=False)
    if native is not None and (direct is None or direct is call):
        return Bound(native, native if goes_direct else None)
    made = native or InterpretedCall(call, found, functions)
    return Bound(made, bind_separate(direct, roles, functions) if goes_direct and direct else None)


def bind_separate(call: Direct, roles: str, functions: Mapping[str, Callable[..., Any]]) -> Direct:
    """`call`, which takes the inputs one by one, with `roles` around it.

    Raises:
        ValueError, KeyError: as `bind_roles`.
    """
    found = _read(roles, functions)
    if found.gives < 0 and all(row.act is Act.DONATED for row in found.rows):
        return call
    native: Direct | None = _in_native(call, found, functions, separate=True)
    if native is not None:
        return native
    made = InterpretedCall(lambda args: call(*args), found, functions)
    return lambda *args: made([*args])


def _read(text: str, functions: Mapping[str, Callable[..., Any]]) -> Roles:
    roles = parse_roles(text)
    for name in roles.names:
        if name not in functions:
            raise KeyError(name)
    for row in roles.rows:
        if row.act in (Act.VIEW, Act.CREATED) and row.name:
            creation_kind(row.name)
    return roles


def _in_native(
    call: Callable[..., Any], roles: Roles, functions: Mapping[str, Callable[..., Any]], *, separate: bool
) -> Any:
    """The native interpreter of `roles` around `call`; None if the executor is not loaded."""
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
            tensors.align,
            tensors.resolve,
            tensors.lay_out,
            tensors.share_count,
            tensors.make_view,
            tensors.show_memory_of,
            write_creation,
            negative_view,
            *transform_facts(),
        ),
    )


def _encode(row: Row, functions: Mapping[str, Callable[..., Any]]) -> tuple[Any, ...]:
    """The row as `roles.cpp` reads it."""
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
