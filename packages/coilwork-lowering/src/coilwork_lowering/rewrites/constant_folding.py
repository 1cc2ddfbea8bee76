"""Constant folding of frozen parameters, in a preparation that runs once instead of in each call.

`split_constants` splits a graph in two: what frozen inputs alone decide (weights converted, laid out, padded,
or with a batch norm folded in), and the rest, which takes the prepared values as inputs. Nothing is burnt
into code, so a caller whose parameters change can prepare again.

`pack_weights` puts weights into oneDNN's blocked layouts on CPUs. A packed weight has the weight's shape and
type and no strides, and only oneDNN's operators may read it. The graph describes it as dense. `freeze` and
`rewrite_captured` are the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.operators import find_target_info
from coilwork_lowering.aten_layouts import lay_out_frozen_weights, pad_products
from coilwork_lowering.facts.alias_analysis import analyse_memory, find_owner, is_returned
from coilwork_lowering.facts.fx_nodes import CONVOLUTION, inherit_metadata
from coilwork_lowering.options import LayoutOptions, RewriteOptions
from coilwork_lowering.rewrites.batch_norm_folding import FROZEN
from coilwork_lowering.rewrites.call_normalization import AtenVocabulary, CapturedVocabulary, Read
from coilwork_lowering.rewrites.clean_up import clean_up_copy, drop_dead_code, is_pure
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.packed_convolutions import (
    Activation,
    copy_to_channels_last,
    find_activation,
    insert_packed_convolution,
    is_worth_packing,
)
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite, is_like
from coilwork_lowering.rewrites.table import choose_rewrites
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode
from coilwork_lowering.torch_compat.operators import (
    get_overload,
    is_packing,
    is_quantizing,
    list_packed_types,
)

# splitting


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
        """Bytes of the prepared values."""
        return sum(_count_dense_bytes(value) for value in self.values)


def split_constants(gm: fx.GraphModule, frozen: Iterable[int]) -> Prepared | None:
    """Split `gm` in two, taking the inputs at positions `frozen` for constant; `None` if that saves nothing.

    Views of inputs stay where they are, since they cost nothing. Results of the graph, memory that it writes
    into, random numbers, quantised values, and values that grow beyond `MOST_GROWTH` stay, too. `gm` is not
    changed.
    """
    graph = copy_graph(gm.graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = analyse_memory(graph).written
    positions = {inputs[p]: p for p in frozen if p < len(inputs) and inputs[p] not in written}
    sources_of = _find_constants(graph, positions)
    prepared = [node for node in graph.nodes if _is_worth_preparing(node, sources_of, written)]
    if not prepared:
        return None
    preparation, sources = _make_preparation(gm, prepared, sources_of, positions)
    values = tuple(node.meta["val"] for node in prepared)
    # all of them before the first is erased: that one may be what they are inserted before
    with graph.inserting_before(_next_of_last(inputs)):
        inputs_of_main = [graph.placeholder(f"prepared_{number}") for number in range(len(prepared))]
    for node, value in zip(prepared, inputs_of_main, strict=True):
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


def find_constants(graph: fx.Graph, frozen: Iterable[int]) -> frozenset[fx.Node]:
    """Nodes that unwritten inputs of `graph` at positions `frozen` alone decide, those inputs included."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = analyse_memory(graph).written
    positions = {inputs[p]: p for p in frozen if p < len(inputs) and inputs[p] not in written}
    return frozenset(_find_constants(graph, positions))


def _next_of_last(inputs: list[fx.Node]) -> fx.Node:
    return inputs[-1].next


def _find_constants(graph: fx.Graph, positions: dict[fx.Node, int]) -> dict[fx.Node, frozenset[fx.Node]]:
    """Nodes that frozen inputs alone decide, with those inputs."""
    sources_of = {node: frozenset({node}) for node in positions}
    for node in graph.nodes:
        if node.op != "call_function" or not node.all_input_nodes or not _is_repeatable(node.target):
            continue
        if all(source in sources_of for source in node.all_input_nodes) and _has_static_strides(
            node.meta.get("val")
        ):
            sources_of[node] = frozenset().union(*(sources_of[source] for source in node.all_input_nodes))
    return sources_of


def _is_repeatable(target: Any) -> bool:
    # a quantised value would become an input of the type that torch captures it as
    return (is_pure(target) and not is_quantizing(target)) or is_packing(target)


def _has_static_strides(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_has_static_strides(item) for item in value)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _is_worth_preparing(
    node: fx.Node, sources_of: dict[fx.Node, frozenset[fx.Node]], written: frozenset[fx.Node]
) -> bool:
    if node not in sources_of or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    owner = find_owner(node)
    if owner.op == "placeholder" or owner in written or is_returned(owner):
        return False
    if all(user in sources_of for user in node.users):
        return False
    size = _count_dense_bytes(node.meta["val"])
    return size <= max(
        SMALL_BYTES, MOST_GROWTH * sum(_count_dense_bytes(s.meta["val"]) for s in sources_of[node])
    )


def _count_dense_bytes(value: torch.Tensor) -> int:
    """Return the memory that a tensor of this shape takes by itself."""
    return prod(value.shape) * value.element_size()


def _make_preparation(
    gm: fx.GraphModule,
    prepared: list[fx.Node],
    sources_of: dict[fx.Node, frozenset[fx.Node]],
    positions: dict[fx.Node, int],
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    used = frozenset().union(*(sources_of[node] for node in prepared))
    sources = sorted(used, key=positions.__getitem__)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in sources:
        copies[node] = graph.placeholder(node.name)
    for node in sorted(_find_needed(prepared)):
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in prepared))
    return fx.GraphModule(gm, graph), tuple(positions[node] for node in sources)


def _find_needed(results: list[fx.Node]) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    open_nodes = list(results)
    while open_nodes:
        node = open_nodes.pop()
        if node not in needed:
            needed.add(node)
            open_nodes.extend(node.all_input_nodes)
    return needed


# weight packing


def pack_weights(
    gm: fx.GraphModule, frozen: Iterable[int], find_model: FindModel = find_like_model
) -> tuple[fx.GraphModule, int]:
    """`gm` with the weights packed that the inputs at positions `frozen` decide, and how many calls read such
    weights.

    `gm` itself, and 0, where torch lacks oneDNN or nothing is packed. Results round as oneDNN rounds them.
    """
    mode = find_fake_mode(gm)
    types = list_packed_types()
    if mode is None or not types:
        return gm, 0
    graph = copy_graph(gm.graph)
    constants = find_constants(graph, frozen)
    vocabulary = AtenVocabulary()
    images: dict[fx.Node, fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        read = vocabulary.read(node)
        if (
            read is None
            or not _is_packable(read, constants, types)
            or not _gains_by_packing(node, read, find_model)
        ):
            continue
        activation = find_activation(node) if read.op == CONVOLUTION else None
        replaced = (node,) if activation is None else (*activation.nodes, node)
        with graph.inserting_before(node), mode:
            packed = _pack_call(graph, node, read, activation, images)
        if packed is not None:
            replaced[0].replace_all_uses_with(packed)
            for old in replaced:
                graph.erase_node(old)
            count += 1
    if not count:
        return gm, 0
    packed_gm = fx.GraphModule(gm, graph)
    packed_gm.meta.update(gm.meta)
    return packed_gm, count


@dataclass(frozen=True, slots=True)
class _Operands:
    """The operands of a product or convolution; `bias` may be None."""

    value: fx.Node
    weight: fx.Node
    bias: fx.Node | None


def _find_operands(read: Read) -> _Operands | None:
    arguments = read.arguments
    if read.op == CONVOLUTION:
        return (
            None
            if arguments["transposed"]
            else _Operands(arguments["input"], arguments["weight"], arguments["bias"])
        )
    roles = find_target_info(read.op).product
    if roles is None or not roles.is_plain or any(arguments.get(name, 1) != 1 for name in ("alpha", "beta")):
        return None
    return _Operands(
        arguments[roles.left], arguments[roles.right], arguments[roles.added] if roles.added else None
    )


def _is_packable(read: Read, constants: frozenset[fx.Node], types: tuple[torch.dtype, ...]) -> bool:
    """Tell if `read` has a frozen weight, a bias of one dimension if any, and one type that oneDNN computes
    in, on a CPU.
    """
    operands = _find_operands(read)
    if operands is None or operands.weight not in constants or operands.value in constants:
        return False
    value, weight = operands.value.meta["val"], operands.weight.meta["val"]
    bias = None if operands.bias is None else operands.bias.meta["val"]
    tensors = [tensor for tensor in (value, weight, bias) if tensor is not None]
    if any(
        not has_trait(tensor.device.type, CPU_LIBRARIES) or tensor.dtype is not value.dtype
        for tensor in tensors
    ):
        return False
    ranks = (4,) if read.op == CONVOLUTION else (2,)
    return bool(value.dtype in types and value.dim() in ranks and (bias is None or bias.dim() == 1))


def _gains_by_packing(node: fx.Node, read: Read, find_model: FindModel) -> bool:
    """Tell if sizes are known, and a packed weight saves time in a call.

    Of a product of many rows, laying out the weight is lost in the sums.
    """
    operands = _find_operands(read)
    assert operands is not None
    result, operand = list(node.meta["val"].shape), list(operands.value.meta["val"].shape)
    if not all(type(size) is int for size in (*result, *operand)):
        return False
    loops = find_model(str(node.meta["val"].device)).loops
    if read.op == CONVOLUTION:
        return is_worth_packing(node, read, loops.least_packed_terms)
    channels, rows = result.pop(1), prod(result)
    # oneDNN refuses sums of nothing
    if 0 in operand:
        return False
    # of one row in f32 the libraries are equally fast
    least = 2 if node.meta["val"].dtype is torch.float32 else 1
    return bool(channels > 0 and least <= rows <= loops.packed_rows)


def _pack_call(
    graph: fx.Graph,
    node: fx.Node,
    read: Read,
    activation: Activation | None,
    images: dict[fx.Node, fx.Node],
) -> fx.Node | None:
    """Return the call in place of `node`, or of its `activation`; None if its result would be laid out
    otherwise.

    `images` are images in channels-last so far, by those that lie otherwise.
    """
    operands = _find_operands(read)
    assert operands is not None
    inserted: list[fx.Node] = []
    result: fx.Node | None

    def call(name: str, args: tuple[Any, ...], value: Any, **named: Any) -> fx.Node:
        new = graph.call_function(get_overload(name), args, named)
        new.meta.update(inherit_metadata(node))
        new.meta["val"] = value
        inserted.append(new)
        return new

    weight, bias = operands.weight, operands.bias
    if read.op == CONVOLUTION:
        if operands.value not in images:
            images[operands.value] = copy_to_channels_last(call, operands.value)
        result, made = insert_packed_convolution(call, images[operands.value], read, node, activation)
        images[result] = made
    else:
        result = _pack_linear(call, operands.value, weight, bias)
    if result is not None and is_like(result.meta["val"], node.meta["val"]):
        return result
    for image in [image for image, laid_out in images.items() if laid_out in inserted]:
        del images[image]
    for new in reversed(inserted):
        graph.erase_node(new)
    return None


def _pack_linear(call: Any, value: fx.Node, weight: fx.Node, bias: fx.Node | None) -> fx.Node | None:
    held, shape = weight.meta["val"], value.meta["val"].shape
    columns = held.shape[1]
    if bias is not None and tuple(bias.meta["val"].shape) != (columns,):
        return None
    # by rows of the result's columns, as the weight of a linear layer is
    turned = call("aten.permute.default", (weight, [1, 0]), held.permute(1, 0))
    dense = held.permute(1, 0).contiguous()
    if not held.permute(1, 0).is_contiguous():
        turned = call("aten.clone.default", (turned,), dense)
    packed = call("mkldnn._reorder_linear_weight.default", (turned, shape[0]), torch.empty_like(dense))
    result = value.meta["val"].new_empty((shape[0], columns))
    node: fx.Node = call("mkldnn._linear_pointwise.default", (value, packed, bias, "none", [], ""), result)
    return node


# entries


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
    """Return an inference graph after `rewrites`, what they did, and what the inputs at positions `frozen`
    decide of it.

    Weights are laid out, and packed for oneDNN if `packs`, in the preparation; None if nothing is prepared.
    """
    gm, fired = clean_up_copy(gm, rewrites)
    laid_out, _ = lay_out_frozen_weights(gm, find_constants(gm.graph, frozen), layout)
    laid_out, _ = pad_products(laid_out, layout)
    if packs:
        laid_out, _ = pack_weights(laid_out, frozen, layout.find_model)
    return gm, fired, split_constants(laid_out, frozen)
