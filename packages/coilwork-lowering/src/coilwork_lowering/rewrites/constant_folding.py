"""What a graph computes from frozen inputs alone, taken out of it: a preparation that runs once, and what is
left.

Weights in another type or layout, padded, or with a batch norm in them: their values become inputs of the
graph that is left. Nothing is burnt into code, so a caller that sees a parameter change can prepare again.

Rewrites around parameters that stay the same: of the captured graph, and of the inference graph that is
split into what is prepared once and what runs in each call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import fx

from coilwork_lowering.facts.sharing import escapes, memory_of, owner_of
from coilwork_lowering.layout import lay_out_convolutions, pad_products
from coilwork_lowering.options import LayoutOptions, RewriteOptions
from coilwork_lowering.rewrites.batch_norm_folding import FROZEN
from coilwork_lowering.rewrites.clean_up import cleaned_up, drop_dead_code, is_pure
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.packing import pack_weights
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.rewrites.table import choose_rewrites
from coilwork_lowering.rewrites.vocabulary import CapturedVocabulary
from coilwork_lowering.torch_compat.graphs import copied_graph
from coilwork_lowering.torch_compat.operators import is_packing, is_quantizing

# ---- What a graph computes from frozen inputs alone, taken out of it: a preparation that runs o ----


MOST_GROWTH: Final = 4
"""A value that takes more times the bytes of what it is made from is cheaper to make than to keep."""

SMALL_BYTES: Final = 1 << 20
"""Values of up to so many bytes are kept however small their sources are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A graph in two parts.

    Attributes:
        main: takes the inputs at `kept`, in order, and behind them what the preparation makes.
        preparation: takes the inputs at `sources`; returns a tuple.
        kept: positions of inputs.
        sources: positions of frozen inputs.
        values: fake tensors of what the preparation makes.
    """

    main: fx.GraphModule
    preparation: fx.GraphModule
    kept: tuple[int, ...]
    sources: tuple[int, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def size_bytes(self) -> int:
        """Return what the prepared values take."""
        return sum(_bytes(value) for value in self.values)


def split_constants(gm: fx.GraphModule, frozen: Iterable[int]) -> Prepared | None:
    """`gm` in two parts, where the inputs at positions `frozen` are taken to stay the same; `None` if that
    saves nothing.

    Views of inputs stay where they are, since they cost nothing; so does what the graph returns or writes
    into, what draws random numbers, what is quantised, and what grows beyond `MOST_GROWTH`. `gm` is not
    changed.
    """
    graph = copied_graph(gm.graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = memory_of(graph).written
    positions = {inputs[p]: p for p in frozen if p < len(inputs) and inputs[p] not in written}
    sources_of = _constants(graph, positions)
    made = [node for node in graph.nodes if _is_worth(node, sources_of, written)]
    if not made:
        return None
    preparation, sources = _preparation(gm, made, sources_of, positions)
    values = tuple(node.meta["val"] for node in made)
    # all of them before the first is erased: that one may be what they are inserted before
    with graph.inserting_before(_after(inputs)):
        given = [graph.placeholder(f"prepared_{number}") for number in range(len(made))]
    for node, value in zip(made, given, strict=True):
        value.meta.update({**node.meta, "val": node.meta["val"]})
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    main = fx.GraphModule(gm, graph)
    main.meta.update(gm.meta)
    drop_dead_code(main)
    unused = [node for node in positions if not node.users]
    for node in unused:
        graph.erase_node(node)
    main.recompile()
    kept = tuple(p for p, node in enumerate(inputs) if node not in unused)
    return Prepared(main=main, preparation=preparation, kept=kept, sources=sources, values=values)


def constants_of(graph: fx.Graph, frozen: Iterable[int]) -> frozenset[fx.Node]:
    """Return what the inputs of `graph` at positions `frozen` decide alone, and nobody writes into; these
    inputs among it.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = memory_of(graph).written
    positions = {inputs[p]: p for p in frozen if p < len(inputs) and inputs[p] not in written}
    return frozenset(_constants(graph, positions))


def _after(inputs: list[fx.Node]) -> fx.Node:
    return inputs[-1].next


def _constants(graph: fx.Graph, positions: dict[fx.Node, int]) -> dict[fx.Node, frozenset[fx.Node]]:
    """Nodes that frozen inputs alone decide, with those inputs."""
    found = {node: frozenset({node}) for node in positions}
    for node in graph.nodes:
        if node.op != "call_function" or not node.all_input_nodes or not _is_repeatable(node.target):
            continue
        if all(source in found for source in node.all_input_nodes) and _is_static(node.meta.get("val")):
            found[node] = frozenset().union(*(found[source] for source in node.all_input_nodes))
    return found


def _is_repeatable(target: Any) -> bool:
    # a quantised value would become an input of the type that torch captures it as
    return (is_pure(target) and not is_quantizing(target)) or is_packing(target)


def _is_static(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_static(item) for item in value)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _is_worth(
    node: fx.Node, sources_of: dict[fx.Node, frozenset[fx.Node]], written: frozenset[fx.Node]
) -> bool:
    if node not in sources_of or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    owner = owner_of(node)
    if owner.op == "placeholder" or owner in written or escapes(owner):
        return False
    if all(user in sources_of for user in node.users):
        return False
    size = _bytes(node.meta["val"])
    return size <= max(SMALL_BYTES, MOST_GROWTH * sum(_bytes(s.meta["val"]) for s in sources_of[node]))


def _bytes(value: torch.Tensor) -> int:
    """The memory that a tensor of this shape takes by itself."""
    return prod(value.shape) * value.element_size()


def _preparation(
    gm: fx.GraphModule,
    made: list[fx.Node],
    sources_of: dict[fx.Node, frozenset[fx.Node]],
    positions: dict[fx.Node, int],
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    used = frozenset().union(*(sources_of[node] for node in made))
    sources = sorted(used, key=positions.__getitem__)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in sources:
        copies[node] = graph.placeholder(node.name)
    for node in sorted(_find_needed(made)):
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in made))
    return fx.GraphModule(gm, graph), tuple(positions[node] for node in sources)


def _find_needed(made: list[fx.Node]) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    open_nodes = list(made)
    while open_nodes:
        node = open_nodes.pop()
        if node not in needed:
            needed.add(node)
            open_nodes.extend(node.all_input_nodes)
    return needed


# ---- Rewrites around parameters that stay the same: of the captured graph, and of the inference ----


def rewrite_captured(
    gm: fx.GraphModule,
    options: RewriteOptions,
    own: Sequence[Rewrite] = (),
    *,
    frozen: Collection[int] | None = None,
) -> tuple[Fired, ...]:
    """Rewrite Dynamo's graph, in place; returns what was done. `own` are the user's rewrites.

    With positions of `frozen` inputs, these are marked, and what needs them frozen is rewritten as well.
    """
    rewrites = choose_rewrites("captured", options, own)
    if frozen is not None:
        rewrites = (*choose_rewrites("frozen", options, own), *rewrites)
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        for position in frozen:
            inputs[position].meta[FROZEN] = True
    return apply_rewrites(gm, rewrites, vocabulary=CapturedVocabulary())


def freeze(
    gm: fx.GraphModule,
    frozen: Sequence[int],
    rewrites: Sequence[Rewrite],
    layout: LayoutOptions,
    *,
    packs: bool,
) -> tuple[fx.GraphModule, tuple[Fired, ...], Prepared | None]:
    """An inference graph after `rewrites`, what they did, and what the inputs at positions `frozen` decide of
    it.

    Weights are laid out, and packed for oneDNN if `packs`, in the preparation; None if nothing is prepared.
    """
    gm, fired = cleaned_up(gm, rewrites)
    laid_out, _ = lay_out_convolutions(gm, layout)
    laid_out, _ = pad_products(laid_out, layout)
    if packs:
        laid_out, _ = pack_weights(laid_out, frozen, layout.find_model)
    return gm, fired, split_constants(laid_out, frozen)
