"""Whose memory values are in, who returns it and who writes into it, in a functional ATen graph."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.asynchronous import silent_writes
from coilwork_lowering.facts.generated import operator as operator_called
from coilwork_lowering.torch_compat.operators import Overload, schema_of


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts about one graph.

    Attributes:
        written: the nodes whose memory some call writes into.
        measured: those in whose storage a call looks for places by their distance from its begin.
    """

    written: frozenset[fx.Node]
    measured: frozenset[fx.Node] = frozenset()


def memory_of(graph: fx.Graph) -> Memory:
    """The facts about `graph`."""
    return Memory(
        written=frozenset(owner for node in graph.nodes for owner in owners_written_by(node)),
        measured=frozenset(owner_of(node.all_input_nodes[0]) for node in graph.nodes if _measures(node)),
    )


def _measures(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, Overload) or not node.all_input_nodes:
        return False
    return find_info(operator_called(node.target)).counts_from_storage


def owners_written_by(node: fx.Node) -> frozenset[fx.Node]:
    """The nodes that made the memory which the call `node` writes into, or may."""
    if node.op != "call_function" or node.target is operator.getitem:
        return frozenset()
    # a nested graph, or a wrapped call, may write into whatever it is given
    operands = written_operands(node) if isinstance(node.target, Overload) else node.all_input_nodes
    return frozenset(owner_of(operand) for operand in operands)


def written_operands(node: fx.Node) -> tuple[fx.Node, ...]:
    """The operands that a call writes into, whatever its schema says."""
    if not isinstance(node.target, Overload):
        return ()
    found: list[fx.Node] = []
    silently = silent_writes(node.target)
    for position, formal in enumerate(schema_of(node.target).arguments):
        writes = formal.alias_info is not None and formal.alias_info.is_write
        if not writes and formal.name not in silently:
            continue
        given = node.kwargs.get(formal.name, node.args[position] if position < len(node.args) else None)
        items = given if isinstance(given, list | tuple) else (given,)
        found.extend(item for item in items if isinstance(item, fx.Node))
    return tuple(found)


def owner_of(node: fx.Node) -> fx.Node:
    """The node that made the memory that `node` is in."""
    while (source := viewed_by(node)) is not None:
        node = source
    return node


def is_sole_view(node: fx.Node) -> bool:
    """Tell whether nobody reaches the memory of `node` but through it: it has memory of its own, or views a
    call's that has no other reader.
    """
    while (source := viewed_by(node)) is not None:
        if len(source.users) > 1 or source.op != "call_function":
            return False
        node = source
    return True


def viewed_by(node: fx.Node) -> fx.Node | None:
    """The operand whose memory the result of `node` is in; `None` if it has its own."""
    if node.op != "call_function":
        return None
    target, maker = node.target, node
    if target is operator.getitem:
        maker = node.all_input_nodes[0]
        target = maker.target
    if not isinstance(target, Overload) or not maker.args:
        return None
    first = maker.args[0]
    if not isinstance(first, fx.Node):
        return None
    # its schema does not say that it is a view: it views only what nobody else has
    if operator_called(target) in ("_unsafe_view", "_reshape_alias"):
        return first
    arguments = schema_of(target).arguments
    return first if arguments and arguments[0].alias_info is not None else None


def escapes(node: fx.Node) -> bool:
    """Tell whether the graph returns `node`, or a view of it."""
    open_nodes, seen = [node], {node}
    while open_nodes:
        for user in open_nodes.pop().users:
            if user.op == "output":
                return True
            if user not in seen and (viewed_by(user) is not None or user.target is operator.getitem):
                seen.add(user)
                open_nodes.append(user)
    return False


def may_share(old: fx.Node, new: fx.Node, memory: Memory) -> bool:
    """Tell whether readers of `old`, in memory of its own or in another's, may read `new` instead, an earlier
    node's memory.

    Not where somebody writes into either memory: `old` may be what was there before, or be there to be
    written into. Nor where places are looked for in that of `old`, which begins with it, while `new` may be a
    part of its storage. Nor where the graph returns `old` and its caller would find it in the memory of an
    input or of another result.
    """
    had, has = owner_of(old), owner_of(new)
    if had is has:
        return not any(user.op == "output" for user in old.users)
    if had in memory.written | memory.measured or has in memory.written:
        return False
    if not escapes(old):
        return True
    return has.op == "call_function" and not escapes(has) and had is old
