"""Pad sizes of matrix products to whole vectors: zeros in the operands, more columns in the result."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.aten_layouts.formats import Size, estimate_bytes, is_dense_in_order
from coilwork_lowering.aten_layouts.products import (
    Product,
    explain_stride_dependence,
    is_unaligned,
    make_row_major_strides,
    restride_views,
    set_value,
)
from coilwork_lowering.aten_layouts.row_blocking import RowBlocking
from coilwork_lowering.facts.fx_nodes import get_packet_name, insert_call, is_pointwise, view_base

_aten: Final = torch.ops.aten
# Copies live beside the graph's inputs and outputs, in bytes or as a share of these; an operand's copy only
# as long as the product runs, beside the product's own tensors. Larger ones show in the peak: that of a
# vocabulary's weight is larger than all that a model of a short batch has in memory.
_SMALL: Final = 16_000_000
# Blocks of rows.
_ROOM: Final = 64_000_000
_SHARE_OF_GRAPH: Final = 0.05
_SHARE_OF_PRODUCT: Final = 0.25
# A product that takes five times as long as captured, whatever is done with its rows, gets more room. A
# result's copy is made when those of the operands are gone.
_MUCH_SLOWER: Final = 4
_SHARE_OF_SLOW_PRODUCT: Final = 0.75

Pads = Mapping[int, int]
"""Elements to append, by dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """An operand to be padded.

    Attributes:
        place: position among the product's arguments.
        base: what is padded.
        turns: permutations between `base` and the operand, the first to apply first.
        pads: what to append to `base`.
        fused: whether the code that computes `base` writes the padding, and everybody reads the padded
            memory.
        copied_bytes: size of the padded copy, where it is one.
    """

    place: int
    base: torch.fx.Node
    turns: tuple[torch.fx.Node, ...]
    pads: Pads
    fused: bool = False
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The way in which the wider result is read.

    Attributes:
        copied: whether the columns that matter are copied into dense memory, for the caller.
    """

    copied: bool = False


class SizePadding:
    """Rewrites one graph, product by product in order.

    `names`, `reasons`, `saved_us` and `padding_bytes` say what was done: nodes with padding in their memory,
    a sentence per product, and what all of them together save and add. `by_rows` computes what cannot be
    padded; None: nothing. With `stores_odd_rows`, kernels store dense rows of odd lengths as fast as others,
    if rows of the operands are whole vectors.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        mode: AbstractContextManager[object],
        *,
        by_rows: bool,
        stores_odd_rows: bool,
    ) -> None:
        self.graph = graph
        self.mode = mode
        self.stores_odd_rows = stores_odd_rows
        self.names: list[str] = []
        self.reasons: list[str] = []
        self.aligned = 0
        self.saved_us = 0.0
        self.padding_bytes = 0
        share = int(_SHARE_OF_GRAPH * _count_held_bytes(graph))
        self._room = max(_SMALL, share)
        self.by_rows = RowBlocking(graph, mode, max(_ROOM, share)) if by_rows else None
        # what is read of padded memory, the padded memory, and where zeros follow in it
        self._zeros: dict[torch.fx.Node, tuple[torch.fx.Node, Pads]] = {}
        self._read_as: dict[torch.fx.Node, torch.fx.Node] = {}

    def judge(self, product: Product) -> None:
        """Pad `product` if all of it can be and that is worth it; it has sizes that are no whole vectors."""
        name = product.node.name
        figures, slower_us = product.figures, 0.0
        planned = self._operands(product)
        result = self._result(product) if not isinstance(planned, str) else planned
        narrow = self._find_narrow_operands(product, planned, result)
        if narrow is not None:
            planned, result = narrow, None
            slower_us = _slower_us(product)
        if isinstance(planned, str) or isinstance(result, str):
            self._leave(product, str(result))
            return
        cost_us = _cost_us(product, planned, result)
        lost_us = product.lost_by_sizes_us - slower_us
        what = f"sizes of no whole vectors lose {lost_us:.1f} us, padding them costs {cost_us:.1f} us"
        if lost_us - cost_us < max(figures.least_gain_us, figures.least_gain_share * lost_us):
            self._leave(product, what)
            return
        self._apply(product, planned, result)
        self.aligned += 1
        self.saved_us += lost_us - cost_us
        self.reasons.append(f"{name} with padded sizes: {what}")

    def _find_narrow_operands(
        self, product: Product, planned: tuple[_Operand, ...] | str, result: _Result | str | None
    ) -> tuple[_Operand, ...] | None:
        """Return the operands to pad for a kernel that stores rows as captured. None if there is none, or a
        wider result can be had for less.
        """
        if not self.stores_odd_rows or not (
            isinstance(result, str) or (result is not None and result.copied)
        ):
            return None
        narrow, slower_us = self._operands(product, keeps_columns=True), _slower_us(product)
        if isinstance(narrow, str):
            return None
        if isinstance(planned, str) or isinstance(result, str):
            return narrow or None
        is_cheaper = slower_us + _cost_us(product, narrow, None) < _cost_us(product, planned, result)
        return narrow if is_cheaper else None

    def _leave(self, product: Product, why: str) -> None:
        """`product` as captured, or by rows."""
        if self.by_rows is None:
            self.reasons.append(f"{product.node.name} as captured: {why}")
            return
        self.reasons.append(self.by_rows.judge(product, why))

    # what would have to be done

    def _operands(self, product: Product, *, keeps_columns: bool = False) -> tuple[_Operand, ...] | str:
        """Operands to pad, or what stands in the way. With `keeps_columns`, the result gets no more of them:
        of the right operand they are padding between rows.
        """
        inner, columns = product.padding
        left, right = product.tensors[:2]
        if keeps_columns and right.meta["val"].stride()[-1] != 1:
            columns = 0
        rank = product.node.meta["val"].dim()
        wanted = [(product.places[0], left, {rank - 1: inner}), (product.places[1], right, {rank - 2: inner})]
        wanted[1][2][rank - 1] = columns
        if product.added is not None and not keeps_columns:
            bias = product.node.args[product.added]
            assert isinstance(bias, torch.fx.Node)
            shape = bias.meta["val"].shape
            if shape and not (type(shape[-1]) is int and shape[-1] == 1):
                wanted.append((product.added, bias, {len(shape) - 1: columns}))
        operands: list[_Operand] = []
        room = self._find_room(product)
        for place, tensor, pads in wanted:
            needed = {k: n for k, n in pads.items() if n}
            if not needed:
                if place in product.places and is_unaligned(tensor.meta["val"], product.figures.vector_bytes):
                    return f"{tensor.name}: rows stay unaligned"
                continue
            operand = self._operand(place, tensor, needed)
            if place in product.places and not self._ends_aligned(operand, product.figures.vector_bytes):
                return f"{operand.base.name}: rows stay unaligned"
            operands.append(operand)
        copied = sum(operand.copied_bytes for operand in operands)
        if copied > room:
            return f"copies of {copied} bytes would be large beside what is in memory"
        return tuple(operands)

    def _find_room(self, product: Product) -> int:
        """Bytes that copies of operands may take."""
        share = _SHARE_OF_SLOW_PRODUCT if _has_very_slow_rows(product) else _SHARE_OF_PRODUCT
        return max(self._room, int(share * sum(estimate_bytes(t.meta["val"]) for t in product.tensors)))

    def _operand(self, place: int, tensor: torch.fx.Node, pads: Pads) -> _Operand:
        """Return how `tensor` gets `pads`, which count its own dimensions."""
        base, turns = tensor, list[torch.fx.Node]()
        order = list(range(tensor.meta["val"].dim()))  # of base, by dimensions of tensor
        while find_info(get_packet_name(base.target)).is_permutation and base.op == "call_function":
            turns.insert(0, base)
            turned = _permutation_of(base)
            order = [turned[k] for k in order]
            source = base.args[0]
            assert isinstance(source, torch.fx.Node)
            base = source
        own = {order[k]: n for k, n in pads.items()}
        fused = self._zeros.get(base, (base, None))[1] == own or self._can_fuse(base, own)
        copied = 0 if fused else estimate_bytes(self._enlarge_fake(base.meta["val"], own))
        return _Operand(
            place=place, base=base, turns=tuple(turns), pads=own, fused=fused, copied_bytes=copied
        )

    def _can_fuse(self, base: torch.fx.Node, pads: Pads) -> bool:
        """Tell if `base` is made by generated code for readers that all can read padded memory instead."""
        node = owner = view_base(base)
        if not is_pointwise(owner) or explain_stride_dependence(base):
            return False
        while node is not base:
            if len(node.users) != 1:
                return False
            (node,) = node.users
        return restride_views(base, self._narrow_fake(base.meta["val"], pads), self.mode) is not None

    def _ends_aligned(self, operand: _Operand, vector_bytes: int) -> bool:
        """Tell if rows of the padded base are whole vectors."""
        with self.mode:
            return not is_unaligned(self._enlarge_fake(operand.base.meta["val"], operand.pads), vector_bytes)

    def _result(self, product: Product) -> _Result | str | None:
        """Return how the wider result will be read, None if it gets no wider; or what stands in the way."""
        _, columns = product.padding
        node = product.node
        if not columns:
            return None
        value = node.meta["val"]
        obstacle = explain_stride_dependence(node)
        if not obstacle:
            narrowed = self._narrow_fake(value, {value.dim() - 1: columns})
            if restride_views(node, narrowed, self.mode) is not None:
                return _Result()
            obstacle = "a view needs dense rows"
        size = estimate_bytes(value)
        if size > (self._find_room(product) if _has_very_slow_rows(product) else self._room):
            return f"{obstacle}, and a copy of {size} bytes would be large beside what is in memory"
        return _Result(copied=True)

    # doing it

    def _apply(self, product: Product, operands: tuple[_Operand, ...], result: _Result | None) -> None:
        node = product.node
        args = list(node.args)
        for operand in operands:
            padded = self._pad_operand(operand, product)
            if operand.place == product.places[1] and result is None:
                padded = self._cut_columns(padded, node)
            args[operand.place] = padded
        node.args = tuple(args)
        for turn in reversed([turn for operand in operands for turn in operand.turns]):
            if not turn.users:
                self.graph.erase_node(turn)
        if result is None:
            return
        value = node.meta["val"]
        wider = self._enlarge_fake(value, {value.dim() - 1: product.padding[1]})
        self.padding_bytes += estimate_bytes(wider) - estimate_bytes(value)
        set_value(node, wider)
        self.names.append(node.name)
        readers = list(node.users)
        read = self._narrow(node, value, after=node)
        if result.copied:
            dense = {"memory_format": torch.contiguous_format}
            read = self._insert(read.next, node, _aten.clone.default, (read,), value, dense)
        self._redirect(node, read, readers)

    def _pad_operand(self, operand: _Operand, product: Product) -> torch.fx.Node:
        """Return the padded operand in the graph, turned as the product wants it."""
        base = self._read_as.get(
            operand.base, operand.base
        )  # another operand of this product may be a view of it
        known = self._zeros.get(base)
        if known is not None and known[1] == operand.pads:
            found = known[0]
        else:
            found = self._pad(replace(operand, base=base), product)
        for turn in operand.turns:
            args = (found, *turn.args[1:])
            with self.mode:
                call: Any = turn.target
                value = call(found.meta["val"], *turn.args[1:], **turn.kwargs)
            found = self._insert(product.node, turn, turn.target, args, value, dict(turn.kwargs))
            _tag_copy_for_backward(found, base, product.node)
        return found

    def _cut_columns(self, right: torch.fx.Node, product: torch.fx.Node) -> torch.fx.Node:
        """`right` with the columns of the product's result."""
        columns, last = product.meta["val"].shape[-1], right.meta["val"].dim() - 1
        if right.meta["val"].shape[last] == columns:
            return right
        with self.mode:
            part = _aten.slice.Tensor(right.meta["val"], last, 0, columns)
        return self._insert(product, right, _aten.slice.Tensor, (right, last, 0, columns), part)

    def _pad(self, operand: _Operand, product: Product) -> torch.fx.Node:
        base, value = operand.base, operand.base.meta["val"]
        appended = [n for k in reversed(range(value.dim())) for n in (0, operand.pads.get(k, 0))]
        before, like = (base.next, base) if operand.fused else (product.node, product.node)
        readers = list(base.users)
        made = self._insert(
            before,
            like,
            _aten.constant_pad_nd.default,
            (base, appended, 0),
            self._enlarge_fake(value, operand.pads),
        )
        self.names.append(made.name)
        self.padding_bytes += estimate_bytes(made.meta["val"]) - (
            estimate_bytes(value) if operand.fused else 0
        )
        if operand.fused:
            read = self._narrow(made, value, after=made)
            self._zeros[read] = (made, operand.pads)
            self._read_as[base] = read
            self._redirect(base, read, readers)
            self._sum_zeros(made, read)
        else:
            _tag_copy_for_backward(made, base, product.node)
        return made

    def _sum_zeros(self, made: torch.fx.Node, read: torch.fx.Node) -> None:
        """Let sums of what is `read` of `made` add its zeros, too, so that they share the kernel that writes
        these.

        A sum that gets longer by that is read as its first part, if that is dense.
        """
        for total in [
            user for user in read.users if get_packet_name(user.target) == "sum" and len(user.args) > 1
        ]:
            value, call = total.meta["val"], cast(Any, total.target)
            with self.mode:
                wider = call(made.meta["val"], *total.args[1:], **total.kwargs)
            sizes = enumerate(zip(wider.shape, value.shape, strict=True))
            pads = {k: has - had for k, (has, had) in sizes if has != had}
            if pads and not self._is_dense_part(total, pads):
                continue
            total.replace_input_with(read, made)
            set_value(total, wider)
            if pads:
                self.names.append(total.name)
                self.padding_bytes += estimate_bytes(wider) - estimate_bytes(value)
                readers = list(total.users)
                self._redirect(total, self._narrow(total, value, after=total), readers)

    def _is_dense_part(self, node: torch.fx.Node, pads: Pads) -> bool:
        """Tell if what precedes `pads` in a longer `node` lies together, and the caller finds the strides it
        knows.
        """
        value = node.meta["val"]
        if any(type(size) is not int or size != 1 for k in pads for size in value.shape[:k]):
            return False
        views = restride_views(node, self._narrow_fake(value, pads), self.mode)
        return views is not None and all(
            view.stride() == base.meta["val"].stride()
            for base, view in views.items()
            if any(user.op == "output" for user in base.users)
        )

    def _narrow(self, wide: torch.fx.Node, value: torch.Tensor, *, after: torch.fx.Node) -> torch.fx.Node:
        """Return the captured `value`, as slices of `wide`."""
        found = wide
        for k, (has, wants) in enumerate(zip(wide.meta["val"].shape, value.shape, strict=True)):
            if type(has) is int and type(wants) is int and has != wants:
                with self.mode:
                    part = _aten.slice.Tensor(found.meta["val"], k, 0, wants)
                found = self._insert(after.next, wide, _aten.slice.Tensor, (found, k, 0, wants), part)
                after = found
        return found

    def _redirect(self, old: torch.fx.Node, new: torch.fx.Node, readers: list[torch.fx.Node]) -> None:
        """Let `readers` of `old` read `new`, and views say what they are then."""
        for reader in readers:
            reader.replace_input_with(old, new)
        values = restride_views(new, new.meta["val"], self.mode)
        assert values is not None, "views were tried before"
        for node, value in values.items():
            if node is not new:
                set_value(node, value)

    def _insert(
        self,
        before: torch.fx.Node,
        like: torch.fx.Node,
        target: Any,
        args: tuple[Any, ...],
        value: torch.Tensor,
        kwargs: dict[str, Any] | None = None,
    ) -> torch.fx.Node:
        """Return a call of `target` in front of `before`, with the origin of `like`."""
        return insert_call(self.graph, before, like, target, args, value, kwargs)

    def _enlarge_fake(self, value: torch.Tensor, pads: Pads) -> torch.Tensor:
        """Return a dense fake tensor like `value`, with `pads` appended."""
        shape: tuple[Size, ...] = tuple(
            size + pads[k] if k in pads else size for k, size in enumerate(value.shape)
        )
        with self.mode:
            return torch.empty_strided(
                shape, make_row_major_strides(shape), dtype=value.dtype, device=value.device
            )

    def _narrow_fake(self, value: torch.Tensor, pads: Pads) -> torch.Tensor:
        """`value` as part of a dense fake tensor with `pads` appended."""
        part = self._enlarge_fake(value, pads)
        with self.mode:
            for k in pads:
                part = _aten.slice.Tensor(part, k, 0, value.shape[k])
        return part


def _slower_us(product: Product) -> float:
    """Return by how much longer a kernel takes that stores rows as captured than one with padded rows."""
    return product.odd_stores_us - product.enlarged_us


def _cost_us(product: Product, operands: tuple[_Operand, ...], result: _Result | None) -> float:
    """Return the time of the copies that padding `product` takes."""
    copied = [operand.copied_bytes for operand in operands if operand.copied_bytes]
    if result is not None and result.copied:
        copied.append(estimate_bytes(product.node.meta["val"]))
    figures = product.figures
    return sum(2 * n / figures.copied_bytes_per_us + figures.copy_us for n in copied)


def _has_very_slow_rows(product: Product) -> bool:
    """Tell if `product` takes several times as long as captured, and so it does by rows."""
    vector_bytes = product.figures.vector_bytes
    if not any(is_unaligned(tensor.meta["val"], vector_bytes) for tensor in product.tensors[:2]):
        return False
    return product.lost_by_sizes_us >= _MUCH_SLOWER * product.enlarged_us


def can_pad_sizes(product: Product) -> bool:
    """Tell if sizes decide the kernel of `product`, and every unaligned one can be padded."""
    value = product.node.meta["val"]
    return (
        any(product.padding)
        and "recompute" not in product.node.meta
        and is_dense_in_order(value, range(value.dim()))
    )


def _tag_copy_for_backward(made: torch.fx.Node, base: torch.fx.Node, product: torch.fx.Node) -> None:
    """Tag a padded copy that only the backward reads, so that the backward makes it.

    The partitioner does not know that padding is cheap, and would let the forward save the copy.
    """
    if product.meta.get("partitioner_tag") == "is_backward" and view_base(base).op == "placeholder":
        made.meta["partitioner_tag"] = "must_be_in_backward"


def _permutation_of(turn: torch.fx.Node) -> list[int]:
    """Dimensions of the operand of a permutation, by dimensions of its result."""
    rank = turn.meta["val"].dim()
    order = list(range(rank))
    kind = get_packet_name(turn.target)
    if kind == "permute":
        dims = turn.args[1]
        assert isinstance(dims, list | tuple)
        return [int(d) % rank for d in dims if isinstance(d, int)]
    if kind == "transpose":
        first, second = (int(d) % rank for d in turn.args[1:3] if isinstance(d, int))
        order[first], order[second] = order[second], order[first]
        return order
    return order[::-1]


def _count_held_bytes(graph: torch.fx.Graph) -> int:
    """Bytes of the graph's inputs and outputs."""
    held = [n for n in graph.nodes if n.op == "placeholder"] + list(graph.output_node().all_input_nodes)
    values = [node.meta.get("val") for node in dict.fromkeys(held)]
    return sum(estimate_bytes(v) for v in values if isinstance(v, torch.Tensor))
