"""Shapes that eager's kernels take, of operators whose decomposition or lowering would broadcast, or leave
out, what they refuse.

As with types, a call that is left to ATen without need is right all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.operators import list_operators
from coilwork_lowering.torch_compat.operators import Overload, qualified_name
from coilwork_lowering.torch_compat.sizes import holds, is_from_data, surely

Arguments: TypeAlias = Mapping[str, object]
Rule: TypeAlias = Callable[[Arguments], bool]


def accepts_shapes(target: Overload, arguments: Arguments) -> bool:
    """Tell if eager takes tensors of the shapes of `arguments`, which are named as in the schema, for
    `target`.
    """
    rule = _RULES.get(qualified_name(target).split(".")[1])
    return rule is None or rule(arguments)


def has_rule(target: Overload) -> bool:
    """Tell if shapes decide whether `target` is left to ATen."""
    return qualified_name(target).split(".")[1] in _RULES


def _alike(*names: str) -> Rule:
    """All tensors of these names have one shape."""

    def rule(arguments: Arguments) -> bool:
        given = _tensors(arguments, names)
        return all(_are_equal(given[0].shape, other.shape) for other in given[1:])

    return rule


def _onto(name: str, *names: str) -> Rule:
    """Return what has these names is broadcast to the shape of `name`, and not the other way round."""

    def rule(arguments: Arguments) -> bool:
        onto = arguments.get(name)
        return not isinstance(onto, torch.Tensor) or all(
            _spreads_to(one.shape, onto.shape) for one in _tensors(arguments, names)
        )

    return rule


def _vectors(*names: str) -> Rule:
    """The tensors of these names have one dimension."""
    return lambda arguments: all(one.dim() == 1 for one in _tensors(arguments, names))


def _both_or_neither(*names: str) -> Rule:
    return lambda arguments: len({arguments.get(name) is None for name in names}) == 1


def _has_dimensions(*names: str) -> Rule:
    """The tensors of these names have a dimension at least."""
    return lambda arguments: all(one.dim() > 0 for one in _tensors(arguments, names))


def _has_elements(name: str) -> Rule:
    def rule(arguments: Arguments) -> bool:
        value = arguments.get(name)
        return not isinstance(value, torch.Tensor) or not any(surely(size == 0) for size in value.shape)

    return rule


def _has_items(name: str) -> Rule:
    """The list of this name has something in it."""
    return lambda arguments: arguments.get(name) not in ([], ())


def _fits_32_bits(name: str) -> Rule:
    """The number of this name is one of 32 bits: what eager counts from larger ones overflows, and is
    refused.
    """

    def rule(arguments: Arguments) -> bool:
        number = arguments.get(name)
        return not isinstance(number, int) or abs(number) < 1 << 31

    return rule


def _not_negative(name: str) -> Rule:
    """The list of this name has no negative number in it."""

    def rule(arguments: Arguments) -> bool:
        given = arguments.get(name)
        return not isinstance(given, list | tuple) or not any(surely(number < 0) for number in given)

    return rule


def _positive(name: str) -> Rule:
    """The list of this name has no number below 1 in it: eager's kernels find no place in windows of that
    size.
    """

    def rule(arguments: Arguments) -> bool:
        given = arguments.get(name)
        return not isinstance(given, list | tuple) or not any(surely(number < 1) for number in given)

    return rule


def _has_samples(spatial: int) -> Rule:
    """There are random samples for every image and channel of `self`, one for each of its dimensions that are
    pooled.
    """

    def rule(arguments: Arguments) -> bool:
        value, samples = arguments.get("self"), arguments.get("random_samples")
        if not isinstance(value, torch.Tensor) or not isinstance(samples, torch.Tensor):
            return True
        if samples.dim() != 3 or value.dim() < spatial + 1:
            return False
        images: Any = value.shape[0] if value.dim() == spatial + 2 else 1
        return (
            holds(samples.shape[0] >= images)
            and holds(samples.shape[1] >= value.shape[-spatial - 1])
            and holds(samples.shape[2] == spatial)
        )

    return rule


def _has_rank(*counts: int, name: str = "self") -> Rule:
    """`name` has one of these numbers of dimensions."""
    return lambda arguments: all(one.dim() in counts for one in _tensors(arguments, (name,)))


def _has_grid(spatial: int) -> Rule:
    """There is a grid for every image of `input`, of positions in as many dimensions as the image has."""

    def rule(arguments: Arguments) -> bool:
        value, grid = arguments.get("input"), arguments.get("grid")
        if not isinstance(value, torch.Tensor) or not isinstance(grid, torch.Tensor):
            return True
        if value.dim() != spatial + 2 or grid.dim() != spatial + 2:
            return False
        return holds(value.shape[0] == grid.shape[0]) and holds(grid.shape[-1] == spatial)

    return rule


def _chosen_once(arguments: Arguments) -> bool:
    """Tell if of a number without dimensions no more than one is chosen."""
    index = arguments.get("index")
    if not isinstance(index, torch.Tensor) or any(one.dim() for one in _tensors(arguments, ("self",))):
        return True
    return index.dim() == 0 or holds(index.shape[0] == 1)


def _copied_by_index(arguments: Arguments) -> bool:
    """Tell if `source` has a slice, of the shape of those of `self`, for each position of `index`."""
    given = [arguments.get(name) for name in ("self", "index", "source")]
    dim = arguments.get("dim")
    value, index, source = (one if isinstance(one, torch.Tensor) else None for one in given)
    if value is None or index is None or source is None or not isinstance(dim, int):
        return True
    if index.dim() > 1 or (source.dim() != value.dim() and source.dim() > 0 and value.dim() > 0):
        return False
    slices = [
        [size for at, size in enumerate(one.shape) if at != dim % max(one.dim(), 1)]
        for one in (value, source)
    ]
    copied = source.shape[dim % source.dim()] if source.dim() > 0 else 1
    return _are_equal(*slices) and holds(index.numel() == copied)


def _along(name: str, dim: str) -> Rule:
    """The number `dim` names a dimension of `name`."""

    def rule(arguments: Arguments) -> bool:
        given = arguments.get(dim, 0)
        dims = [max(one.dim(), 1) for one in _tensors(arguments, (name,))]
        return not isinstance(given, int) or all(-count <= given < count for count in dims)

    return rule


def _has_row(arguments: Arguments) -> bool:
    """Tell if `self` has the row `index` along `dim`, which is guarded on. A row from data a
    check looks for.
    """
    value, dim, index = (arguments.get(name) for name in ("self", "dim", "index"))
    if not isinstance(value, torch.Tensor) or not isinstance(dim, int) or value.dim() == 0:
        return True
    if not isinstance(index, int | torch.SymInt):
        return True
    size: Any = value.shape[dim % value.dim()]
    if is_from_data(index) or is_from_data(size):
        return True
    return holds(index >= -size) and holds(index < size)


def _fits_normalized_shape(arguments: Arguments) -> bool:
    """Tell if weight and bias have the shape that is normalized, in which `input` ends."""
    shape = arguments.get("normalized_shape")
    if not isinstance(shape, list | tuple) or not shape:
        return True
    parameters = [one.shape for one in _tensors(arguments, ("weight", "bias"))]
    ends = [one.shape[-len(shape) :] for one in _tensors(arguments, ("input",))]
    return all(_are_equal(one, shape) for one in (*parameters, *ends))


def _biased_by_a_weight(arguments: Arguments) -> bool:
    """Tell if the gradient of a bias is asked for beside a weight, or not at all."""
    mask = arguments.get("output_mask")
    is_asked = isinstance(mask, list | tuple) and len(mask) == 3 and bool(mask[2])
    return not is_asked or arguments.get("weight") is not None


def _has_labels(arguments: Arguments) -> bool:
    """Tell if there is a label for every place of an image, and no other."""
    scores, labels = arguments.get("self"), arguments.get("target")
    if not isinstance(scores, torch.Tensor) or not isinstance(labels, torch.Tensor) or scores.dim() != 4:
        return True
    return _are_equal((scores.shape[0], *scores.shape[2:]), labels.shape)


def _has_elements_behind_batch(name: str) -> Rule:
    """No dimension of `name` but the first is empty."""

    def rule(arguments: Arguments) -> bool:
        sizes = [size for one in _tensors(arguments, (name,)) for size in one.shape[1:]]
        return not any(surely(size == 0) for size in sizes)

    return rule


def _all_of(*rules: Rule) -> Rule:
    return lambda arguments: all(rule(arguments) for rule in rules)


def _tensors(arguments: Arguments, names: Iterable[str]) -> list[torch.Tensor]:
    given = (arguments.get(name) for name in names)
    return [one for one in given if isinstance(one, torch.Tensor)]


def _are_equal(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Tell if two shapes are equal, which is guarded on."""
    left, right = list(one), list(other)
    return len(left) == len(right) and all(holds(a == b) for a, b in zip(left, right))


def _spreads_to(shape: Iterable[Any], onto: Iterable[Any]) -> bool:
    """Tell if `shape` is broadcast to `onto`, which is guarded on."""
    sizes, wanted = list(shape), list(onto)
    if len(sizes) > len(wanted):
        return False
    pairs = zip(reversed(sizes), reversed(wanted))
    return all(surely(size == 1) or holds(size == want) for size, want in pairs)


_BATCH_NORM: Final = _all_of(
    _vectors("weight", "bias", "running_mean", "running_var"),
    _both_or_neither("running_mean", "running_var"),
    _has_elements("input"),
)
_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("_softmax_backward_data", "_log_softmax_backward_data"), _alike("grad_output", "output")
        ),
        **dict.fromkeys(list_operators(lambda info: info.norm == "batch"), _BATCH_NORM),
        **dict.fromkeys(("nll_loss2d_forward", "nll_loss2d_backward"), _has_labels),
        "binary_cross_entropy": _onto("self", "weight", "target"),
        "binary_cross_entropy_with_logits": _all_of(
            _onto("self", "weight", "pos_weight"), _onto("target", "self")
        ),
        "soft_margin_loss": _onto("self", "target"),
        **{f"grid_sampler_{spatial}d_backward": _has_grid(spatial) for spatial in (2, 3)},
        **{
            f"{kind}_pad{spatial}d": _has_rank(spatial + 1, spatial + 2)
            for kind in ("replication", "reflection")
            for spatial in (1, 2, 3)
        },
        **{
            f"adaptive_max_pool{spatial}d_backward": _has_elements_behind_batch("grad_output")
            for spatial in (2, 3)
        },
        **{
            f"fractional_max_pool{spatial}d": _all_of(_has_samples(spatial), _positive("kernel_size"))
            for spatial in (2, 3)
        },
        **{f"fractional_max_pool{spatial}d_backward": _positive("kernel_size") for spatial in (2, 3)},
        "index_select": _all_of(_has_rank(0, 1, name="index"), _chosen_once),
        **dict.fromkeys(
            ("_embedding_bag", "_embedding_bag_forward_only"),
            _all_of(_vectors("offsets"), _has_rank(2, name="weight")),
        ),
        "index_copy": _copied_by_index,
        "logsumexp": _has_items("dim"),
        "native_group_norm_backward": _biased_by_a_weight,
        "native_layer_norm_backward": _fits_normalized_shape,
        **dict.fromkeys(("_pdist_forward", "_pdist_backward"), _has_rank(2)),
        "segment_reduce": _along("data", "axis"),
        **dict.fromkeys(("index_fill", "put"), _has_elements("self")),
        "embedding": _has_elements("weight"),
        **dict.fromkeys(("empty_strided", "new_empty_strided"), _not_negative("stride")),
        **dict.fromkeys(("tril_indices", "triu_indices"), _fits_32_bits("offset")),
        "select_scatter": _has_row,
        "slice_scatter": _has_dimensions("self"),
    }
)
