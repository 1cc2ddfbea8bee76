"""Alias analysis of ATen graphs: whose memory a value is in, who writes it, and who uses it later.

Some operators use memory after their calls have returned. Functional collectives run on a thread or stream of
their process group until `wait_tensor` is called on something in the result's memory. `_FLIGHTS` lists
torch's operators; one of a collective namespace that is missing there counts as using all its arguments.
Other communication is done when its call returns, as kernels are: `_dtensor.shard_dim_alltoall` waits by
itself, and `symm_mem` runs on the current stream, but for two operators.

A copy with `non_blocking=True` runs on the current stream. Its host memory may be pinned and used later. The
allocator, which has noted the copy, keeps such memory until then; so it must not be reused for anything else.
Operators on streams and events stay in order with everything before and after them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from torch import fx

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.fx_nodes import get_packet_name
from coilwork_lowering.torch_compat.operators import Overload, get_schema

# asynchronous operators


_WAITS: Final = frozenset({"_c10d_functional.wait_tensor", "c10d_functional.wait_tensor"})
COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"})
_STREAMS: Final = "streams"
# The operators of the user's kernels, which a launch defines.
USER_KERNELS: Final = "coilwork_kernels"
# Libraries that come with torch, or are ours: done with their operands, as far as order on a stream goes,
# when they return.
_DONE_AT_RETURN: Final = frozenset(
    "aten prims coilwork coilwork_kernels mkldnn mkl onednn quantized quantized_decomposed _quantized "
    "prepacked fbgemm sparse rngprims torchvision torchaudio inductor _inductor_test".split()
)


@dataclass(frozen=True, slots=True)
class Flight:
    """The tensor arguments that an operator goes on using, by name, beside its results.

    Attributes:
        uses: arguments that are read or written until the wait.
        writes: those among them that it writes although its schema does not say so: they are its results.
        is_marking: torch notes its operation at the operand's memory, too, and the wait for the result leaves
            that note. Whatever else lay there would be waited for again, which gloo does not end.
    """

    uses: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    is_marking: bool = False


# An operator that is not listed copies nothing: it uses all of its tensors.
_FLIGHTS: Final[Mapping[str, Flight]] = MappingProxyType(
    {
        # these work in a copy of their operand, which is the result
        "_c10d_functional.all_reduce": Flight(),
        "_c10d_functional.all_reduce_coalesced": Flight(),
        "_c10d_functional.broadcast": Flight(),
        "_c10d_functional_autograd.all_reduce": Flight(),
        # these work in their operand
        "_c10d_functional.all_reduce_": Flight(("input",)),
        "_c10d_functional.all_reduce_coalesced_": Flight(("inputs",)),
        "_c10d_functional.broadcast_": Flight(("input",)),
        # these read their operand while they write
        "_c10d_functional.all_gather_into_tensor": Flight(("input",)),
        "_c10d_functional.all_gather_into_tensor_out": Flight(("input", "out")),
        "_c10d_functional.all_gather_into_tensor_coalesced": Flight(("inputs",)),
        "_c10d_functional.reduce_scatter_tensor": Flight(("input",)),
        "_c10d_functional.reduce_scatter_tensor_out": Flight(("input", "out")),
        "_c10d_functional.reduce_scatter_tensor_coalesced": Flight(("inputs",)),
        "_c10d_functional.all_to_all_single": Flight(("input",)),
        "_c10d_functional_autograd.all_gather_into_tensor": Flight(("input",)),
        "_c10d_functional_autograd.reduce_scatter_tensor": Flight(("input",)),
        "_c10d_functional_autograd.all_to_all_single": Flight(("input",)),
        # between two processes
        "_c10d_functional.isend": Flight(("tensor",), is_marking=True),
        "_c10d_functional.irecv": Flight(("tensor",), writes=("tensor",)),
        "_c10d_functional.batch_p2p_ops": Flight(("tensors",), writes=("tensors",)),
        # on a stream of their own, and waited for as collectives are
        "symm_mem._low_contention_all_gather": Flight(("tensor",)),
        "symm_mem._low_contention_reduce_scatter": Flight(("tensor",)),
    }
)


def get_flight(target: Overload) -> Flight | None:
    """Find what calls of `target` go on using after they have returned; None if that is nothing."""
    name = _name(target)
    if name in _WAITS:
        return None
    flight = _FLIGHTS.get(name)
    if flight is not None or target.namespace not in COLLECTIVES:
        return flight
    return Flight(tuple(argument.name for argument in get_schema(target).arguments))


def is_wait(target: object) -> bool:
    """Tell if calls of `target` wait for the operation that writes their operand."""
    return isinstance(target, Overload) and _name(target) in _WAITS


def communicates(target: Overload) -> bool:
    """Tell if calls of `target` communicate in a process group: all its ranks must make them in one order.

    Ranks may schedule the same calls differently, since shards that are uneven have other sizes on each.
    """
    names = {argument.name for argument in get_schema(target).arguments}
    return target.namespace in COLLECTIVES or "group_name" in names


def is_barrier(target: Overload) -> bool:
    """Tell if calls of `target` choose the stream of what stands behind them, or wait for other streams."""
    return target.namespace == _STREAMS


def may_retain(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Tell if a call may keep what it is given and read it at any time, as far as anybody knows; `arguments`
    by their names.
    """
    if arguments.get("non_blocking") is True:
        return True
    is_known = target.namespace in _DONE_AT_RETURN or target.namespace in COLLECTIVES or is_barrier(target)
    flight = get_flight(target) or Flight()
    return not is_known or bool(flight.writes) or flight.is_marking


def list_undeclared_writes(target: Overload) -> tuple[str, ...]:
    """Arguments that `target` writes although its schema does not say so."""
    flight = get_flight(target)
    return () if flight is None else flight.writes


def _name(target: Overload) -> str:
    return get_schema(target).name.replace("::", ".")


# memory


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts about one graph.

    Attributes:
        written: the nodes whose memory some call writes into.
        measured: those in whose storage a call looks for places by their distance from its begin.
    """

    written: frozenset[fx.Node]
    measured: frozenset[fx.Node] = frozenset()


def analyse_memory(graph: fx.Graph) -> Memory:
    """Return the facts about `graph`."""
    return Memory(
        written=frozenset(owner for node in graph.nodes for owner in find_written_owners(node)),
        measured=frozenset(
            find_owner(node.all_input_nodes[0]) for node in graph.nodes if _counts_from_storage(node)
        ),
    )


def _counts_from_storage(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, Overload):
        return False
    return find_info(get_packet_name(node.target)).counts_from_storage and bool(node.all_input_nodes)


def find_written_owners(node: fx.Node) -> frozenset[fx.Node]:
    """Return the nodes that made the memory which the call `node` writes into, or may."""
    if node.op != "call_function" or node.target is operator.getitem:
        return frozenset()
    # a nested graph, or a wrapped call, may write into whatever it is given
    operands = list_mutated_operands(node) if isinstance(node.target, Overload) else node.all_input_nodes
    return frozenset(find_owner(operand) for operand in operands)


def list_mutated_operands(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the operands that a call writes into, whatever its schema says."""
    if not isinstance(node.target, Overload):
        return ()
    operands: list[fx.Node] = []
    for position, name in _list_written_arguments(node.target):
        argument = node.kwargs.get(name, node.args[position] if position < len(node.args) else None)
        items = argument if isinstance(argument, list | tuple) else (argument,)
        operands.extend(item for item in items if isinstance(item, fx.Node))
    return tuple(operands)


@cache
def _list_written_arguments(target: Overload) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that `target` writes into."""
    silently = list_undeclared_writes(target)
    return tuple(
        (position, formal.name)
        for position, formal in enumerate(get_schema(target).arguments)
        if formal.name in silently or (formal.alias_info is not None and formal.alias_info.is_write)
    )


def find_owner(node: fx.Node) -> fx.Node:
    """Return the node that made the memory that `node` is in."""
    while (source := view_source(node)) is not None:
        node = source
    return node


def is_sole_view(node: fx.Node) -> bool:
    """Tell whether nobody reaches the memory of `node` but through it: it has memory of its own, or views a
    call's that has no other reader.
    """
    while (source := view_source(node)) is not None:
        if len(source.users) > 1 or source.op != "call_function":
            return False
        node = source
    return True


def view_source(node: fx.Node) -> fx.Node | None:
    """Return the operand whose memory the result of `node` is in; None if it has its own."""
    if node.op != "call_function":
        return None
    target, maker = node.target, node
    if target is operator.getitem:
        maker = node.all_input_nodes[0]
        target = maker.target
    if not isinstance(target, Overload) or not maker.args:
        return None
    first = maker.args[0]
    return first if isinstance(first, fx.Node) and _shares_first_argument(target) else None


@cache
def _shares_first_argument(target: Overload) -> bool:
    """Tell if results of `target` are in the memory of its first argument."""
    # its schema does not say that it is a view: it views only what nobody else has
    if get_packet_name(target) in ("_unsafe_view", "_reshape_alias"):
        return True
    arguments = get_schema(target).arguments
    return bool(arguments) and arguments[0].alias_info is not None


def is_returned(node: fx.Node) -> bool:
    """Tell whether the graph returns `node`, or a view of it."""
    open_nodes, seen = [node], {node}
    while open_nodes:
        for user in open_nodes.pop().users:
            if user.op == "output":
                return True
            if user not in seen and (view_source(user) is not None or user.target is operator.getitem):
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
    had, has = find_owner(old), find_owner(new)
    if had is has:
        return not any(user.op == "output" for user in old.users)
    if had in memory.written | memory.measured or has in memory.written:
        return False
    if not is_returned(old):
        return True
    return has.op == "call_function" and not is_returned(has) and had is old
