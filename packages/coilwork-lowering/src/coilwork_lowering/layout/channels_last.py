"""Rewrite a graph so that its convolutions read and write channels-last.

Operands of convolutions are copied to channels-last, each once, and the metadata of everything after them is
computed anew by torch's meta functions, so the layout flows through the graph. Nodes that depend on captured
strides, and outputs, get copies in those strides.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.facts.alias_analysis import mutated_operands
from coilwork_lowering.facts.fx_nodes import inherit_metadata
from coilwork_lowering.layout.formats import (
    bytes_hint,
    channels_last_format,
    channels_last_order,
    is_channels_last,
    is_dense_in_order,
    same_layout,
    same_placement,
    same_shape,
    stride_order,
    tensors_of,
)
from coilwork_lowering.torch_compat.graphs import disable_fake_cache, is_fake, suppress_guards
from coilwork_lowering.torch_compat.operators import Overload, schema_of

# dependence on strides


_CUDNN: Final = "_cudnn_"


def keeps_captured_operands(target: Any) -> bool:
    """Tell if calls of `target` must get operands with the strides of capture.

    They are higher-order operators, whose nested graphs were traced with these strides; operators of other
    libraries, which may read memory as they like; attention kernels, chosen for the layout that they were
    traced with; and operators that read strides.
    """
    if target is operator.getitem:
        return False
    if not isinstance(target, Overload) or target.namespace not in ("aten", "prims"):
        return True
    name = schema_of(target).name.split("::")[-1]
    return find_info(name).reads_strides or name.startswith(_CUDNN)


def has_fresh_sizes(target: Any) -> bool:
    """Tell if results depend on data: calling `target` again would make new symbols for the same sizes."""
    return isinstance(target, Overload) and (
        torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags
    )


def is_random(target: Any) -> bool:
    """Tell if `target` draws random numbers, which it deals out in order of memory."""
    return isinstance(target, Overload) and torch.Tag.nondeterministic_seeded in target.tags


def gathers_pixels(node: torch.fx.Node) -> bool:
    """Tell if a call reads whole pixels by computed positions, as upsampling does: `x[:, :, i, j]`, of the
    rank of `x`.
    """
    if not isinstance(node.target, Overload) or schema_of(node.target).name not in (
        "aten::index",
        "aten::_unsafe_index",
    ):
        return False
    source, listed, *_ = node.args
    if not isinstance(source, torch.fx.Node) or not isinstance(listed, list | tuple):
        return False
    rank = source.meta["val"].dim()
    positions = listed[2:]
    return (
        len(listed) == rank == node.meta["val"].dim()
        and rank in (4, 5)
        and listed[0] is listed[1] is None
        and all(isinstance(item, torch.fx.Node) for item in positions)
    )


def joins_images(node: torch.fx.Node) -> bool:
    """Tell whether a call concatenates tensors of four or five dimensions each."""
    if not isinstance(node.target, Overload) or schema_of(node.target).name != "aten::cat":
        return False
    rank = node.meta["val"].dim()
    return rank in (4, 5) and all(item.meta["val"].dim() == rank for item in node.all_input_nodes)


def takes_memory_format(target: Any) -> bool:
    """Tell if `target` can be told the layout of its result."""
    return isinstance(target, Overload) and any(
        a.name == "memory_format" for a in schema_of(target).arguments
    )


def output_memory(graph: torch.fx.Graph) -> Counter[torch.fx.Node]:
    """Nodes that made the memory of outputs, and how many different outputs each.

    Where these are two or more, a copy for each of them would part what shares memory.
    """
    return Counter(_owner(item) for item in dict.fromkeys(graph.output_node().all_input_nodes))


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node that made the memory that `node` views."""
    while node.op == "call_function":
        source = _find_view_source(node)
        if source is None:
            return node
        node = source
    return node


def _find_view_source(node: torch.fx.Node) -> torch.fx.Node | None:
    target, maker = node.target, node
    if target is operator.getitem:
        maker = node.all_input_nodes[0]
        target = maker.target
    if not isinstance(target, Overload):
        return None
    schema = schema_of(target)
    for position, formal in enumerate(schema.arguments):
        if formal.alias_info is not None and not formal.alias_info.is_write and position < len(maker.args):
            source = maker.args[position]
            return source if isinstance(source, torch.fx.Node) else None
    return None


# rewriting


_aten: Final = torch.ops.aten


class CannotRewriteError(Exception):
    """A value whose captured layout is needed, but cannot be had by a copy. The graph is left as captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The result of a rewrite.

    Attributes:
        laid_out: names of the calls that read and return channels-last.
        copies: copies inserted.
        copied_bytes: what these read and write.
    """

    laid_out: frozenset[str]
    copies: int
    copied_bytes: int


def rewrite_to_channels_last(
    graph: torch.fx.Graph,
    *,
    operands: Mapping[str, tuple[int, ...]],
    followers: frozenset[str] = frozenset(),
    kept: frozenset[str] = frozenset(),
    fake_mode: AbstractContextManager[object],
) -> Rewritten:
    """Change `graph`: operands of the calls named in `operands`, at those positions, become channels-last.

    Of the calls among them that `followers` names, only if the one before the last, the input, is
    channels-last by then; else these read operands as captured, as do the calls in `kept`.

    Raises:
        CannotRewriteError: `graph` is then half rewritten, and of no use.
    """
    return _Rewrite(graph, operands, followers, kept, fake_mode).run()


class _Rewrite:
    """One walk over a graph, in order.

    A node is *touched* if it was computed anew, *moved* if its strides differ from the captured ones since
    then.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        operands: Mapping[str, tuple[int, ...]],
        followers: frozenset[str],
        kept: frozenset[str],
        fake_mode: AbstractContextManager[object],
    ) -> None:
        self.graph = graph
        self.operands = operands
        self.followers = followers
        self.kept = kept
        self.fake_mode = fake_mode
        self.output_memory = output_memory(graph)
        self.touched: set[torch.fx.Node] = set()
        self.captured: dict[torch.fx.Node, Any] = {}  # of moved nodes
        self.restored: dict[torch.fx.Node, torch.fx.Node] = {}
        self.channels_last: dict[torch.fx.Node, torch.fx.Node] = {}
        self.laid_out: set[str] = set()
        self.copies: dict[torch.fx.Node, torch.Tensor] = {}

    def run(self) -> Rewritten:
        for node in list(self.graph.nodes):
            if node.op == "output":
                self.keep_outputs(node)
            elif node.op == "call_function":
                self.visit(node)
                if self.output_memory[node] > 1 and node in self.captured:
                    self.restore_for_all(node)
        return Rewritten(
            laid_out=frozenset(self.laid_out),
            copies=len(self.copies),
            copied_bytes=sum(2 * bytes_hint(copied) for copied in self.copies.values()),
        )

    def visit(self, node: torch.fx.Node) -> None:
        keeps = node.name in self.kept or keeps_captured_operands(node.target)
        if node.name in self.followers and not self.reads_channels_last(node):
            keeps = True
        elif node.name in self.operands:
            self.lay_out(node)
        if not self.touched.intersection(node.all_input_nodes):
            return
        if self.touched.intersection(mutated_operands(node)):
            raise CannotRewriteError(f"{node.name} writes into a value whose layout changes")
        moved = [operand for operand in node.all_input_nodes if operand in self.captured]
        if has_fresh_sizes(node.target):
            return
        if keeps:
            self.keep_captured(node, moved)
            if node.target is not _aten.as_strided.default:
                return
        elif moved and is_random(node.target):
            self.keep_order_of_draws(node, moved)
        elif self.is_idle_copy(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            self.graph.erase_node(node)
            return
        if self.gathers_in_channels_last(node):
            self.gather_in_channels_last(node)
        elif self.joins_in_channels_last(node):
            self.join_in_channels_last(node)
        elif next(tensors_of(node.meta.get("val")), None) is not None:
            self.compute(node, moved)

    def reads_channels_last(self, node: torch.fx.Node) -> bool:
        """Tell if the input of a convolution is channels-last."""
        source = node.args[self.operands[node.name][-2]]
        assert isinstance(source, torch.fx.Node)
        return is_channels_last(source.meta["val"])

    def lay_out(self, node: torch.fx.Node) -> None:
        """Let a convolution read channels-last, if its kernel returns it then."""
        captured = node.args
        args = list(captured)
        for position in self.operands[node.name]:
            operand = args[position]
            assert isinstance(operand, torch.fx.Node)
            args[position] = self.copy_to_channels_last(operand, before=node)
        node.args = tuple(args)
        result = self.evaluate(node)
        if result is not None and all(is_channels_last(t) for t in tensors_of(result) if t.dim() > 1):
            self.laid_out.add(node.name)
            return
        node.args = captured
        for source, copied in list(self.channels_last.items()):
            if not copied.users:
                del self.channels_last[source], self.copies[copied]
                self.graph.erase_node(copied)

    def copy_to_channels_last(self, node: torch.fx.Node, *, before: torch.fx.Node) -> torch.fx.Node:
        """`node`, or its one copy in channels-last."""
        value = node.meta["val"]
        if is_channels_last(value):
            return node
        if node not in self.channels_last:
            wanted = {"memory_format": channels_last_format(value)}
            self.channels_last[node] = self.insert(
                before, before, _aten.clone.default, node, kwargs=wanted, copies=True
            )
        return self.channels_last[node]

    def compute(self, node: torch.fx.Node, moved: list[torch.fx.Node]) -> None:
        """Metadata of `node` from its operands' present metadata; operands as captured if it
        refuses these.
        """
        before = node.meta["val"]
        after = self.evaluate(node)
        if after is None or not same_shape(before, after):
            if not moved:
                raise CannotRewriteError(f"{node.name} cannot be evaluated again")
            self.keep_captured(node, moved)
            after = self.evaluate(node)
            if after is None or not same_shape(before, after):
                raise CannotRewriteError(f"{node.name} cannot be evaluated again")
        node.meta["val"] = after
        node.meta.pop("tensor_meta", None)
        self.touched.add(node)
        if not same_layout(before, after):
            self.captured[node] = before

    def evaluate(self, node: torch.fx.Node) -> Any:
        """The value of `node` on fake tensors; None if its meta function refuses them, as a view of strides
        may.
        """
        assert callable(node.target)
        args: Any = torch.fx.map_arg(node.args, _value)
        kwargs: Any = torch.fx.map_arg(node.kwargs, _value)
        if node.target is operator.getitem:
            return args[0][args[1]]
        # On the way to the strides of such results, torch asks how sizes compare. What it would answer
        # otherwise for other sizes is the order of dimensions of size one, which decides nothing: no reason
        # for a guard.
        settled = node.name in self.operands or torch.Tag.pointwise in getattr(node.target, "tags", ())
        answered = suppress_guards(self.fake_mode) if settled else nullcontext()
        try:
            with torch.no_grad(), self.fake_mode, disable_fake_cache(self.fake_mode), answered:
                return node.target(*args, **kwargs)
        except (RuntimeError, ValueError):
            return None

    def keep_order_of_draws(self, node: torch.fx.Node, moved: list[torch.fx.Node]) -> None:
        """Let random numbers fall on the elements that they fell on as captured."""
        captured = node.meta["val"]
        if (
            takes_memory_format(node.target)
            and isinstance(captured, torch.Tensor)
            and is_dense_in_order(captured, range(captured.dim()))
        ):
            node.kwargs = {**node.kwargs, "memory_format": torch.contiguous_format}
        else:
            self.keep_captured(node, moved)

    def gathers_in_channels_last(self, node: torch.fx.Node) -> bool:
        """Tell if `node` reads pixels of a value that is channels-last now, and nobody outside sees its
        result.
        """
        if not gathers_pixels(node) or self.output_memory[node]:
            return False
        source = node.all_input_nodes[0]
        return source in self.captured and is_channels_last(source.meta["val"])

    def gather_in_channels_last(self, node: torch.fx.Node) -> None:
        """Read whole pixels, channels innermost: of `x[:, :, i, j]`, torch returns the
        channels-first order.
        """
        source, listed, *_ = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(listed, list | tuple)
        turned = self.permute_to_pixels(source, before=node)
        self.replace_by_pixels(node, self.insert(node, node, node.target, turned, [None, *listed[2:]]))

    def joins_in_channels_last(self, node: torch.fx.Node) -> bool:
        """Tell if `node` concatenates values of which some, not all, are channels-last now, and nobody sees
        the result.
        """
        if not joins_images(node) or self.output_memory[node]:
            return False
        following = [is_channels_last(item.meta["val"]) for item in node.all_input_nodes]
        moved = any(
            item in self.captured and follows
            for item, follows in zip(node.all_input_nodes, following, strict=True)
        )
        return moved and not all(following)

    def join_in_channels_last(self, node: torch.fx.Node) -> None:
        """Concatenate pixels, channels innermost: of mixed layouts, torch makes the channels-first one."""
        listed, *rest = node.args
        assert isinstance(listed, list | tuple)
        rank = node.meta["val"].dim()
        dim = rest[0] if rest else node.kwargs.get("dim", 0)
        assert isinstance(dim, int)
        parts: list[torch.fx.Node] = []
        for item in listed:
            assert isinstance(item, torch.fx.Node)
            parts.append(self.permute_to_pixels(item, before=node))
        along = channels_last_order(rank).index(dim % rank)
        self.replace_by_pixels(node, self.insert(node, node, node.target, parts, along))

    def permute_to_pixels(self, node: torch.fx.Node, *, before: torch.fx.Node) -> torch.fx.Node:
        """A view of `node` with channels as its last dimension."""
        order = list(channels_last_order(node.meta["val"].dim()))
        return self.insert(before, before, _aten.permute.default, node, order)

    def replace_by_pixels(self, node: torch.fx.Node, pixels: torch.fx.Node) -> None:
        """Let everybody read `pixels`, whose last dimension is channels, in place of `node`."""
        order = channels_last_order(pixels.meta["val"].dim())
        back = sorted(range(len(order)), key=lambda position: order[position])
        laid_out = self.insert(node, node, _aten.permute.default, pixels, back)
        self.captured[laid_out] = node.meta["val"]
        node.replace_all_uses_with(laid_out)
        self.graph.erase_node(node)

    def is_idle_copy(self, node: torch.fx.Node) -> bool:
        """Tell if a copy made for the layout's sake now finds that layout. Memory of outputs stays a copy."""
        if node.target is not _aten.clone.default or self.output_memory[node]:
            return False
        source = node.all_input_nodes[0]
        return (
            node.kwargs.get("memory_format") not in (None, torch.preserve_format)
            and source in self.captured
            and same_layout(source.meta["val"], node.meta["val"])
        )

    # back to the captured layout

    def keep_captured(self, user: torch.fx.Node, operands: Iterable[torch.fx.Node]) -> None:
        """Let `user` read `operands` with their captured strides."""
        for operand in operands:
            if operand in self.captured:
                user.replace_input_with(operand, self.restore_captured(operand, before=user))

    def keep_outputs(self, output: torch.fx.Node) -> None:
        """Let outputs have their captured strides; copies stand behind what they copy, whose memory then
        ends.
        """
        for item in output.all_input_nodes:
            if item in self.captured:
                output.replace_input_with(item, self.restore_captured(item, before=item.next))

    def restore_for_all(self, node: torch.fx.Node) -> None:
        """Let every user of `node` read it with its captured strides."""
        users = list(node.users)
        restored = self.restore_captured(node, before=node.next)
        for user in users:
            user.replace_input_with(node, restored)

    def restore_captured(self, node: torch.fx.Node, *, before: torch.fx.Node) -> torch.fx.Node:
        """`node` with its captured strides, by one copy for all who ask."""
        if node not in self.restored:
            self.restored[node] = self.copy_as_captured(node, before)
        return self.restored[node]

    def copy_as_captured(self, node: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
        wanted = self.captured[node]
        if not isinstance(wanted, torch.Tensor):
            raise CannotRewriteError(f"{node.name} is a list of tensors, needed as captured")
        present = node.meta["val"]
        strides = wanted.stride()
        if same_placement(wanted, present) and all(type(n) is int for n in (*wanted.shape, *strides)):
            copy = self.insert(
                before, node, _aten.as_strided.default, node, list(wanted.shape), list(strides)
            )
        else:
            row_major = tuple(range(wanted.dim()))
            order = row_major if is_dense_in_order(wanted, row_major) else stride_order(wanted)
            copy = self.copy_in_order(node, order, before)
        if not same_placement(wanted, copy.meta["val"]):
            raise CannotRewriteError(f"no copy gives {node.name} its captured strides")
        return copy

    def copy_in_order(
        self, node: torch.fx.Node, order: tuple[int, ...], before: torch.fx.Node
    ) -> torch.fx.Node:
        """A dense copy of `node` whose dimensions nest in `order`, the outermost first."""
        plain = {"memory_format": torch.contiguous_format}
        row_major = tuple(range(len(order)))
        if order == row_major:
            return self.insert(before, node, _aten.clone.default, node, kwargs=plain, copies=True)
        turned = self.insert(before, node, _aten.permute.default, node, list(order))
        copied = self.insert(before, node, _aten.clone.default, turned, kwargs=plain, copies=True)
        back = sorted(row_major, key=lambda position: order[position])
        return self.insert(before, node, _aten.permute.default, copied, back)

    def insert(
        self,
        before: torch.fx.Node,
        like: torch.fx.Node,
        target: Any,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        copies: bool = False,
    ) -> torch.fx.Node:
        """A call of `target` in front of `before`, with the origin of `like`."""
        with self.graph.inserting_before(before):
            new = self.graph.call_function(target, args, kwargs or {})
        new.meta.update(inherit_metadata(like))
        new.meta["val"] = self.evaluate(new)
        if new.meta["val"] is None:
            raise CannotRewriteError(f"no copy of {args[0]}")
        self.touched.add(new)
        if copies:
            self.copies[new] = new.meta["val"]
        return new


def _value(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    if value is None or not all(is_fake(t) for t in tensors_of(value)):
        raise CannotRewriteError(f"{node.name} has no fake tensor")
    return value
