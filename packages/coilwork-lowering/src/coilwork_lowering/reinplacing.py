"""Re-inplacing: decide which updates overwrite the tensor that they are an update of.

AOTAutograd turns `x[i] = v` into a copy of the old tensor with a part replaced. Where nobody reads the old
contents afterwards, the part is written into the old tensor's memory. Readers are found by memory, not by
name: a view of the buffer reads the old contents, too. A later reader is harmless if it replaces what the
update writes, as do the scatters that put a written view back into its base, and the `copy_` into an input at
the end of a graph.

Memory of inputs belongs to the caller. It is overwritten only if the graph itself does so later, as a whole,
and after the last assertion that could send the call back to eager mode (`building/size_assertions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from coilwork_ir.index import as_int, multiply_all
from coilwork_ir.loops import Pointwise
from coilwork_ir.machine import MachineModel
from coilwork_ir.operators import find_target_info
from coilwork_ir.scalar import list_loads
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.size_assertions import has_squeezed_size_assertion
from coilwork_lowering.building.values import (
    NumberValue,
    TensorValue,
    Value,
    are_same_strides,
    find_layout,
    is_whole,
)
from coilwork_lowering.facts.alias_analysis import is_returned
from coilwork_lowering.facts.fx_nodes import (
    get_operator_name,
    get_origin,
    is_pointwise,
    is_reduction,
    is_view,
)
from coilwork_lowering.ops.slice_updates import (
    contains_part,
    is_injective,
    is_same_region,
    view_replaced_part,
)
from coilwork_lowering.ops.storage_aliasing import find_storage_owner
from coilwork_lowering.rules import NotLowered
from coilwork_lowering.torch_compat.operators import Overload, get_schema

_COPY: Final = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The decision for one update, the call `node` at `place`: why `memory` is not overwritten; empty if it
    is.
    """

    node: str
    place: str
    memory: str
    reason: str

    @property
    def text(self) -> str:
        """One line."""
        done = (
            f"is a tensor beside %{self.memory}: {self.reason}"
            if self.reason
            else f"overwrites %{self.memory}"
        )
        return f"%{self.node} {done}    # {self.place}"


class Reinplacing:
    """The nodes in each memory while a graph is lowered, and who reads them later.

    `values` are the nodes lowered so far; `decided` is a log.
    """

    def __init__(self, graph: fx.Graph, values: Mapping[fx.Node, Value], builder: Builder) -> None:
        self._position = {node: k for k, node in enumerate(graph.nodes)}
        asserted = [k for node, k in self._position.items() if has_squeezed_size_assertion(node)]
        self._last_assertion = max(asserted, default=-1)
        self._values = values
        self._builder = builder
        self._tenants: dict[str, list[fx.Node]] = {}
        self._inputs: dict[str, fx.Node] = {}
        self._stored: dict[fx.Node, bool] = {}
        # memory that was overwritten, and the node whose memory it is by rights
        self._taken: set[str] = set()
        self._owners: dict[str, fx.Node] = {}
        self.decided: list[Update] = []

    def note(self, node: fx.Node) -> None:
        """`node` was lowered."""
        for root in dict.fromkeys(map(self._builder.buffers.root, list_buffers(self._values[node]))):
            self._tenants.setdefault(root, []).append(node)
            if node.op in ("placeholder", "get_attr"):
                self._inputs[root] = self._owners[root] = node

    def can_scatter_into(self, node: fx.Node, target: TensorValue) -> bool:
        """Tell if `node`, which stores somewhere in `target`, may overwrite it; else it overwrites a copy.

        A copy of what a kernel computes costs nothing, and a part of that need not lie in memory.
        """
        computed = "" if self._is_in_memory(target) or is_bijective(target) else "a kernel computes it"
        return self._decide(node, target, target, computed)

    def can_replace_part(self, node: fx.Node, target: TensorValue, part: TensorValue) -> bool:
        """Tell if `node`, which replaces `part` of `target`, should overwrite it; else all of it is computed,
        by whoever reads it.
        """
        reason = ""
        if not self._is_in_memory(target):
            reason = "a kernel computes it"
        elif self._builder.buffers.root(target.buffer.name) not in self._inputs and not self._is_stored(node):
            reason = "kernels read it"
        elif not _saves_a_launch(target, part, self._builder.machine_of(target.device)):
            reason = "few bytes"
        return self._decide(node, target, part, reason)

    def can_skip_copy(self, node: fx.Node, target: TensorValue) -> bool:
        """Tell if `node`, a copy of `target` that an operator will write into, may be `target`."""
        return self._decide(node, target, target, "", by_call=True)

    def find_displaced(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Nodes in the memory that `node`, a `copy_` into all of an input, overwrites, and that are read
        later.

        An update lies there, by one of these decisions, as long as it is the input's newest contents.
        """
        if node.target is not _COPY:
            return ()
        old, new = (
            self._values.get(argument) if isinstance(argument, fx.Node) else None
            for argument in node.args[:2]
        )
        if not isinstance(old, TensorValue) or not self.is_taken(old):
            return ()
        if isinstance(new, TensorValue) and is_same_region(
            self._builder.current(old), self._builder.current(new)
        ):
            return ()
        root = self._builder.buffers.root(old.buffer.name)
        readers = dict.fromkeys(tenant for tenant, _ in self._later_readers(root, node))
        return tuple(tenant for tenant in readers if find_storage_owner(tenant) is not node.args[0])

    def is_taken(self, value: TensorValue) -> bool:
        """Tell if `value` lies in memory that was overwritten by such a decision."""
        return self._builder.buffers.root(value.buffer.name) in self._taken

    def may_return(self, node: fx.Node, value: TensorValue) -> bool:
        """Tell whether a result `node` of the graph may lie where `value` does: alone, or with those that
        share memory by rights.
        """
        if not self.is_taken(value):
            return True
        owner = find_storage_owner(node)
        return self._owners.setdefault(self._builder.buffers.root(value.buffer.name), owner) is owner

    def _decide(
        self, node: fx.Node, target: TensorValue, part: TensorValue, reason: str, *, by_call: bool = False
    ) -> bool:
        reason = reason or self._refusal(node, target, part, by_call=by_call)
        memory = self._builder.buffers.root(target.buffer.name)
        place = str(get_origin(node))
        self.decided.append(Update(node=node.name, place=place, memory=memory, reason=reason))
        if not reason:
            self._taken.add(memory)
        return not reason

    def _refusal(self, node: fx.Node, target: TensorValue, part: TensorValue, *, by_call: bool) -> str:
        """Return why `part` of `target` must not be overwritten at `node`; empty if it may."""
        builder = self._builder
        if not builder.options.updates_in_place:
            return "by option"
        root = builder.buffers.root(target.buffer.name)
        input_node = self._inputs.get(root)
        overwriter = None if input_node is None else self._overwriter(input_node, node)
        if input_node is not None and overwriter is None:
            return "it is an input's memory"
        if input_node is not None and self._position[node] < self._last_assertion:
            return "it is an input's memory, which eager needs if a size is squeezed"
        if not builder.buffers.owns_memory(target.buffer) or not is_injective(target):
            return "its elements may share memory"
        if root in builder.in_flight:
            return "an operator still uses it"
        if root in builder.retained and input_node is None and not by_call:
            return "an operator may use it still"
        if is_returned(node) and not self._is_laid_out_as(target, node):
            # each result in that memory would be copied into its own
            return "the caller sees another layout"
        for tenant, reader in self._later_readers(root, node):
            if tenant is input_node and overwriter is not None and self._is_later(reader, overwriter):
                continue  # it reads the input's newest contents, not those that are replaced
            if not self._replaces(reader, tenant, self._values[tenant], part):
                return f"%{tenant.name} is read by %{reader.name}"
        return ""

    def _is_laid_out_as(self, target: TensorValue, node: fx.Node) -> bool:
        layout, promised = (
            find_layout(self._builder.current(target)),
            self._builder.sizes.exprs(node.meta["val"].stride()),
        )
        return layout is not None and are_same_strides(target.shape, layout.strides, promised)

    def _overwriter(self, input_node: fx.Node, node: fx.Node) -> fx.Node | None:
        """Return the first copy of other contents into all of `input_node` after `node`."""
        copies = [
            user
            for user in input_node.users
            if user.target is _COPY and user.args[0] is input_node and self._is_later(user, node)
        ]
        return min(copies, key=self._position.__getitem__, default=None)

    def _is_later(self, user: fx.Node, node: fx.Node) -> bool:
        return self._position[user] > self._position[node]

    def _later_readers(self, root: str, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Tenants of the memory, and who reads them after `node`. Others are forgotten."""
        readers = [
            (tenant, [user for user in tenant.users if self._is_later(user, node)])
            for tenant in self._tenants[root]
        ]
        self._tenants[root] = [tenant for tenant, later in readers if later]
        for tenant, later in readers:
            for user in later:
                yield tenant, user

    def _replaces(self, reader: fx.Node, tenant: fx.Node, value: Value, part: TensorValue) -> bool:
        """Tell if `reader` puts something else in the place of `part`, and reads nothing of it. `value` is
        the tenant's.
        """
        if not isinstance(value, TensorValue) or reader.args[0] is not tenant or reader.kwargs:
            return False
        name = get_operator_name(reader)
        value = self._builder.current(value)
        if is_view(reader):
            # made again to put back what was written into the first: it has the same users' right
            first = next(
                (user for user in tenant.users if user in self._values and _is_same_call(user, reader)), None
            )
            return first is not None and all(
                self._replaces(user, reader, self._values[first], part) for user in reader.users
            )
        replaces = reader.target is _COPY or find_target_info(name).replaces_part
        if not replaces or value.buffer.name != part.buffer.name:
            return False
        source = reader.args[1]
        if not isinstance(source, fx.Node) or source is tenant:
            return False
        if reader.target is _COPY:
            return is_whole(value)
        try:
            shape = self._builder.sizes.exprs(source.meta["val"].shape)
            return contains_part(view_replaced_part(name, value, self._arguments(reader), shape), part)
        except NotLowered:
            return False

    def _arguments(self, node: fx.Node) -> dict[str, Value]:
        """Sizes and numbers among the arguments of `node`, by the schema's names.

        Raises:
            NotLowered: one of them is computed later.
        """
        assert isinstance(node.target, Overload)
        arguments: dict[str, Value] = {}
        for position, formal in enumerate(get_schema(node.target).arguments[2:], start=2):
            argument = node.args[position] if position < len(node.args) else formal.default_value
            if isinstance(argument, fx.Node):
                if argument not in self._values:
                    raise NotLowered("a size that is computed later")
                arguments[formal.name] = self._values[argument]
            elif argument is None or isinstance(argument, int):
                arguments[formal.name] = argument
            else:
                raise NotLowered(f"an argument {argument!r}")
        return arguments

    def _is_in_memory(self, target: TensorValue) -> bool:
        """Tell if `target` lies in memory in any case: a kernel's pointwise results need not."""
        return not isinstance(self._builder.buffers.definer(target.buffer.name), Pointwise)

    def _is_stored(self, node: fx.Node) -> bool:
        """Tell whether `node`, or what it becomes by further replacements, is needed in memory."""
        chain = [node]
        while (last := chain[-1]) not in self._stored:
            stored_by = [user for user in last.users if not (is_pointwise(user) or is_reduction(user))]
            onward = [
                user
                for user in last.users
                if find_target_info(get_operator_name(user)).replaces_part and user.args[0] is last
            ]
            if stored_by or not onward:
                self._stored[last] = bool(stored_by)
            else:
                chain.append(onward[0])
        for link in chain:
            self._stored[link] = self._stored[chain[-1]]
        return self._stored[node]


def _is_same_call(a: fx.Node, b: fx.Node) -> bool:
    return a.target is b.target and a.args == b.args and a.kwargs == b.kwargs


def is_bijective(value: TensorValue) -> bool:
    """Tell if `value` is all elements of its buffer, as far as the counts tell."""
    return is_whole(value) or multiply_all(value.shape) == multiply_all(value.buffer.shape)


def _saves_a_launch(target: TensorValue, part: TensorValue, machine: MachineModel) -> bool:
    """Tell if the rest of `target`, read and written, takes longer than one more launch: the kernel that
    stores a part.

    Sizes that nobody knows are large.
    """
    untouched = as_int(multiply_all(target.shape) - multiply_all(part.shape))
    return untouched is None or 2 * untouched * target.dtype.itemsize >= machine.memory.launch_bytes


def list_buffers(value: Value) -> Iterator[str]:
    """Yield the names of buffers that `value` reads, in order."""
    match value:
        case TensorValue():
            yield value.buffer.name
        case NumberValue(scalar):
            yield from (access.buffer for access in list_loads((scalar,)))
        case tuple():
            for item in value:
                yield from list_buffers(item)
        case _:
            return
