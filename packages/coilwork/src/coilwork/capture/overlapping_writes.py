"""Writes to memory that an operand has in common with what is written, or with itself: `x[1:].add_(x[:-1])`, `x.expand(3, 2).add_(1)`.

Eager's kernels refuse most of them, as the result would depend on the order in which elements are computed.
AOTAutograd makes them functional, and gives results. So eager is asked, on copies of the inputs that lie in
memory as they do, if there is one in a captured graph.

Some eager takes: `x.expand(3, 2).fill_(1)`, `x.expand(3, 2)[0].add_(1)`. AOTAutograd adds to `x` what every
copy of an element gained, which is three times the difference, and rounded. What fills a whole tensor fills
`x` here; the other graphs are eager's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, fx

from coilwork.capture.storages import overwritten_values, storage_of
from coilwork.errors import CompileError
from coilwork.torch_compat.nesting import leaves_of
from coilwork.torch_compat.sizes import hint_of

_FILLING: Final = frozenset({"fill_", "zero_", torch.fill_, torch.zero_})
_EXPANDING: Final = frozenset({"expand", "expand_as", "broadcast_to", torch.broadcast_to})


def writes_to_overlaps(gm: fx.GraphModule) -> bool:
    """Tell if a call in Dynamo's graph writes to elements that lie in one place, or where another operand lies in part."""
    return any(_overlaps(node) for node in gm.graph.nodes)


def fill_what_is_expanded(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, fill a tensor in the stead of its expansion."""
    changed = False
    for node in gm.graph.nodes:
        filled = node.args[0] if node.target in _FILLING and node.args else None
        if node.op not in ("call_function", "call_method") or not _repeats(filled):
            continue
        whole = filled
        while isinstance(whole, fx.Node) and _is_expansion(whole):
            whole = whole.args[0]
        if isinstance(whole, fx.Node) and whole is not filled and not _repeats(whole):
            node.replace_all_uses_with(filled)
            node.args = (whole, *node.args[1:])
            changed = True
    if changed:
        gm.recompile()


def repeated_elements(gm: fx.GraphModule) -> CompileError | None:
    """The error for a write to a part of a tensor with repeated elements; None if there is none."""
    for node in gm.graph.nodes:
        if any(_comes_of_repeats(value) for value in overwritten_values(node)):
            return CompileError(
                "repeated-elements",
                f"{node.name} writes to a tensor that has an element several times",
                reason="torch adds up what each copy of the element gains",
                remedy="write to the tensor before it is expanded",
            )
    return None


def _comes_of_repeats(node: object) -> bool:
    """Tell if `node` stands for a view of a tensor with repeated elements, or for one."""
    place = _place(node)
    pending = [node] if isinstance(node, fx.Node) and place is not None else []
    seen: set[fx.Node] = set()
    while pending:
        view = pending.pop()
        storage = storage_of(view)
        # a list of views has no place itself
        if view in seen or (storage is not None and place is not None and storage != place.storage):
            continue
        if _repeats(view):
            return True
        seen.add(view)
        pending += view.all_input_nodes
    return False


def _is_expansion(node: fx.Node) -> bool:
    return node.target in _EXPANDING and bool(node.args) and storage_of(node) == storage_of(node.args[0])


def _repeats(node: object) -> bool:
    place = _place(node)
    return place is not None and place.repeats


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor in its storage: its first element, sizes and strides."""

    storage: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        """Several of its elements are one by a stride of 0, of which alone eager takes notice."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def end(self) -> int:
        """The element behind its last one."""
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.sizes, self.strides, strict=True))


def _overlaps(node: fx.Node) -> bool:
    written = [place for value in overwritten_values(node) if (place := _place(value)) is not None]
    if not written:
        return False
    given = [place for value in leaves_of((node.args, node.kwargs)) if (place := _place(value)) is not None]
    return any(one.repeats or any(_lie_in_part(one, other) for other in given) for one in written)


def _lie_in_part(one: _Place, other: _Place) -> bool:
    """Tell if both have elements between the same ends, and are not the same."""
    return (
        one.storage == other.storage
        and one != other
        and max(one.offset, other.offset) < min(one.end, other.end)
    )


def _place(node: object) -> _Place | None:
    """The place of the tensor that `node` stands for; None of others, and of tensors without elements."""
    storage = storage_of(node)
    value = node.meta["example_value"] if isinstance(node, fx.Node) and storage is not None else None
    if storage is None or not isinstance(value, Tensor):
        return None
    numbers = [_known(one) for one in (value.storage_offset(), *value.shape, *value.stride())]
    known = [one for one in numbers if one is not None]
    if len(known) < len(numbers):
        return None
    sizes, strides = tuple(known[1 : 1 + value.dim()]), tuple(known[1 + value.dim() :])
    return None if 0 in sizes else _Place(storage, known[0], sizes, strides)


def _known(size: int | torch.SymInt) -> int | None:
    return hint_of(size) if isinstance(size, torch.SymInt) else int(size)
