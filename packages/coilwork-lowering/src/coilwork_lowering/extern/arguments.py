"""What a call of an operator is given: its arguments in their order, laid out as the operator takes them, and
what it writes into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    Item,
    ListValue,
    Ref,
    TorchValue,
    contiguous_strides,
)
from coilwork_ir.index import Expr
from coilwork_ir.loops import Mutation
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import NumberValue, Relation, TensorValue, Value, dtype_of, layout_of
from coilwork_lowering.errors import LoweringError
from coilwork_lowering.facts.alias_analysis import undeclared_writes
from coilwork_lowering.rules import Call
from coilwork_lowering.torch_compat.operators import Overload, schema_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The arguments of one call.

    Attributes:
        positional, keywords: as the call has them.
        mutated: the memory that it writes into, each once.
        named: buffers that each argument mentions, by its name.
        sources: buffers by the alias label that the schema gives the argument.
        written: buffers of each argument that is written into, by its name.
    """

    positional: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    mutated: tuple[Mutation, ...]
    named: Mapping[str, Sequence[str]]
    sources: Mapping[str, Sequence[str]]
    written: Mapping[str, Sequence[Buffer]]


def pass_arguments(builder: Builder, call: Call, target: Overload, *, exact: bool) -> Passed:
    """The arguments of `call` for `target`. With `exact`, those that are only read are laid out as eager's
    are.

    Raises:
        LoweringError[argument]: an argument cannot be passed (a graph module, a condition on sizes).
        LoweringError[layout]: an argument that is written into has no memory of the form that the operator
            takes.
    """
    mutated: list[Mutation] = []
    positional: list[Argument] = []
    keywords: list[tuple[str, Argument]] = []
    named: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    written: dict[str, list[Buffer]] = {}
    silently = undeclared_writes(target)
    for formal in schema_of(target).arguments:
        value, fake = call.arguments[formal.name], call.fakes[formal.name]
        writes = formal.name in silently or (formal.alias_info is not None and formal.alias_info.is_write)
        if writes:
            value = _writable(builder, value, call, formal.name)
        dense = torch.Tag.needs_contiguous_strides in target.tags and not writes
        argument, used = _argument(builder, value, fake, call, exact=exact, dense=dense)
        if writes:
            _require_no_copies(builder, value, used, call, formal.name)
            written[formal.name] = used
            _overwrite_owners(builder, used, mutated)
        named[formal.name] = [b.name for b in used]
        if formal.alias_info is not None:
            for label in formal.alias_info.before_set:
                sources.setdefault(label, []).extend(b.name for b in used)
        if formal.kwarg_only:
            if formal.name in call.node.kwargs:
                keywords.append((formal.name, argument))
        else:
            positional.append(argument)
    return Passed(
        positional=tuple(positional),
        keywords=tuple(keywords),
        mutated=tuple(mutated),
        named=named,
        sources=sources,
        written=written,
    )


def _argument(
    builder: Builder, value: Value, fake: Any, call: Call, *, exact: bool, dense: bool
) -> tuple[Argument, list[Buffer]]:
    """`value` as an argument of a call, and the buffers it mentions. Tensors are laid out as eager's if
    `exact`, contiguous if `dense`.
    """
    match value:
        case TensorValue():
            strides: Sequence[Expr] | None = None
            if dense:
                strides = contiguous_strides(value.shape)
            elif exact and isinstance(fake, torch.Tensor):
                strides = builder.sizes.exprs(fake.stride())
            placed = builder.materialize(value, strides)
            return Ref(placed.buffer.name), [placed.buffer]
        case NumberValue(number):
            held = builder.store_number(number).buffer
            return Item(held.name), [held]
        case tuple():
            fakes = fake if isinstance(fake, list | tuple) else [None] * len(value)
            pairs = [
                _argument(builder, v, f, call, exact=exact, dense=dense)
                for v, f in zip(value, fakes, strict=True)
            ]
            return ListValue(tuple(a for a, _ in pairs)), [b for _, used in pairs for b in used]
        case torch.dtype():
            return dtype_of(value), []
        case torch.device():
            return DeviceValue(str(value)), []
        case torch.layout() | torch.memory_format():
            return TorchValue(str(value).removeprefix("torch.")), []
        case None | bool() | int() | float() | complex() | str() | Expr():
            return value, []
    raise _no_argument(builder, value, call)


def _no_argument(builder: Builder, value: object, call: Call) -> LoweringError:
    what = "a condition on sizes" if isinstance(value, Relation) else f"a {type(value).__name__}"
    return LoweringError(
        "argument",
        f"{call.target} has no lowering for these arguments, and {what} cannot be passed to its ATen kernel",
        node=call.node.format_node() or call.node.name,
        origins=builder.origins,
        remedy="keep this call out of the compiled region with torch.compiler.disable",
    )


def _writable(builder: Builder, value: Value, call: Call, name: str) -> Value:
    """A tensor whose own memory is to be written: it must not be replaced by a copy.

    Raises:
        LoweringError[layout]: its elements have no strides there.
    """
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, TensorValue) and layout_of(item) is None:
            raise _not_writable(builder, call, name, "has no strided layout in its memory")
    return value


def _require_no_copies(builder: Builder, value: Value, used: Sequence[Buffer], call: Call, name: str) -> None:
    """Require that the operator writes into the memory of `value` itself, and not into a copy.

    Raises:
        LoweringError[layout]: it had to be laid out otherwise for the operator.
    """
    items = [
        item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, TensorValue)
    ]
    for item, buffer in zip(items, used, strict=True):
        if builder.buffers.root(item.buffer.name) != builder.buffers.root(buffer.name):
            raise _not_writable(builder, call, name, "lies in memory otherwise than in eager mode")


def _not_writable(builder: Builder, call: Call, name: str, reason: str) -> LoweringError:
    """That `call` can't be given the memory which it writes as argument `name`."""
    return LoweringError(
        "layout",
        f"{call.target} writes into argument {name}, which {reason}",
        node=call.node.format_node() or call.node.name,
        origins=builder.origins,
        remedy="write into a tensor that owns its memory",
    )


def _overwrite_owners(builder: Builder, written: Sequence[Buffer], mutated: list[Mutation]) -> None:
    """Add to `mutated` the memory that each of `written` lies in, once: what else is a view of it changes as
    well.
    """
    for buffer in written:
        owner = builder.buffers.owner(buffer)
        if any(mutation.source == owner.name for mutation in mutated):
            continue
        mutated.append(Mutation(output=builder.declare_successor(owner), source=owner.name))
