"""Which values the backward computes again because everything they come from is in memory anyway.

torch's minimum cut weighs a value's bytes by its distance from the backward, a guess that favours results
over what they were computed from. The result of a log-softmax is as large as the logits that it comes from.
The logits are a matrix product and in memory; the result, if nobody saved it, need never be. Saving it costs
a write in the forward, and both tensors are alive at once: of a language model's training, that is often the
peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.operators import find_info
from coilwork_lowering.extern.quantization import list_quantized_nodes
from coilwork_lowering.facts.generated import (
    is_computed,
    is_reduced,
    is_view,
    operator,
    readers_of,
    reads_anywhere,
)
from coilwork_lowering.layout.formats import hinted_bytes, hinted_sizes

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

    A value is marked if generated code computes it, point by point, from tensors that lie in memory already
    and are no larger in all than it is, give or take values of rows; and if neither its readers in the
    forward nor those in the backward need it in memory. So nothing more is read, less is written, and no
    product, reduction or random number is computed twice. Marks are those of selective checkpointing; a graph
    where the user decided is left alone.
    """
    if any("recompute" in node.meta for node in gm.graph.nodes):
        return ()
    forward = forward_of(gm, num_fwd_outputs)
    found: list[Recomputed] = []
    for node in gm.graph.nodes:
        if node in forward and any(user not in forward and user.op != "output" for user in node.users):
            candidate = _candidate(node, forward, find_model)
            if candidate is not None:
                found.append(candidate)
    for item in found:
        for node in item.chain:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return tuple(found)


def recompute_from_sizes(gm: torch.fx.GraphModule, *, num_fwd_outputs: int) -> tuple[torch.fx.Node, ...]:
    """Mark values that `gm`, a joint graph, makes of sizes and numbers alone, and that its backward reads;
    returns these.

    Such are positions and causal masks. Saved, they are memory, and what is known of them is lost: an
    embedding sorts its positions again that were in order all along. Values of which the user decided are
    left alone.
    """
    forward = forward_of(gm, num_fwd_outputs)
    made: dict[torch.fx.Node, bool] = {}
    for node in gm.graph.nodes:
        cheap = is_view(node) or (is_computed(node) and find_info(operator(node.target)).is_cheap)
        free = node in forward and cheap and not _changes_device(node) and "recompute" not in node.meta
        if free and all(at in made or _is_size(at) for at in node.all_input_nodes):
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
    found = list_quantized_nodes(gm.graph)
    for node in found:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return found


def _changes_device(node: torch.fx.Node) -> bool:
    """A copy to a GPU waits for it: it is done once."""
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    return len({value.device for value in values if isinstance(value, torch.Tensor)}) > 1


def _is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def forward_of(gm: torch.fx.GraphModule, num_fwd_outputs: int) -> frozenset[torch.fx.Node]:
    """Return what the first `num_fwd_outputs` outputs are computed from."""
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, list | tuple)
    open_nodes = [item for item in returned[:num_fwd_outputs] if isinstance(item, torch.fx.Node)]
    found: set[torch.fx.Node] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes.extend(node.all_input_nodes)
    return frozenset(found)


def _candidate(
    node: torch.fx.Node, forward: frozenset[torch.fx.Node], find_model: FindModel
) -> Recomputed | None:
    size = _bytes(node)
    if not size or size < find_model(str(node.meta["val"].device)).memory.recomputed_bytes:
        return None
    if not is_computed(node) or _needs_memory(node):
        return None
    chain: dict[torch.fx.Node, None] = {}
    sources: dict[torch.fx.Node, None] = {}
    open_nodes = [node]
    while open_nodes:
        at = open_nodes.pop()
        if at in chain or at in sources:
            continue
        inner = at is node or (at in forward and (is_view(at) or is_computed(at)) and not _needs_memory(at))
        if inner and (at is node or _bytes(at) * _SMALL > size):
            chain[at] = None
            open_nodes.extend(at.all_input_nodes)
        else:
            sources[at] = None
        if len(chain) > _LONGEST:
            return None
    read = sum(_bytes(s) for s in sources if _bytes(s) * _SMALL > size)
    if not 0 < read <= _SLACK * size or not _reduces(chain, sources):
        return None
    return Recomputed(node=node, chain=tuple(chain), sources=tuple(sources))


def _reduces(chain: dict[torch.fx.Node, None], sources: dict[torch.fx.Node, None]) -> bool:
    """Tell if a small operand is a reduction over the chain itself, as in a softmax.

    Elsewhere the minimum cut sees as much as this pass: distances are short.
    """
    small = any(is_reduced(source) or is_computed(source) for source in sources)
    return small and any(is_reduced(user) for link in chain for user in link.users)


def _needs_memory(node: torch.fx.Node) -> bool:
    """Tell whether some reader, of the forward or the backward, takes `node` from memory."""
    return any(not reads_anywhere(user) for user in readers_of(node))


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or hinted_sizes(value) is None:
        return 0
    return hinted_bytes(value)
