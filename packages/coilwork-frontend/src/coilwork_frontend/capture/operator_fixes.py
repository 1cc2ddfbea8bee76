"""Rewrite calls of single operators in Dynamo's graphs that torch's tracing gets wrong.

- `masked_select` of a row by a matrix, and `nansum` over an empty list: fake tensors have another shape.
- Margin losses: torch's decompositions miss where the labels of a row end, and give the loss of one row a
  dimension.
- Resized images: decomposed before autograd, their gradient is a sum by position. The operator is kept.
- `addcmul` and `addcdiv` of integers: Dynamo decomposes them, and eager refuses or truncates.
- Integer tensors as indices (`x[n]`): AOTAutograd wants a number, which is read first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.torch_compat.dynamo import decompose_after_autograd
from coilwork_frontend.torch_compat.operators import get_native_function
from coilwork_frontend.torch_compat.sizes import are_equal_sizes
from coilwork_frontend.torch_compat.tensors import is_functorch_tensor
from coilwork_ir.device_traits import PROCESSOR, has_trait

# ---- Fake shapes ----


aten: Final = torch.ops.aten
_SELECTIONS: Final = (torch.masked_select, aten.masked_select, aten.masked_select.default)
_SUMS: Final = frozenset(
    {
        *(torch.nansum, aten.nansum, aten.nansum.default),
        *(torch.nanmean, aten.nanmean, aten.nanmean.default),
    }
)
_METHODS: Final = frozenset({"nansum", "nanmean"})


def broadcast_masked_select(gm: fx.GraphModule) -> None:
    """Broadcast the operands of `masked_select` in Dynamo's graph `gm`, in place, if their shapes differ.

    Eager broadcasts both. Fake tensors bound the number of selected elements by the first operand's, and the
    compiled program is held to that bound.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if not _selects(node):
            continue
        operands = tuple(node.all_input_nodes)
        shapes = [one.meta["example_value"].shape for one in operands]
        if len(shapes) != 2 or are_equal_sizes(*shapes):
            continue
        with gm.graph.inserting_before(node):
            both = gm.graph.call_function(torch.broadcast_tensors, operands)
            parts = [gm.graph.call_function(operator.getitem, (both, k)) for k in range(2)]
        for operand, part in zip(operands, parts, strict=True):
            node.replace_input_with(operand, part)
        changed = True
    if changed:
        gm.recompile()


def _selects(node: fx.Node) -> bool:
    return node.target == "masked_select" if node.op == "call_method" else node.target in _SELECTIONS


def sum_over_empty_dims(gm: fx.GraphModule) -> None:
    """Change `nansum` and `nanmean` over an empty list of dimensions, in place, to all dimensions, as in
    eager.

    Fake tensors sum over no dimension, and gradients are held to that shape.
    """
    changed = False
    for node in gm.graph.nodes:
        if not _skips_nan(node):
            continue
        args, kwargs = (_replace_empty_dims(part) for part in (dict(enumerate(node.args)), node.kwargs))
        changed |= args != dict(enumerate(node.args)) or kwargs != node.kwargs
        node.args, node.kwargs = tuple(args.values()), kwargs
    if changed:
        gm.recompile()


def _skips_nan(node: fx.Node) -> bool:
    return node.target in _METHODS if node.op == "call_method" else node.target in _SUMS


def _replace_empty_dims(arguments: dict[Any, Any]) -> dict[Any, Any]:
    """Return `arguments` with `None`, all dimensions, in the place of an empty list of dimensions."""
    return {
        name: None if name in (1, "dim") and _is_empty(value) else value for name, value in arguments.items()
    }


def _is_empty(value: object) -> bool:
    return isinstance(value, list | tuple) and not value


# ---- Margin losses ----


MULTI: Final[Any] = torch.ops.aten.multi_margin_loss.default
MULTILABEL: Final[Any] = torch.ops.aten.multilabel_margin_loss.default
MULTILABEL_FORWARD: Final[Any] = torch.ops.aten.multilabel_margin_loss_forward.default
BY_NAME: Final = MappingProxyType(
    {functional.multi_margin_loss: MULTI, functional.multilabel_margin_loss: MULTILABEL}
)
_MARGIN_OPERATORS: Final = MappingProxyType(
    {
        **BY_NAME,
        get_native_function("multi_margin_loss"): MULTI,
        get_native_function("multilabel_margin_loss"): MULTILABEL,
        **{op.overloadpacket: op for op in (MULTI, MULTILABEL, MULTILABEL_FORWARD)},
        **{op: op for op in (MULTI, MULTILABEL, MULTILABEL_FORWARD)},
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginCall:
    """A call of `operator`, one of the three above, with the values that Dynamo traced."""

    operator: Any
    scores: Tensor
    labels: Tensor
    weight: Tensor | None


def match_margin_call(node: fx.Node) -> MarginCall | None:
    """Return the margin loss that `node` calls; None if it calls something else."""
    operator = _MARGIN_OPERATORS.get(node.target) if node.op == "call_function" else None
    scores, labels = _find_value(node, 0, "input", "self"), _find_value(node, 1, "target")
    if operator is None or scores is None or labels is None:
        return None
    weight = _find_value(node, 4, "weight") if operator is MULTI else None
    return MarginCall(operator=operator, scores=scores, labels=labels, weight=weight)


def _find_value(node: fx.Node, position: int, *names: str) -> Tensor | None:
    arguments = [*node.args[position : position + 1], *(node.kwargs.get(name) for name in names)]
    values = [node.meta.get("example_value") for node in arguments if isinstance(node, fx.Node)]
    return next((value for value in values if isinstance(value, Tensor)), None)


_REDUCTIONS: Final = ("none", "mean", "sum")


def replace_margin_losses(gm: fx.GraphModule) -> None:
    """Make Dynamo's graph `gm`, in place, compute margin losses as eager does."""
    changed = False
    for node in list(gm.graph.nodes):
        call = match_margin_call(node)
        loss = None if call is None else _choose_loss(call, by_name=node.target in BY_NAME)
        if loss is not None:
            node.target = loss
            changed = True
    if changed:
        gm.recompile()


def _choose_loss(call: MarginCall, *, by_name: bool) -> Callable[..., Any] | None:
    if call.operator is MULTI:
        if call.labels.dim() > 0:
            return None
        return _loss_of_one_label if by_name else _loss_of_one_label_by_number
    # eager has kernels for floats alone, of one row or several
    if not call.scores.is_floating_point() or call.scores.dim() > 2:
        return None
    if call.operator is MULTILABEL_FORWARD:
        return _loss_and_labels
    return _loss if by_name else _loss_by_number


def _loss_of_one_label(*args: Any, **kwargs: Any) -> Tensor:
    return functional.multi_margin_loss(*args, **kwargs).reshape(())


def _loss_of_one_label_by_number(*args: Any, **kwargs: Any) -> Tensor:
    loss: Tensor = MULTI(*args, **kwargs)
    return loss.reshape(())


def _loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    if reduce is not None or size_average is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return _compute_multilabel_loss(input, target, reduction)[0]


def _loss_by_number(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _compute_multilabel_loss(self, target, _REDUCTIONS[reduction])[0]


def _loss_and_labels(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    return _compute_multilabel_loss(self, target, _REDUCTIONS[reduction])


def _compute_multilabel_loss(values: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Return the loss, and 1 for each class that is a label, 0 for the others.

    The loss of a row is `sum(max(0, 1 - (x[label] - x[other]))) / classes`, over its labels (up to the first
    -1) and all other classes.
    """
    scores = values.reshape(1) if values.dim() == 0 else values
    labels = target.reshape(scores.shape)
    classes = scores.shape[-1]
    labelled = (labels == -1).cumsum(-1) == 0
    own = torch.where(labelled, labels, -1)
    is_label = (own.unsqueeze(-1) == torch.arange(classes, device=labels.device)).any(-2)
    chosen = scores.gather(-1, torch.where(labelled, labels, 0))
    margins = 1 - chosen.unsqueeze(-1) + scores.unsqueeze(-2)
    counts = labelled.unsqueeze(-1) & ~is_label.unsqueeze(-2) & (margins > 0)
    losses = torch.where(counts, margins, 0).sum((-1, -2)) / classes
    if reduction != "none":
        losses = losses.mean() if reduction == "mean" else losses.sum()
    return losses, is_label.reshape(target.shape).to(values.dtype)


# ---- Resized images ----


# By how many dimensions the tensor has and how it is resized.
_RESIZE_OPERATORS: Final[Mapping[tuple[int, str], Callable[..., Tensor]]] = MappingProxyType(
    {
        (3, "linear"): aten.upsample_linear1d.default,
        (4, "bilinear"): aten.upsample_bilinear2d.default,
        (4, "bicubic"): aten.upsample_bicubic2d.default,
        (5, "trilinear"): aten.upsample_trilinear3d.default,
    }
)


def keep_resize_operators(gm: fx.GraphModule) -> None:
    """Make Dynamo's graph `gm`, in place, differentiate resizing as one operator, where sizes are static.

    Torch decomposes it before autograd: the gradient is then a sum by position for each element that a result
    reads, 4 for bilinear and 16 for bicubic resizing. The operator's own gradient is one sum per element.
    """
    changed = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is functional.interpolate:
            node.target = _resize
            changed = True
    if changed:
        gm.recompile()


def _resize(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if input.requires_grad and torch.is_grad_enabled():
        result = _resize_known_sizes(input, *args, **kwargs)
        if result is not None:
            return result
    return functional.interpolate(input, *args, **kwargs)


def _resize_known_sizes(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:
    """Resize by the operator itself; None if torch's `interpolate` is to do it, or to raise an error."""
    operator = _RESIZE_OPERATORS.get((input.dim(), mode))
    if operator is None or antialias or not input.is_floating_point():
        return None
    sizes = input.shape[2:]
    if (size is None) == (scale_factor is None) or (recompute_scale_factor and size is not None):
        return None
    factor: Any = size if size is not None else scale_factor
    each: tuple[Any, ...] = tuple(factor) if isinstance(factor, tuple | list) else (factor,) * len(sizes)
    plain = int if size is not None else (int, float)
    # bool is an int, and a size of one for torch
    if len(each) != len(sizes) or not all(isinstance(n, plain) and not isinstance(n, bool) for n in each):
        return None
    if not all(isinstance(n, int) for n in input.shape):
        return None
    result = each if size is not None else tuple(int(n * scale) for n, scale in zip(sizes, each, strict=True))
    if min((*sizes, *result)) < 1:
        return None
    if (
        mode == "linear"
        and has_trait(input.device.type, PROCESSOR)
        and (align_corners or not _is_doubled(sizes[0], result[0]))
    ):
        # one read per element and tap: computing weights anew takes longer than adding up by position
        return None
    known = scale_factor is not None and not recompute_scale_factor
    scales = tuple(float(scale) if known else None for scale in each)
    with decompose_after_autograd():
        return operator(input, list(result), bool(align_corners), *scales)


def _is_doubled(size: int, result: int) -> bool:
    """Tell if the result is a power of two times as long."""
    times, rest = divmod(result, size)
    return rest == 0 and times & (times - 1) == 0


# ---- Scaled products ----


_FMA: Final = "prims.fma.default"


@dataclass(frozen=True, slots=True)
class _ScaledProduct:
    """A decomposed call of `addcmul` or `addcdiv`: `start` plus `value` times `product`.

    `parts` are the nodes that compute the summand, the product last.
    """

    start: Any
    product: fx.Node
    value: Any
    parts: tuple[fx.Node, ...]


def restore_scaled_products(gm: fx.GraphModule) -> None:
    """Put `addcmul` and `addcdiv` of integers and booleans back into Dynamo's graph `gm`, in place.

    Dynamo decomposes them. Eager refuses to divide integers or to multiply booleans, and truncates a fraction
    that scales integers. A decomposition is told from a user's own calls by its stack trace: all its nodes
    have the same one.
    """
    changed = False
    for node in list(gm.graph.nodes):
        scaled = _match_scaled(node)
        if scaled is None or not _differs_in_eager(scaled):
            continue
        name = "addcdiv" if scaled.product.target is torch.div else "addcmul"
        is_in_place = node.target == "copy_"
        with gm.graph.inserting_before(node):
            target: Any = f"{name}_" if is_in_place else getattr(torch, name)
            make = gm.graph.call_method if is_in_place else gm.graph.call_function
            call = make(target, (scaled.start, *scaled.product.args), {"value": scaled.value})
        call.meta.update(node.meta)
        node.replace_all_uses_with(call)
        for part in (node, *scaled.parts):
            if not part.users:
                gm.graph.erase_node(part)
        changed = True
    if changed:
        gm.recompile()


def _match_scaled(node: fx.Node) -> _ScaledProduct | None:
    """Return the decomposed call whose last node is `node`; None if there is none."""
    summand = node.args[1] if len(node.args) == 2 else None
    if not isinstance(summand, fx.Node):
        return None
    if node.op == "call_method" and node.target == "copy_" and _is_fma(summand):
        product, value, start = summand.args
    elif node.target is torch.add and summand.target is torch.mul and len(summand.args) == 2:
        start, (product, value) = node.args[0], summand.args
    else:
        return None
    if not isinstance(product, fx.Node) or product.target not in (torch.mul, torch.div):
        return None
    parts = (summand, product)
    if start is not node.args[0] or len(product.args) != 2 or product.kwargs:
        return None
    trace = node.meta.get("stack_trace")
    if not trace or any(part.meta.get("stack_trace") != trace for part in parts):
        return None
    return _ScaledProduct(start, product, value, parts)


def _is_fma(node: fx.Node) -> bool:
    """Tell if `node` calls the multiply-add that Dynamo writes, for which torch has no function."""
    return str(node.target) == _FMA


def _differs_in_eager(scaled: _ScaledProduct) -> bool:
    """Tell if the call is of integers or booleans."""
    operands = scaled.product.args if scaled.product.target is torch.div else (scaled.start,)
    values = [node.meta.get("example_value") if isinstance(node, fx.Node) else node for node in operands]
    return all(
        isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
        for value in values
    )


# ---- Tensors as indices ----


_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def read_tensor_indices(gm: fx.GraphModule) -> None:
    """Make Dynamo's graph `gm`, in place, read integer tensors of no dimensions before indexing by them.

    Eager reads the number and selects. AOTAutograd wants a number for `select`, and no symbol among other
    indices, so each number is read by `item` and indexed by a `select` of its own.
    """
    changed = False
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in (operator.getitem, operator.setitem):
            continue
        whole, index, *rest = node.args
        entries = index if isinstance(index, tuple) else (index,)
        value = _tensor_value(whole)
        numbers = [k for k, entry in enumerate(entries) if _is_integer_index(entry)]
        if value is None or not numbers:
            continue
        dims = _dims(entries, value.dim())
        with gm.graph.inserting_before(node):
            read = {
                k: entries[k] if _is_read(entries[k]) else _insert_call(gm.graph, node, "item", (entries[k],))
                for k in numbers
            }
            # From behind, so that the dimensions before stay what they are. Eager selects first, too.
            for k in reversed(numbers):
                whole = _insert_call(gm.graph, node, "select", (whole, dims[k], read[k]))
        left = tuple(entry for k, entry in enumerate(entries) if k not in read)
        node.args = (whole, left or (Ellipsis,), *rest)
        changed = True
    if changed:
        gm.recompile()


def _insert_call(graph: fx.Graph, like: fx.Node, method: str, args: tuple[Any, ...]) -> fx.Node:
    node = graph.call_method(method, args)
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    return node


def _dims(entries: Sequence[Any], rank: int) -> list[int]:
    """Return the first dimension of each entry of an index into a tensor of `rank` dimensions."""
    counts = [_count_dims(entry) for entry in entries]
    dims, at = [], 0
    for entry, count in zip(entries, counts, strict=True):
        dims.append(at)
        at += rank - sum(counts) if entry is Ellipsis else count
    return dims


def _count_dims(entry: Any) -> int:
    """Return how many dimensions an entry of an index stands for."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    value = _tensor_value(entry)
    return value.dim() if value is not None and value.dtype == torch.bool else 1


def _is_integer_index(entry: Any) -> bool:
    value = _tensor_value(entry)
    if value is None or is_functorch_tensor(value):
        # what `vmap` goes over is a number for each
        return _is_read(entry)
    return value.dim() == 0 and value.dtype in _INTEGERS


def _is_read(entry: Any) -> bool:
    """Tell if `entry` is a number that the program has read, or that is an input."""
    # Dynamo may specialize a number that it has read
    return isinstance(entry, fx.Node) and isinstance(entry.meta.get("example_value"), torch.SymInt)


def _tensor_value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None
