"""Apply rewrites to a graph until none fits.

Every node is looked up in a table of anchors, the operators at the roots of patterns. A replacement is called
with proxies of what was captured, and the calls that it makes become nodes in the match's place. A match is
refused where nodes of it have other readers, where memory is written in between, or where the result would
have another type or layout.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from coilwork_lowering.facts.alias_analysis import (
    Memory,
    analyse_memory,
    find_owner,
    is_returned,
    is_sole_view,
    may_share,
)
from coilwork_lowering.facts.fx_nodes import get_origin, inherit_metadata
from coilwork_lowering.rewrites.call_normalization import AtenVocabulary, Vocabulary
from coilwork_lowering.rewrites.rewrite import (
    Fired,
    Match,
    Rewrite,
    find_matches,
    has_equal_strides,
    has_outline,
    is_like,
    iterate_names,
    list_anchors,
    outline,
)
from coilwork_lowering.torch_compat.graphs import GraphAppendingTracer, find_mode_among

# replacement


class Operand(fx.Proxy):
    """A node of the graph as a replacement sees it."""

    @property
    def value(self) -> Any:
        """The fake value, for shapes and types."""
        tracer = self.tracer
        assert isinstance(tracer, _Tracer)
        return tracer.vocabulary.value(self.node)


class _Tracer(GraphAppendingTracer):
    """Appends what is called to a graph, with the origin of `like` and its fake value."""

    def __init__(
        self,
        graph: fx.Graph,
        like: fx.Node,
        vocabulary: Vocabulary,
        mode: AbstractContextManager[object] | None,
    ) -> None:
        super().__init__(graph)
        self.like = like
        self.vocabulary = vocabulary
        self.mode = mode
        self.made: list[fx.Node] = []

    def proxy(self, node: fx.Node) -> Operand:
        return Operand(node, self)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        self.made.append(node)
        node.meta.update(inherit_metadata(self.like))
        self.vocabulary.record(node, self._compute_now(node))
        return node

    def _compute_now(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, self.vocabulary.value)
        kwargs = fx.map_arg(node.kwargs, self.vocabulary.value)
        with nullcontext() if self.mode is None else self.mode:
            if node.op == "call_method":
                receiver, *rest = args
                return getattr(receiver, str(node.target))(*rest, **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)


def insert_replacement(
    match: Match,
    names: Sequence[str],
    replacement: Callable[..., Any],
    before: fx.Node,
    mode: AbstractContextManager[object] | None,
) -> tuple[list[Any], list[fx.Node]]:
    """Call `replacement` for `match`; return its result for each root, and the nodes that it inserted.

    Nodes are inserted in front of `before`. Nothing of the graph refers to them yet.
    """
    tracer = _Tracer(match.root.graph, match.root, match.vocabulary, mode)
    operands = {name: _wrap_operands(match.captures.get(name), tracer) for name in names}
    with match.root.graph.inserting_before(before), torch.no_grad():
        result = replacement(**operands)
    results = list(result) if len(match.roots) > 1 and result is not None else [result]
    return [_unwrap_nodes(item) for item in results], tracer.made


def _wrap_operands(captured: Any, tracer: _Tracer) -> Any:
    if isinstance(captured, fx.Node):
        return tracer.proxy(captured)
    if isinstance(captured, tuple) and any(isinstance(item, fx.Node) for item in captured):
        return [_wrap_operands(item, tracer) for item in captured]
    return captured


def _unwrap_nodes(result: Any) -> Any:
    if isinstance(result, fx.Proxy):
        return result.node
    if isinstance(result, list | tuple):
        return [_unwrap_nodes(item) for item in result]
    return result


# rewriting


MOST_ROUNDS: Final = 4
"""How often a graph is looked through; each round after the first sees what those before it made."""

# Values computed in one region are not moved into another: torch decides by these what is saved and what
# computed again.
_REGION: Final = ("partitioner_tag", "recompute", "ac_graph_id")


@dataclass(slots=True, kw_only=True)
class _GraphState:
    """A graph while it is rewritten.

    `memory` holds for graphs of ATen operators. Of others, whose calls may share memory in ways that only
    running them tells, replacements are taken to make memory of their own where the captured calls did.
    `writers` stand in the order of the graph; `memo` as in `Match`.
    """

    vocabulary: Vocabulary
    mode: AbstractContextManager[object] | None
    memory: Memory | None
    writers: tuple[fx.Node, ...]
    memo: dict[Hashable, object] = field(default_factory=dict)


def apply_rewrites(
    gm: fx.GraphModule, rewrites: Sequence[Rewrite], *, vocabulary: Vocabulary | None = None
) -> tuple[Fired, ...]:
    """Replace in `gm`, in place, whatever `rewrites` fit; returns what they did, in the order of `rewrites`.

    A match is refused where a condition fails; where anything between its first and its last call may write
    into memory; where its calls belong to different regions of a joint graph; where the replacement's results
    differ from the captured ones in type, shape, device or (unless `restrides`) strides; and where it would
    make values share memory that callers or writers tell apart. New nodes carry the origin of the root that
    they replace.

    Raises:
        KeyError: a pattern names an operator that does not exist.
    """
    fired = rewrite_graph(gm.graph, rewrites, vocabulary=vocabulary)
    if fired:
        gm.recompile()
    return fired


def rewrite_graph(
    graph: fx.Graph, rewrites: Sequence[Rewrite], *, vocabulary: Vocabulary | None = None
) -> tuple[Fired, ...]:
    """`apply_rewrites` to a graph that is no module yet, or is still being changed."""
    vocabulary = AtenVocabulary() if vocabulary is None else vocabulary
    table = index_by_anchor(rewrites, vocabulary)
    outlines = {id(rewrite): outline(rewrite.pattern) for rewrite in rewrites}
    counts: dict[str, int] = defaultdict(int)
    sources: dict[str, dict[str, None]] = defaultdict(dict)
    for _ in range(MOST_ROUNDS):
        state: _GraphState | None = None
        fired = 0
        for node in list(graph.nodes):
            candidates = table.get(vocabulary.key(node), ())
            if not candidates or not node.users:
                continue
            state = _describe_graph(graph, vocabulary) if state is None else state
            for rewrite in candidates:
                if not has_outline(node, outlines[id(rewrite)], vocabulary):
                    continue
                origins = _rewrite_at(node, rewrite, state)
                if origins is not None:
                    counts[rewrite.name] += 1
                    sources[rewrite.name].update(dict.fromkeys(origins))
                    fired += 1
                    break
        if not fired:
            break
    return tuple(
        Fired(name=r.name, level=r.level, count=counts[r.name], sources=tuple(sources[r.name]))
        for r in rewrites
        if counts[r.name]
    )


def index_by_anchor(
    rewrites: Sequence[Rewrite], vocabulary: Vocabulary
) -> Mapping[Hashable, tuple[Rewrite, ...]]:
    """Return the rewrites to try at a call, by its key."""
    table: dict[Hashable, tuple[Rewrite, ...]] = {}
    for rewrite in rewrites:
        for op in list_anchors(rewrite.pattern):
            for key in vocabulary.keys(op):
                table[key] = (*table.get(key, ()), rewrite)
    return table


def _describe_graph(graph: fx.Graph, vocabulary: Vocabulary) -> _GraphState:
    aten = isinstance(vocabulary, AtenVocabulary)
    return _GraphState(
        vocabulary=vocabulary,
        mode=find_mode_among(vocabulary.value(node) for node in graph.nodes),
        memory=analyse_memory(graph) if aten else None,
        writers=tuple(node for node in graph.nodes if vocabulary.writes(node)),
    )


def _rewrite_at(node: fx.Node, rewrite: Rewrite, state: _GraphState) -> tuple[str, ...] | None:
    """Apply `rewrite` at `node`: the origins of the replaced calls, or None."""
    matches = find_matches(
        node, rewrite.pattern, rewrite.also, state.vocabulary, state.memo, rewrite.find_model
    )
    for match in matches:
        if _can_combine(match, state) and all(condition.holds(match) for condition in rewrite.conditions):
            origins = tuple(_origins(match))
            if _apply_match(match, rewrite, state):
                return origins
    return None


def _origins(match: Match) -> Iterator[str]:
    for node in match.nodes:
        origin = get_origin(node)
        if origin.file:
            yield f"{origin.file}:{origin.line}"


def _can_combine(match: Match, state: _GraphState) -> bool:
    """Tell if the calls of a match can be computed together."""
    if len({tuple(node.meta.get(key) for key in _REGION) for node in match.nodes}) > 1:
        return False
    first, last = min(match.nodes), max(match.nodes)
    between = bisect_left(state.writers, first)
    return between == len(state.writers) or state.writers[between] > last


def _apply_match(match: Match, rewrite: Rewrite, state: _GraphState) -> bool:
    names = tuple(dict.fromkeys(n for root in (rewrite.pattern, *rewrite.also) for n in iterate_names(root)))
    # Further roots may have readers before the last root: all results are made in front of the first one.
    before = min(match.roots)
    if len(match.roots) > 1 and any(node > before for node in _leaves(match)):
        return False
    results: list[object]
    inserted: list[fx.Node]
    if rewrite.replacement is None:
        results, inserted = [rewrite.existing(match) if rewrite.existing else None], []
    else:
        results, inserted = insert_replacement(match, names, rewrite.replacement, before, state.mode)
    pairs = _pair_results(match.roots, results)
    if pairs is None or not all(_can_replace(old, new, inserted, rewrite, state) for old, new in pairs):
        for node in reversed(inserted):
            match.root.graph.erase_node(node)
        return False
    for old, new in pairs:
        old.replace_all_uses_with(new)
    _erase_unread(match, [old for old, _ in pairs])
    return True


def _leaves(match: Match) -> Iterator[fx.Node]:
    for captured in match.captures.values():
        items = captured if isinstance(captured, tuple) else (captured,)
        yield from (item for item in items if isinstance(item, fx.Node))


def _pair_results(
    roots: Sequence[fx.Node], results: Sequence[object]
) -> list[tuple[fx.Node, fx.Node]] | None:
    """(old, new) nodes; of a root of several results, the items that are read. `None` if the replacement
    refused.
    """
    if len(roots) != len(results):
        return None
    pairs: list[tuple[fx.Node, fx.Node]] = []
    for root, result in zip(roots, results, strict=True):
        if isinstance(result, fx.Node):
            pairs.append((root, result))
        elif isinstance(result, list):
            for user in root.users:
                if user.target is not operator.getitem or not isinstance(user.args[1], int):
                    return None
                new = result[user.args[1]]
                if not isinstance(new, fx.Node):
                    return None
                pairs.append((user, new))
        else:
            return None
    return pairs


def _can_replace(
    old: fx.Node, new: fx.Node, inserted: Sequence[fx.Node], rewrite: Rewrite, state: _GraphState
) -> bool:
    value = state.vocabulary.value
    if not is_like(value(new), value(old), strides=not rewrite.restrides):
        return False
    # the caller sees the strides of dimensions of one element, too
    if is_returned(old) and not has_equal_strides(value(new), value(old)):
        return False
    if state.memory is None:
        return True
    if find_owner(new) not in inserted:
        return may_share(old, new, state.memory)
    return is_sole_view(old) or not (find_owner(old) in state.memory.written or is_returned(old))


def _erase_unread(match: Match, items: Sequence[fx.Node]) -> None:
    """Take out the calls that nobody reads any more, readers first."""
    for node in sorted({*items, *match.nodes}, reverse=True):
        if not node.users:
            match.root.graph.erase_node(node)
