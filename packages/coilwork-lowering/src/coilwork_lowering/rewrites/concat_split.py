"""Rewrites that cancel concatenations against splits, slices and selections, in either order."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from torch import fx

from coilwork_lowering.facts.fx_nodes import can_read_any_strides
from coilwork_lowering.rewrites.call_normalization import Read
from coilwork_lowering.rewrites.rewrite import (
    Condition,
    Match,
    Pattern,
    Rewrite,
    call,
    either,
    is_like,
    items,
    value,
)

_TENSORS: Final = items("tensors")


def _match_cat(*, shared: bool = False) -> Pattern:
    return call("aten.cat.default", tensors=_TENSORS, dim=value("dim"), shared=shared)


def _match_stack(*, shared: bool = False) -> Pattern:
    return call("aten.stack.default", tensors=_TENSORS, dim=value("dim"), shared=shared)


def _find_whole(match: Match) -> fx.Node | None:
    """Return the tensor of which `cat` puts all parts together, in order."""
    parts = match.captures["tensors"]
    rank = match.result.dim()
    dim = match.captures["dim"] % rank if rank else 0
    sources = {_find_source(part, dim, match) for part in parts}
    if len(sources) != 1 or not all(type(n) is int for n in match.result.shape):
        return None
    source = sources.pop()
    if source is None or not is_like(match.vocabulary.value(source), match.result):
        return None
    ends = accumulate((match.vocabulary.value(part).shape[dim] for part in parts), initial=0)
    starts = [_find_start(part, dim, match) for part in parts]
    return source if starts == list(ends)[:-1] else None


def _find_source(part: fx.Node, dim: int, match: Match) -> fx.Node | None:
    """Return the tensor that `part` is a slice or piece of, along `dim`."""
    made_by = part.args[0] if part.target is operator.getitem else part
    read = match.vocabulary.read(made_by) if isinstance(made_by, fx.Node) else None
    if read is None or read.op not in (*_SPLITS, "aten.slice.Tensor"):
        return None
    if (read.op in _SPLITS) is not (part.target is operator.getitem) or read.arguments.get("step", 1) != 1:
        return None
    source = read.arguments["self"]
    if not isinstance(source, fx.Node) or type(read.arguments["dim"]) is not int:
        return None
    return source if read.arguments["dim"] % max(match.result.dim(), 1) == dim else None


_SPLITS: Final = ("aten.split.Tensor", "aten.split_with_sizes.default")


def _find_start(part: fx.Node, dim: int, match: Match) -> int | None:
    """Return the position in its source at which `part` begins."""
    if part.target is operator.getitem:
        maker, index = part.args
        assert isinstance(maker, fx.Node) and isinstance(index, int)
        starts = match.memo.get((maker, dim))
        if starts is None:
            pieces: Sequence[Any] = match.vocabulary.value(maker)
            sizes = (int(piece.shape[dim]) for piece in pieces)
            starts = match.memo[maker, dim] = tuple(accumulate(sizes, initial=0))
        start: int = starts[index]
        return start
    read = match.vocabulary.read(part)
    assert read is not None
    return _bounds(read, match.vocabulary.value(read.arguments["self"]).shape[dim])[0]


def _bounds(read: Read, size: int) -> tuple[int | None, int | None]:
    """First and last position of a slice, as Python would have them."""
    start, end = read.arguments["start"], read.arguments["end"]
    start, end = 0 if start is None else start, size if end is None else end
    if type(start) is not int or type(end) is not int or type(size) is not int:
        return None, None
    return slice(start, end).indices(size)[:2]


def _replace_by_source(tensors: list[Any], **rest: Any) -> Any:
    first = tensors[0].node
    maker = first.args[0] if first.target is operator.getitem else first
    return type(tensors[0])(maker.args[0], tensors[0].tracer)


CAT_OF_PARTS: Final = Rewrite(
    name="cat-of-parts",
    doc="All slices or pieces of a tensor, put together in order, are that tensor.",
    pattern=_match_cat(),
    replacement=_replace_by_source,
    conditions=(
        Condition(name="parts are all, in order", holds=lambda match: _find_whole(match) is not None),
    ),
)

CAT_OF_ONE: Final = Rewrite(
    name="cat-of-one",
    doc="A `cat` of one tensor is a copy of it.",
    pattern=_match_cat(),
    replacement=lambda tensors, **rest: tensors[0],
    conditions=(Condition(name="one tensor", holds=lambda match: len(match.captures["tensors"]) == 1),),
)


def _list_part_sizes(match: Match) -> list[int] | None:
    """Sizes of what `cat` put together along its dimension, if they are known."""
    sizes = [match.vocabulary.value(item).shape for item in match.captures["tensors"]]
    if not all(len(size) == len(sizes[0]) for size in sizes):
        return None  # `cat` skips empty vectors
    extents = [size[match.captures["dim"]] for size in sizes]
    return [int(n) for n in extents] if all(type(n) is int for n in extents) else None


def _read_dim(match: Match) -> int | None:
    rank = match.vocabulary.value(match.captures["tensors"][0]).dim()
    dim, read = match.captures["dim"], match.captures["read_dim"]
    return dim % rank if rank and type(read) is int and dim % rank == read % rank else None


def _pieces_are_parts(match: Match) -> bool:
    pieces = match.result
    dim, parts = _read_dim(match), _list_part_sizes(match)
    if dim is None or parts is None or len(pieces) != len(parts):
        return False
    return [piece.shape[dim] for piece in pieces] == parts


def _layout_is_free(old: fx.Node, new: fx.Node, match: Match) -> bool:
    """Tell whether readers of `old` may read `new`, which holds the same values: as it is laid out, or
    however it is.
    """
    value = match.vocabulary.value
    if is_like(value(new), value(old)):
        return True
    return is_like(value(new), value(old), strides=False) and all(
        can_read_any_strides(user) for user in old.users
    )


def _pieces_free(match: Match) -> bool:
    tensors = match.captures["tensors"]
    return all(
        user.target is operator.getitem
        and isinstance(user.args[1], int)
        and _layout_is_free(user, tensors[user.args[1]], match)
        for user in match.root.users
    )


SPLIT_OF_CAT: Final = Rewrite(
    name="split-of-cat",
    doc="The pieces of a `cat` are what was put together, when they have the same sizes.",
    pattern=either(
        call(
            "aten.split_with_sizes.default",
            self=_match_cat(shared=True),
            split_sizes=value("sizes"),
            dim=value("read_dim"),
        ),
        call(
            "aten.split.Tensor",
            self=_match_cat(shared=True),
            split_size=value("sizes"),
            dim=value("read_dim"),
        ),
    ),
    replacement=lambda tensors, **rest: tensors,
    conditions=(
        Condition(name="pieces are parts", holds=_pieces_are_parts),
        Condition(name="strides are kept or free", holds=_pieces_free),
    ),
    restrides=True,
)

UNBIND_OF_STACK: Final = Rewrite(
    name="unbind-of-stack",
    doc="What is unbound from a `stack` is what was stacked.",
    pattern=call("aten.unbind.int", self=_match_stack(shared=True), dim=value("read_dim")),
    replacement=lambda tensors, **rest: tensors,
    conditions=(
        Condition(name="along the same dimension", holds=lambda match: _find_stacked_dim(match) is not None),
        Condition(name="strides are kept or free", holds=_pieces_free),
    ),
    restrides=True,
)


def _find_stacked_dim(match: Match) -> int | None:
    rank = match.vocabulary.value(match.captures["tensors"][0]).dim() + 1
    dim, read = match.captures["dim"], match.captures["read_dim"]
    return dim % rank if type(read) is int and dim % rank == read % rank else None


@dataclass(frozen=True, slots=True)
class _Spans:
    """The operands of a `cat` by their first and last position in it, and the positions in all."""

    operands: Mapping[tuple[int, int], int]
    size: int


def _find_spans(match: Match, cat: fx.Node) -> _Spans | None:
    """Return the places in the `cat` that `match` reads, worked out once; `None` if sizes are open."""
    if cat not in match.memo:
        parts = _list_part_sizes(match)
        if parts is None:
            match.memo[cat] = None
        else:
            ends = tuple(accumulate(parts, initial=0))
            operands = {(ends[k], ends[k + 1]): k for k, size in enumerate(parts) if size}
            match.memo[cat] = _Spans(operands, ends[-1])
    spans: _Spans | None = match.memo[cat]
    return spans


def _find_sliced_operand(match: Match) -> int | None:
    """Return the position of the operand of `cat` that a slice of it is."""
    read = match.vocabulary.read(match.root)
    if read is None or _read_dim(match) is None or match.captures["step"] != 1:
        return None
    spans = _find_spans(match, read.arguments["self"])
    if spans is None:
        return None
    start, end = _bounds(read, spans.size)
    return None if start is None or end is None else spans.operands.get((start, end))


def _slice_free(match: Match) -> bool:
    position = _find_sliced_operand(match)
    return position is not None and _layout_is_free(match.root, match.captures["tensors"][position], match)


def _get_sliced_operand(match: Match) -> fx.Node:
    """Return the tensor that the slice is; the condition saw to it that there is one."""
    position = _find_sliced_operand(match)
    assert position is not None
    operand: fx.Node = match.captures["tensors"][position]
    return operand


SLICE_OF_CAT: Final = Rewrite(
    name="slice-of-cat",
    doc="A slice of a `cat` that is one of its operands.",
    pattern=call(
        "aten.slice.Tensor",
        self=_match_cat(shared=True),
        dim=value("read_dim"),
        start=value("start"),
        end=value("end"),
        step=value("step"),
    ),
    existing=_get_sliced_operand,
    conditions=(Condition(name="slice is a part, strides are kept or free", holds=_slice_free),),
    restrides=True,
)


def _can_select(match: Match) -> bool:
    index, tensors = match.captures["index"], match.captures["tensors"]
    if _find_stacked_dim(match) is None or type(index) is not int:
        return False
    return _layout_is_free(match.root, tensors[index], match)


SELECT_OF_STACK: Final = Rewrite(
    name="select-of-stack",
    doc="What is selected from a `stack` is what was stacked there.",
    pattern=call(
        "aten.select.int", self=_match_stack(shared=True), dim=value("read_dim"), index=value("index")
    ),
    existing=lambda match: match.captures["tensors"][match.captures["index"]],
    conditions=(Condition(name="along the same dimension, strides are kept or free", holds=_can_select),),
    restrides=True,
)


CONCAT_SPLITS: Final = (
    CAT_OF_ONE,
    CAT_OF_PARTS,
    SPLIT_OF_CAT,
    SLICE_OF_CAT,
    UNBIND_OF_STACK,
    SELECT_OF_STACK,
)
