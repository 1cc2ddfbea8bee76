"""Find the parts of tensors that a launch writes, and that the captured graph puts back into the tensors.

AOTAutograd makes of a launch that writes into `whole[8:24]` one that returns the new part, and a
`slice_scatter` of that into `whole`. A launch over `whole` as it is, which writes into the part, needs
neither a copy of the part nor the scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx

_ATEN: Final = torch.ops.aten
# Views that show a part, and what puts another part in its place. The values are defaults of both.
_PARTS: Final[Mapping[Any, tuple[Any, tuple[Any, ...]]]] = MappingProxyType(
    {
        _ATEN.slice.Tensor: (_ATEN.slice_scatter.default, (0, None, None, 1)),
        _ATEN.select.int: (_ATEN.select_scatter.default, ()),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """An operand of a launch that is a part of a tensor.

    Attributes:
        whole: the tensor.
        views: from the tensor to the operand.
        replaced: nodes that the new contents make needless, with the number of views between the tensor and
            each: those of the operand, and the tensors into which it is put back.
    """

    whole: fx.Node
    views: tuple[fx.Node, ...]
    replaced: tuple[tuple[fx.Node, int], ...]


def find_written_parts(
    operands: Mapping[str, Any], written: Sequence[str], results: Mapping[str, fx.Node]
) -> dict[str, WrittenPart]:
    """Return the parts among the `written` operands of a launch, by parameter; `results` are the new ones.

    These are parts of a dense tensor, known to the number, which the launch does not read otherwise, and into
    which all of them are put back.
    """
    chains = {name: _list_views(operands[name]) for name in written}
    wholes: dict[fx.Node, list[str]] = {}
    for name, (whole, views) in chains.items():
        if views and name in results and _is_whole_storage(whole) and _is_static(operands[name]):
            wholes.setdefault(whole, []).append(name)
    found: dict[str, WrittenPart] = {}
    for whole, names in wholes.items():
        others = [value for name, value in operands.items() if name not in names]
        if all(_list_views(value)[0] is not whole for value in others if isinstance(value, fx.Node)):
            found.update(_follow(whole, {name: chains[name][1] for name in names}, results))
    return found


def _list_views(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """Return the tensor of which `node` is a part, and the views from there to `node`."""
    views: list[fx.Node] = []
    while node.target in _PARTS and not node.kwargs:
        views.append(node)
        (node, *_) = node.all_input_nodes
    return node, tuple(reversed(views))


def _is_whole_storage(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    offset = value.storage_offset()
    return type(offset) is int and offset == 0 and value.is_contiguous()


def _is_static(node: fx.Node) -> bool:
    value: torch.Tensor = node.meta["val"]
    numbers: tuple[Any, ...] = (*value.shape, *value.stride(), value.storage_offset())
    return all(type(number) is int for number in numbers)


def _follow(
    whole: fx.Node, chains: Mapping[str, tuple[fx.Node, ...]], results: Mapping[str, fx.Node]
) -> dict[str, WrittenPart]:
    """Return the parts of `whole` if all are put back, one after the other, and nobody reads what lies
    between."""
    found: dict[str, WrittenPart] = {}
    current = whole
    while len(found) < len(chains):
        steps = (
            (name, put)
            for name, views in chains.items()
            if name not in found
            for put in _put_back(results[name], views, current)
        )
        name, put = next(steps, ("", ()))
        if not name:
            return {}
        if current is not whole and not _is_read_by(current, {node for node, _ in put}):
            # it holds some of the new parts only
            return {}
        replaced = ((results[name], len(chains[name])), *put)
        found[name] = WrittenPart(whole=whole, views=chains[name], replaced=replaced)
        current = put[-1][0]
    return found


def _is_read_by(node: fx.Node, readers: Set[fx.Node]) -> bool:
    """Tell if nobody but `readers` reads `node` or a part of it."""
    return all(
        user in readers or (user.target in _PARTS and _is_read_by(user, readers)) for user in node.users
    )


def _put_back(
    part: fx.Node, views: tuple[fx.Node, ...], current: fx.Node
) -> Iterator[tuple[tuple[fx.Node, int], ...]]:
    """Yield the ways in which `part` is put back into `current`: tensors, with how many views each is
    away.
    """
    view = views[-1]
    scatter, defaults = _PARTS[view.target]
    for user in part.users:
        if user.target is not scatter or user.kwargs or user.args[1] is not part:
            continue
        if _fill(user.args[2:], defaults) != _fill(view.args[1:], defaults):
            continue
        into = user.args[0]
        if len(views) == 1 and into is current:
            yield ((user, 0),)
        elif len(views) > 1 and isinstance(into, fx.Node) and _shows(into, views[:-1], current):
            yield from (((user, len(views) - 1), *rest) for rest in _put_back(user, views[:-1], current))


def _fill(given: Sequence[Any], defaults: Sequence[Any]) -> tuple[Any, ...]:
    return (*given, *defaults[len(given) :])


def _shows(node: fx.Node, views: tuple[fx.Node, ...], current: fx.Node) -> bool:
    """Tell if `node` is `current` under `views`."""
    whole, own = _list_views(node)
    if whole is not current or len(own) != len(views):
        return False
    return all(a.target is b.target and a.args[1:] == b.args[1:] for a, b in zip(own, views, strict=True))
