"""Values that the backward compares with their own extreme are computed once.

The gradient of a maximum goes to the elements that equal it, and is divided by their number. Two kernels may
round the same value differently: on CPUs the logarithm of a vector's element is not always that of a single
number. Computed again, no element might equal what the forward found, and the gradient would be 0 / 0. So the
minimum cut may save such a value, or what it says beside its extreme, a byte per element, but not compute it
anew.
"""

from __future__ import annotations

import operator as python
from collections.abc import Iterator, Sequence

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.generated import is_computed, is_view, operator


def compared_extremes(
    gm: torch.fx.GraphModule, forward: frozenset[torch.fx.Node]
) -> tuple[torch.fx.Node, ...]:
    """Values of `forward`, part of the joint graph `gm`, that must not be computed again. Those of which the
    user decided are left alone.
    """
    has_extreme: set[torch.fx.Node] = set()
    found: dict[torch.fx.Node, None] = {}
    for node in gm.graph.nodes:
        info = find_info(operator(node.target))
        if info.is_extreme or (_is_point(node) and any(at in has_extreme for at in node.all_input_nodes)):
            has_extreme.add(node)
        if info.is_comparison and node not in forward and len(node.all_input_nodes) == 2:
            one, other = node.all_input_nodes
            for value, extreme in ((one, other), (other, one)):
                if extreme in has_extreme:
                    found.update(dict.fromkeys(_find_compared(value, extreme, forward)))
    return tuple(node for node in found if "recompute" not in node.meta and _is_rounded(node))


def keep(nodes: Sequence[torch.fx.Node]) -> None:
    """Mark `nodes`, so that the partitioner does not compute them again."""
    for node in nodes:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _find_compared(
    value: torch.fx.Node, extreme: torch.fx.Node, forward: frozenset[torch.fx.Node]
) -> Iterator[torch.fx.Node]:
    """Return what of the forward `value` is computed from, if `extreme` is an extreme of it."""
    taken_of: set[torch.fx.Node] = set()
    for node in _points_behind(extreme):
        if find_info(operator(node.target)).is_extreme:
            taken_of.update(_points_behind(node.all_input_nodes[0]))
    for node in _points_behind(value, until=forward):
        if node in forward and is_computed(node) and node in taken_of:
            yield node


def _points_behind(
    node: torch.fx.Node, until: frozenset[torch.fx.Node] = frozenset()
) -> Iterator[torch.fx.Node]:
    """`node` and what it is computed from, point by point; not what is behind the first results of `until`,
    views of it aside.
    """
    seen: set[torch.fx.Node] = set()
    pending = [node]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        yield at
        if _is_point(at) and (at not in until or is_view(at)):
            pending.extend(at.all_input_nodes)


def _is_point(node: torch.fx.Node) -> bool:
    return is_view(node) or is_computed(node) or node.target is python.getitem


def _is_rounded(node: torch.fx.Node) -> bool:
    """Tell if two kernels that compute it may disagree."""
    computed = [at for at in _points_behind(node) if is_computed(at) and not is_view(at)]
    infos = [find_info(operator(at.target)) for at in computed]
    rounding = [info for info in infos if not info.is_exact]
    return len(rounding) > 1 or any(not info.is_rounded_once for info in rounding)
