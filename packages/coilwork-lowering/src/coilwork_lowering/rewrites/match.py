"""Whether a pattern fits at a node, and what it captures there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.machine import FindModel, MachineModel, find_like_model
from coilwork_lowering.rewrites.pattern import Call, Either, Items, Pattern, Tensor, Value, roots_of
from coilwork_lowering.rewrites.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One place where a pattern fits.

    Attributes:
        roots: the outermost calls, which are replaced.
        captures: what stands at the pattern's names: nodes, lists of nodes, arguments.
        nodes: the calls of the pattern, roots included.
        vocabulary: how to read the graph.
        memo: what conditions found out about one call, for the other matches of the run that hold it.
        find_model: what is measured of a device.
    """

    roots: tuple[fx.Node, ...]
    captures: Mapping[str, Any]
    nodes: tuple[fx.Node, ...]
    vocabulary: Vocabulary
    memo: dict[Hashable, Any] = field(default_factory=dict)
    find_model: FindModel = find_like_model

    def machine(self, name: str) -> MachineModel:
        """Return what is measured of the device of the captured node `name`."""
        return self.find_model(str(self.value(name).device))

    def value(self, name: str) -> Any:
        """The fake tensor of the captured node `name`."""
        return self.vocabulary.value(self.captures[name])

    @property
    def root(self) -> fx.Node:
        """The outermost call of the first pattern."""
        return self.roots[0]

    @property
    def result(self) -> Any:
        """The fake value of the root."""
        return self.vocabulary.value(self.root)


@dataclass(frozen=True, slots=True)
class _State:
    """What is known in the middle of a match."""

    captures: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[fx.Node, ...] = ()
    kept: tuple[fx.Node, ...] = ()  # calls that may have other readers


def matches_at(
    node: fx.Node,
    pattern: Pattern,
    also: tuple[Pattern, ...],
    vocabulary: Vocabulary,
    memo: dict[Hashable, Any],
    find_model: FindModel = find_like_model,
) -> Iterator[Match]:
    """Every way in which `pattern` fits with `node` as its outermost call, and `also` beside it.

    `memo` and `find_model` as in `Match`.
    """
    for state in _fit(pattern, node, _State(), vocabulary):
        for roots, whole in _further(also, (node,), state, vocabulary):
            if _is_closed(whole, roots):
                yield Match(
                    roots=roots,
                    captures=whole.captures,
                    nodes=whole.nodes,
                    vocabulary=vocabulary,
                    memo=memo,
                    find_model=find_model,
                )


def _further(
    also: tuple[Pattern, ...], roots: tuple[fx.Node, ...], state: _State, vocabulary: Vocabulary
) -> Iterator[tuple[tuple[fx.Node, ...], _State]]:
    """The remaining roots: among the readers of what is captured."""
    if not also:
        yield roots, state
        return
    pattern, *rest = also
    captured = [item for item in state.captures.values() if isinstance(item, fx.Node)]
    readers = dict.fromkeys(user for item in captured for user in item.users if user not in state.nodes)
    for reader in readers:
        for further in _fit(pattern, reader, state, vocabulary):
            yield from _further(tuple(rest), (*roots, reader), further, vocabulary)


def _is_closed(state: _State, roots: tuple[fx.Node, ...]) -> bool:
    """Tell if nobody outside reads what stands between leaves and roots."""
    inside = set(state.nodes)
    open_calls = inside - set(roots) - set(state.kept)
    return all(user in inside for node in open_calls for user in node.users)


def _fit(pattern: Pattern, found: Any, state: _State, vocabulary: Vocabulary) -> Iterator[_State]:
    match pattern:
        case Tensor(name=name):
            if isinstance(found, fx.Node):
                yield from _capture(name, found, state)
        case Value(name=name):
            if not _holds_nodes(found):
                yield from _capture(name, found, state)
        case Items(name=name):
            # a list may be long, and be looked at by each of many matches
            if isinstance(found, list | tuple) and {fx.Node}.issuperset(map(type, found)):
                yield from _capture(name, tuple(found), state)
        case Either(options=options):
            for option in options:
                yield from _fit(option, found, state, vocabulary)
        case Call():
            if isinstance(found, fx.Node):
                yield from _fit_call(pattern, found, state, vocabulary)


def _fit_call(pattern: Call, node: fx.Node, state: _State, vocabulary: Vocabulary) -> Iterator[_State]:
    if vocabulary.op(node) not in pattern.ops:
        return
    read = vocabulary.read(node)
    if read is None:
        return
    wanted = dict(pattern.arguments)
    if not wanted.keys() <= read.arguments.keys():
        return
    for name, given in read.arguments.items():
        if name not in wanted and (name not in read.defaults or not _same(given, read.defaults[name])):
            return
    kept = (*state.kept, node) if pattern.shared else state.kept
    inside = _State(state.captures, (*state.nodes, node), kept)
    for named in _capture(pattern.named, node, inside) if pattern.named else (inside,):
        yield from _fit_orders(pattern, wanted, read.arguments, named, vocabulary)


def _fit_orders(
    pattern: Call,
    wanted: Mapping[str, Pattern],
    given: Mapping[str, Any],
    state: _State,
    vocabulary: Vocabulary,
) -> Iterator[_State]:
    orders = [wanted]
    if pattern.commutes is not None:
        a, b = pattern.commutes
        orders.append({**wanted, a: wanted[b], b: wanted[a]})
    for order in orders:
        yield from _fit_arguments(list(order.items()), given, state, vocabulary)


def _fit_arguments(
    wanted: list[tuple[str, Pattern]], given: Mapping[str, Any], state: _State, vocabulary: Vocabulary
) -> Iterator[_State]:
    if not wanted:
        yield state
        return
    (name, pattern), *rest = wanted
    for further in _fit(pattern, given[name], state, vocabulary):
        yield from _fit_arguments(rest, given, further, vocabulary)


_ABSENT: Final = object()


def _capture(name: str, found: Any, state: _State) -> Iterator[_State]:
    known = state.captures.get(name, _ABSENT)
    if known is _ABSENT:
        yield _State({**state.captures, name: found}, state.nodes, state.kept)
    elif _same(known, found):
        yield state


def _same(a: Any, b: Any) -> bool:
    """Equality of arguments, where 1, 1.0 and True are three, and symbolic numbers are themselves alone: it
    adds no guard.
    """
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, fx.Node | torch.SymInt | torch.SymFloat | torch.SymBool):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _holds_nodes(found: Any) -> bool:
    if isinstance(found, list | tuple):
        return any(_holds_nodes(item) for item in found)
    return isinstance(found, fx.Node)


def anchors_of(pattern: Pattern) -> tuple[str, ...]:
    """Operators at which to try `pattern`."""
    return tuple(dict.fromkeys(op for root in roots_of(pattern) for op in root.ops))
