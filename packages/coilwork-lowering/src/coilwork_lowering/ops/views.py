"""View operators: index maps, no nodes, except where bits or memory itself are reinterpreted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    maximum,
    minimum,
    provably_le,
    provably_lt,
    provably_nonneg,
)
from coilwork_lowering.building import values
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.size_assertions import lower_assertion
from coilwork_lowering.building.values import (
    Relation,
    TensorValue,
    Value,
    are_same_strides,
    find_layout,
    get_dtype,
)
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.storage_aliasing import find_storage_offset, is_in_input_storage, is_written_into
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule, require_size, wrap_dim


def _reshape(builder: Builder, call: Call) -> Value:
    return values.reshape(call.tensor("self"), call.shape(builder))


def _lower_alias(builder: Builder, call: Call) -> Value:
    return call.tensor("a" if "a" in call.arguments else "self")


def _permute(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    return values.permute(value, [wrap_dim(d, len(value.shape)) for d in call.integers("dims")])


def _transpose(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    rank = len(value.shape)
    if rank == 0:
        return value
    order = list(range(rank))
    a, b = wrap_dim(call.integer("dim0"), rank), wrap_dim(call.integer("dim1"), rank)
    order[a], order[b] = order[b], order[a]
    return values.permute(value, order)


def _t(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    return values.permute(value, range(len(value.shape))[::-1])


def _expand(builder: Builder, call: Call) -> Value:
    return values.expand(call.tensor("self"), call.shape(builder))


def _unsqueeze(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    return values.insert(value, [wrap_dim(call.integer("dim"), len(value.shape) + 1)])


def _squeeze(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    rank = len(value.shape)
    chosen = [wrap_dim(d, rank) for d in call.integers("dim")] if "dim" in call.arguments else range(rank)
    return values.drop(value, [k for k in chosen if k < rank and as_int(value.shape[k]) == 1])


def wrap_start(index: Expr, size: Expr) -> Expr:
    """Return a position counted from the front; the expression itself decides about one of unknown sign."""
    if provably_nonneg(index):
        return index
    if provably_nonneg(-index - 1):
        return index + size
    negative = -maximum(minimum(index, 0), -1)
    return index + negative * size


def slice_bounds(start: Value, end: Value, size: Expr) -> tuple[Expr, Expr]:
    """Return start and end of a slice within `0 .. size`."""
    low = as_expr(0) if start is None else _clamp(wrap_start(require_size(start), size), size)
    high = size if end is None else _clamp(wrap_start(require_size(end), size), size)
    return low, high


def _clamp(index: Expr, size: Expr) -> Expr:
    bounded = index if provably_nonneg(index) else maximum(index, 0)
    return bounded if provably_le(bounded, size) else minimum(bounded, size)


def _slice(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    step = call.integer("step")
    start, end = slice_bounds(call["start"], call["end"], value.shape[dim])
    # torch has a symbol for the size of a part of what is of unknown size
    builder.sizes.equate(call.result.shape[dim], ceildiv(maximum(end - start, 0), step))
    _bind_storage_offset(builder, call, dim, start)
    size = call.shape(builder)[dim]
    placed = _place_empty_part(builder, call, dim, start, size, is_returned=_is_returned(call.node))
    return values.narrow(value, dim, start, size, step) if placed is None else placed


def _place_empty_part(
    builder: Builder, call: Call, dim: int, start: Expr, size: Expr, *, is_returned: bool
) -> TensorValue | None:
    """Return a part without elements behind the only element along `dim`, at eager's place; None for other
    parts.

    A map has no variable for a dimension of one element, and so forgets where such a part begins, which its
    caller sees.
    """
    value = call.tensor("self")
    if not is_returned or as_int(size) != 0 or as_int(value.shape[dim]) != 1 or as_int(start) == 0:
        return None
    value = builder.current(value)
    place = find_layout(value)
    if place is None:
        return None
    strides = builder.sizes.exprs(call.fakes["self"].stride())
    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    return builder.view(value.buffer, shape, strides, place.offset + start * strides[dim])


def _is_returned(node: torch.fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _select(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    chosen = find_selected_position(builder, call, value, dim)
    _bind_storage_offset(builder, call, dim, chosen)
    return values.select(value, dim, chosen)


def _bind_storage_offset(builder: Builder, call: Call, dim: int, start: Expr) -> None:
    """Bind torch's symbol for where a part begins, which exists if its sign is unknown."""
    offset = call.result.storage_offset()
    if isinstance(offset, torch.SymInt):
        fake = call.fakes["self"]
        origin, stride = builder.sizes.exprs((fake.storage_offset(), fake.stride(dim)))
        builder.sizes.equate(offset, origin + start * stride)


def find_selected_position(builder: Builder, call: Call, value: TensorValue, dim: int) -> Expr:
    """Return where `select` reads along `dim`, counted from the front; a position that data decides is
    checked when the program runs.
    """
    size, position = value.shape[dim], require_size(call["index"])
    chosen = wrap_start(position, size)
    if builder.sizes.depends_on_data(position):
        message = f"index out of range: a position from data along dimension {dim} of size {size}"
        # not one more than it, which the largest integer has not
        for condition in (
            Relation(lhs=as_expr(0), relation="le", rhs=chosen),
            Relation(lhs=chosen, relation="lt", rhs=size),
        ):
            lower_assertion(builder, condition, message, call.node)
    return chosen


def _split(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    parts, start = [], as_expr(0)
    # parts are taken out of the list by `getitem`
    is_returned = any(map(_is_returned, call.node.users))
    for fake in call.result:
        size = builder.sizes.exprs(fake.shape)[dim]
        placed = _place_empty_part(builder, call, dim, start, size, is_returned=is_returned)
        parts.append(values.narrow(value, dim, start, size) if placed is None else placed)
        start = start + size
    return tuple(parts)


def _unbind(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    return tuple(values.select(value, dim, as_expr(k)) for k in range(len(call.result)))


def _diagonal(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    rank = len(value.shape)
    first, second = wrap_dim(call.integer("dim1"), rank), wrap_dim(call.integer("dim2"), rank)
    return values.take_diagonal(value, first, second, call.integer("offset"), call.shape(builder)[-1])


def _lower_unfold(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    if not value.shape:
        raise NotLowered("unfold of a 0-dimensional tensor")
    dim = wrap_dim(call.integer("dimension"), len(value.shape))
    count = call.shape(builder)[dim]
    return values.unfold(value, dim, count, call.integer("size"), call.integer("step"))


def _flip(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    flipped = values.flip(value, [wrap_dim(d, len(value.shape)) for d in call.integers("dims")])
    return builder.copy(flipped, strides=call.strides(builder)) if value.shape else builder.copy(value)


def _lower_as_strided(builder: Builder, call: Call) -> Value:
    """Lower `as_strided`. Strides and offset count in the storage, so the tensor must lie in its buffer as in
    eager.
    """
    fake = call.fakes["self"]
    placed = builder.materialize(call.tensor("self"), builder.sizes.exprs(fake.stride()))
    owner, start = builder.buffers.memory(placed.buffer)
    # where the storage begins, relative to the owner's first element
    origin = start - builder.sizes.expr(fake.storage_offset() + find_storage_offset(call.node.args[0]))
    wanted = call["storage_offset"]
    if wanted is not None and is_in_input_storage(call.node.args[0]):
        raise NotLowered("a place in the storage of an input, which may begin elsewhere in the next call")
    offset = start if wanted is None else origin + require_size(wanted)
    if not provably_nonneg(offset):
        raise NotLowered("as_strided reaches memory before the tensor's buffer")
    shape, strides = call.shape(builder), builder.sizes.exprs(call.fake.stride())
    if not all(provably_nonneg(item) for item in (*shape, *strides)):
        raise NotLowered("sizes or strides that may be negative, which eager refuses")
    reach = offset + replace(owner, shape=shape, strides=strides).span
    if not provably_le(reach, owner.span):
        if is_in_input_storage(call.node.args[0]) or provably_lt(owner.span, reach):
            raise NotLowered("as_strided may reach memory behind the tensor's buffer")
        within = Relation(lhs=reach, relation="le", rhs=owner.span)
        lower_assertion(builder, within, "as_strided: out of bounds for the storage", call.node)
    return builder.view(owner, shape, strides, offset)


def _view_dtype(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    target = get_dtype(call.fake.dtype)
    if target is value.dtype:
        return value
    if target.itemsize != value.dtype.itemsize or target.is_opaque or value.dtype.is_opaque:
        raise NotLowered("a view with another element size")
    placed = builder.materialize(value, builder.sizes.exprs(call.fakes["self"].stride()))
    strides = builder.sizes.exprs(call.fake.stride())
    return builder.view(placed.buffer, value.shape, strides, as_expr(0), dtype=target)


def _clone(builder: Builder, call: Call) -> Value:
    value, strides = call.tensor("self"), call.strides(builder)
    if builder.is_unfilled(value.buffer):
        # `is_filled_by_calls` has seen that a call stores into this copy
        return builder.allocate(value.shape, value.dtype, value.device, strides=strides)
    if is_written_into(call.node):
        layout = find_layout(value)
        kept = layout is not None and are_same_strides(value.shape, layout.strides, strides)
        if kept and call.updates.can_skip_copy(call.node, value):
            return value
    return builder.copy(value, strides=strides)


def _contiguous(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    wanted = torch.contiguous_format if call["memory_format"] is None else call["memory_format"]
    if call.fakes["self"].is_contiguous(memory_format=wanted):
        return value
    return _clone(builder, call)


def _make_copy_form(view: Lower) -> Lower:
    """Return the `_copy` form of a view operator: its result in memory of its own."""

    def lower(builder: Builder, call: Call) -> Value:
        result = view(builder, call)
        if isinstance(result, TensorValue):
            return builder.copy(result, strides=call.strides(builder))
        assert isinstance(result, tuple)
        return tuple(
            builder.copy(part, strides=builder.result_strides(fake))
            if isinstance(part, TensorValue)
            else part
            for part, fake in zip(result, call.result, strict=True)
        )

    return lower


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("view reshape _unsafe_view _reshape_alias unflatten.int flatten.using_ints"), _reshape),
    Rule(
        overloads(
            "alias detach lift_fresh lift _conj_physical resolve_conj resolve_neg prims.view_of.default"
        ),
        _lower_alias,
    ),
    Rule(overloads("permute"), _permute),
    Rule(overloads("transpose.int"), _transpose),
    Rule(overloads("t numpy_T"), _t),
    Rule(overloads("expand"), _expand),
    Rule(overloads("unsqueeze"), _unsqueeze),
    Rule(overloads("squeeze squeeze.dim squeeze.dims"), _squeeze),
    Rule(overloads("slice.Tensor"), _slice),
    Rule(overloads("select.int"), _select),
    Rule(
        overloads(
            "split.Tensor split.sizes split_with_sizes chunk unsafe_split.Tensor "
            "unsafe_split_with_sizes unsafe_chunk"
        ),
        _split,
    ),
    Rule(overloads("unbind.int"), _unbind),
    Rule(overloads("diagonal"), _diagonal),
    Rule(overloads("unfold"), _lower_unfold),
    Rule(overloads("flip"), _flip),
    Rule(overloads("as_strided"), _lower_as_strided),
    Rule(overloads("view.dtype"), _view_dtype),
    Rule(overloads("clone lift_fresh_copy"), _clone),
    Rule(overloads("contiguous"), _contiguous),
    Rule(overloads("view_copy alias_copy detach_copy"), _make_copy_form(_reshape)),
    Rule(overloads("permute_copy"), _make_copy_form(_permute)),
    Rule(overloads("transpose_copy.int"), _make_copy_form(_transpose)),
    Rule(overloads("t_copy"), _make_copy_form(_t)),
    Rule(overloads("expand_copy"), _make_copy_form(_expand)),
    Rule(overloads("unsqueeze_copy"), _make_copy_form(_unsqueeze)),
    Rule(overloads("squeeze_copy squeeze_copy.dim squeeze_copy.dims"), _make_copy_form(_squeeze)),
    Rule(overloads("slice_copy.Tensor"), _make_copy_form(_slice)),
    Rule(overloads("select_copy.int"), _make_copy_form(_select)),
    Rule(overloads("split_copy.Tensor split_with_sizes_copy"), _make_copy_form(_split)),
    Rule(overloads("unbind_copy.int"), _make_copy_form(_unbind)),
    Rule(overloads("diagonal_copy"), _make_copy_form(_diagonal)),
    Rule(overloads("unfold_copy"), _make_copy_form(_lower_unfold)),
)
