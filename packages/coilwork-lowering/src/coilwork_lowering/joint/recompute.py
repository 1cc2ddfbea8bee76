"""Choose which values the backward recomputes, against the weights of the minimum cut.

The cut weighs bytes by distance from the backward, a guess that favours results over what they were computed
from. A log-softmax is as large as its logits, which a matrix product leaves in memory anyway: saving it costs
a write, and both are alive at once, often at the peak. So values that generated code computes from what is in
memory are recomputed, as are positions and masks made of sizes alone.

Values that the backward compares with their own extreme must be computed once: the gradient of a maximum goes
to the elements equal to it, and two kernels may round the same value differently. If no element were equal,
the gradient would be 0 / 0. `find_compared_extremes` finds them, and the cut may save but not recompute
them.
"""

from __future__ import annotations

import operator as python
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.operators import find_info
from coilwork_lowering.aten_layouts.formats import estimate_bytes, get_size_hints
from coilwork_lowering.extern.quantization import list_quantized_nodes
from coilwork_lowering.facts.fx_nodes import (
    can_read_any_strides,
    get_packet_name,
    is_pointwise,
    is_reduction,
    is_view,
    iterate_readers,
)

# recomputation


# Operands this many times smaller than the result do not count: a row's maximum, a bias.
_SMALL: Final = 16
# What is read instead may be this much larger: logits of positions that have no label.
_SLACK: Final = 1.05
_LONGEST: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A value of the forward that the backward computes again.

    Attributes:
        node: the value.
        chain: what is computed for it, itself included, in reverse order.
        sources: what is read instead.
    """

    node: torch.fx.Node
    chain: tuple[torch.fx.Node, ...]
    sources: tuple[torch.fx.Node, ...]


def recompute_from_memory(
    gm: torch.fx.GraphModule, *, num_fwd_outputs: int, find_model: FindModel = find_like_model
) -> tuple[Recomputed, ...]:
    """Mark values of `gm`, a joint graph, that its backward shall compute again; returns them.

    A value is marked if generated code computes it, point by point, from tensors in memory that are together
    no larger than it is, give or take values of rows, and if no reader needs it in memory. Then nothing more
    is read, less is written, and no product, reduction or random number is computed twice. Its sources are
    saved already, or it shares a row's statistics with them. Marks are those of
    selective checkpointing; a graph where the user decided is left alone.
    """
    if any("recompute" in node.meta for node in gm.graph.nodes):
        return ()
    forward = find_forward_nodes(gm, num_fwd_outputs)
    recomputed: list[Recomputed] = []
    for node in gm.graph.nodes:
        if node in forward and any(
            user not in forward and user.op != "output" for user in iterate_readers(node)
        ):
            candidate = _find_candidate(node, forward, find_model)
            if candidate is not None:
                recomputed.append(candidate)
    for item in recomputed:
        for node in item.chain:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return tuple(recomputed)


def recompute_from_sizes(gm: torch.fx.GraphModule, *, num_fwd_outputs: int) -> tuple[torch.fx.Node, ...]:
    """Mark values made of sizes and numbers alone that the backward of `gm`, a joint graph, reads; returns
    them.

    Examples are positions and causal masks. Saved, they take memory, and facts about them are lost: an
    embedding would sort positions that are in order. Values that the user decided on are left alone.
    """
    forward = find_forward_nodes(gm, num_fwd_outputs)
    made: dict[torch.fx.Node, bool] = {}
    for node in gm.graph.nodes:
        cheap = is_view(node) or (is_pointwise(node) and find_info(get_packet_name(node.target)).is_cheap)
        free = node in forward and cheap and not _changes_device(node) and "recompute" not in node.meta
        if free and all(at in made or _is_size_value(at) for at in node.all_input_nodes):
            made[node] = any(user not in forward and user.op != "output" for user in node.users)
    for node in made if any(made.values()) else ():
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return tuple(node for node, is_read in made.items() if is_read)


def recompute_quantized(gm: torch.fx.GraphModule) -> tuple[torch.fx.Node, ...]:
    """Mark quantised values of `gm`, a joint graph, which its backward makes again from floats, and return
    them.

    Capture shows them as floats, so a backward that got one would not know what it is given. That holds for
    values, too, that the user wants to be saved: the same floats are quantised to the same numbers.
    """
    quantized = list_quantized_nodes(gm.graph)
    for node in quantized:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return quantized


def _changes_device(node: torch.fx.Node) -> bool:
    """Return a copy to a GPU waits for it: it is done once."""
    values = [operand.meta.get("val") for operand in (node, *node.all_input_nodes)]
    return len({value.device for value in values if isinstance(value, torch.Tensor)}) > 1


def _is_size_value(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def find_forward_nodes(gm: torch.fx.GraphModule, num_fwd_outputs: int) -> frozenset[torch.fx.Node]:
    """Return the nodes that the first `num_fwd_outputs` outputs are computed from."""
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, list | tuple)
    open_nodes = [item for item in returned[:num_fwd_outputs] if isinstance(item, torch.fx.Node)]
    forward: set[torch.fx.Node] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node not in forward:
            forward.add(node)
            open_nodes.extend(node.all_input_nodes)
    return frozenset(forward)


def _find_candidate(
    node: torch.fx.Node, forward: frozenset[torch.fx.Node], find_model: FindModel
) -> Recomputed | None:
    size = _count_bytes(node)
    if not size or size < find_model(str(node.meta["val"].device)).memory.recomputed_bytes:
        return None
    if not is_pointwise(node) or _needs_memory(node):
        return None
    chain: dict[torch.fx.Node, None] = {}
    sources: dict[torch.fx.Node, None] = {}
    open_nodes = [node]
    while open_nodes:
        at = open_nodes.pop()
        if at in chain or at in sources:
            continue
        inner = at is node or (at in forward and (is_view(at) or is_pointwise(at)) and not _needs_memory(at))
        if inner and (at is node or _count_bytes(at) * _SMALL > size):
            chain[at] = None
            open_nodes.extend(at.all_input_nodes)
        else:
            sources[at] = None
        if len(chain) > _LONGEST:
            return None
    read = sum(_count_bytes(s) for s in sources if _count_bytes(s) * _SMALL > size)
    if not 0 < read <= _SLACK * size:
        return None
    large = [source for source in sources if _count_bytes(source) * _SMALL > size]
    if not _saves_memory(chain, sources) and not all(_is_saved_anyway(one, forward) for one in large):
        return None
    return Recomputed(node=node, chain=tuple(chain), sources=tuple(sources))


def _saves_memory(chain: dict[torch.fx.Node, None], sources: dict[torch.fx.Node, None]) -> bool:
    """Tell if a small operand is a reduction over the chain itself, as in a softmax.

    Elsewhere the minimum cut mostly sees as much as this pass: distances are short.
    """
    small = any(is_reduction(source) or is_pointwise(source) for source in sources)
    return small and any(is_reduction(user) for link in chain for user in link.users)


def _is_saved_anyway(node: torch.fx.Node, forward: frozenset[torch.fx.Node]) -> bool:
    """Tell if the backward reads `node`, and nothing computes it again from less.

    Of a residual sum behind products the cut does not see that its terms are saved: since one of them is read
    far before the sum, it takes the sum for a value of another kernel.
    """
    readers = [user for user in iterate_readers(node) if user not in forward and user.op != "output"]
    is_made_once = node.op == "call_function" and not is_view(node) and not is_pointwise(node)
    return bool(readers) and (is_made_once or not all(map(can_read_any_strides, readers)))


def _needs_memory(node: torch.fx.Node) -> bool:
    """Tell whether some reader, of the forward or the backward, takes `node` from memory."""
    return any(not can_read_any_strides(user) for user in iterate_readers(node))


def _count_bytes(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or get_size_hints(value) is None:
        return 0
    return estimate_bytes(value)


# compared extremes


def find_compared_extremes(
    gm: torch.fx.GraphModule, forward: frozenset[torch.fx.Node]
) -> tuple[torch.fx.Node, ...]:
    """Values of `forward`, part of the joint graph `gm`, that must not be computed again. Those of which the
    user decided are left alone.
    """
    has_extreme: set[torch.fx.Node] = set()
    extremes: dict[torch.fx.Node, None] = {}
    for node in gm.graph.nodes:
        info = find_info(get_packet_name(node.target))
        if info.is_extreme or (_is_point(node) and any(at in has_extreme for at in node.all_input_nodes)):
            has_extreme.add(node)
        if info.is_comparison and node not in forward and len(node.all_input_nodes) == 2:
            first, other = node.all_input_nodes
            for value, extreme in ((first, other), (other, first)):
                if extreme in has_extreme:
                    extremes.update(dict.fromkeys(_find_compared(value, extreme, forward)))
    return tuple(node for node in extremes if "recompute" not in node.meta and _is_rounded(node))


def keep(nodes: Sequence[torch.fx.Node]) -> None:
    """Mark `nodes`, so that the partitioner does not compute them again."""
    for node in nodes:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _find_compared(
    value: torch.fx.Node, extreme: torch.fx.Node, forward: frozenset[torch.fx.Node]
) -> Iterator[torch.fx.Node]:
    """Yield the value of the forward that `value` is computed from, if `extreme` is an extreme of it."""
    taken_of: set[torch.fx.Node] = set()
    for node in _find_points(extreme):
        if find_info(get_packet_name(node.target)).is_extreme:
            taken_of.update(_find_points(node.all_input_nodes[0]))
    for node in _find_points(value, until=forward):
        if node in forward and is_pointwise(node) and node in taken_of:
            yield node


def _find_points(
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
    return is_view(node) or is_pointwise(node) or node.target is python.getitem


def _is_rounded(node: torch.fx.Node) -> bool:
    """Tell if two kernels that compute it may disagree."""
    computed = [at for at in _find_points(node) if is_pointwise(at) and not is_view(at)]
    infos = [find_info(get_packet_name(at.target)) for at in computed]
    rounding = [info for info in infos if not info.is_exact]
    return len(rounding) > 1 or any(not info.is_rounded_once for info in rounding)
