"""Check which shapes and types of operands eager's kernels accept.

Decompositions and rules would broadcast, promote or ignore what those kernels refuse. A call that eager
refuses is therefore neither decomposed nor lowered: it is ATen's, and raises eager's error. The tables err in
one direction, since a call left to ATen without need is correct all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.operators import EagerLimits, OpInfo, TypeClass, find_target_info, list_operators
from coilwork_lowering.torch_compat.operators import Overload, get_qualified_name, get_schema
from coilwork_lowering.torch_compat.sizes import is_from_data, is_surely, is_true_when_traced

# shapes


Arguments: TypeAlias = Mapping[str, object]
ShapeRule: TypeAlias = Callable[[Arguments], bool]


def has_valid_shapes(target: Overload, arguments: Arguments) -> bool:
    """Tell if eager takes tensors of the shapes of `arguments`, which are named as in the schema, for
    `target`.
    """
    rule = _SHAPE_RULES.get(get_qualified_name(target).split(".")[1])
    return rule is None or rule(arguments)


def has_shape_rule(target: Overload) -> bool:
    """Tell if shapes decide whether `target` is left to ATen."""
    return get_qualified_name(target).split(".")[1] in _SHAPE_RULES


def _require_one_shape(*names: str) -> ShapeRule:
    """All tensors of these names have one shape."""

    def rule(arguments: Arguments) -> bool:
        tensors = _tensors(arguments, names)
        return all(_are_equal(tensors[0].shape, other.shape) for other in tensors[1:])

    return rule


def _require_broadcast_to(name: str, *names: str) -> ShapeRule:
    """Tensors of the other names must broadcast to the shape of `name`, and not the other way round."""

    def rule(arguments: Arguments) -> bool:
        onto = arguments.get(name)
        return not isinstance(onto, torch.Tensor) or all(
            _broadcasts_to(tensor.shape, onto.shape) for tensor in _tensors(arguments, names)
        )

    return rule


def _require_vectors(*names: str) -> ShapeRule:
    """The tensors of these names have one dimension."""
    return lambda arguments: all(tensor.dim() == 1 for tensor in _tensors(arguments, names))


def _require_both_or_neither(*names: str) -> ShapeRule:
    return lambda arguments: len({arguments.get(name) is None for name in names}) == 1


def _require_dimensions(*names: str) -> ShapeRule:
    """The tensors of these names have a dimension at least."""
    return lambda arguments: all(tensor.dim() > 0 for tensor in _tensors(arguments, names))


def _require_elements(name: str) -> ShapeRule:
    def rule(arguments: Arguments) -> bool:
        value = arguments.get(name)
        return not isinstance(value, torch.Tensor) or not any(is_surely(size == 0) for size in value.shape)

    return rule


def _require_items(name: str) -> ShapeRule:
    """The list of this name has something in it."""
    return lambda arguments: arguments.get(name) not in ([], ())


def _require_32_bits(name: str) -> ShapeRule:
    """The number of this name is one of 32 bits: what eager counts from larger ones overflows, and is
    refused.
    """

    def rule(arguments: Arguments) -> bool:
        number = arguments.get(name)
        return not isinstance(number, int) or abs(number) < 1 << 31

    return rule


def _require_nonnegative(name: str) -> ShapeRule:
    """The list of this name has no negative number in it."""

    def rule(arguments: Arguments) -> bool:
        numbers = arguments.get(name)
        return not isinstance(numbers, list | tuple) or not any(is_surely(number < 0) for number in numbers)

    return rule


def _require_positive(name: str) -> ShapeRule:
    """The list of this name has no number below 1 in it: eager's kernels find no place in windows of that
    size.
    """

    def rule(arguments: Arguments) -> bool:
        numbers = arguments.get(name)
        return not isinstance(numbers, list | tuple) or not any(is_surely(number < 1) for number in numbers)

    return rule


def _require_samples(spatial: int) -> ShapeRule:
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
            is_true_when_traced(samples.shape[0] >= images)
            and is_true_when_traced(samples.shape[1] >= value.shape[-spatial - 1])
            and is_true_when_traced(samples.shape[2] == spatial)
        )

    return rule


def _require_rank(*counts: int, name: str = "self") -> ShapeRule:
    """`name` has one of these numbers of dimensions."""
    return lambda arguments: all(tensor.dim() in counts for tensor in _tensors(arguments, (name,)))


def _require_grid(spatial: int) -> ShapeRule:
    """There is a grid for every image of `input`, of positions in as many dimensions as the image has."""

    def rule(arguments: Arguments) -> bool:
        value, grid = arguments.get("input"), arguments.get("grid")
        if not isinstance(value, torch.Tensor) or not isinstance(grid, torch.Tensor):
            return True
        if value.dim() != spatial + 2 or grid.dim() != spatial + 2:
            return False
        return is_true_when_traced(value.shape[0] == grid.shape[0]) and is_true_when_traced(
            grid.shape[-1] == spatial
        )

    return rule


def _selects_at_most_one(arguments: Arguments) -> bool:
    """Tell if of a number without dimensions no more than one is chosen."""
    index = arguments.get("index")
    if not isinstance(index, torch.Tensor) or any(tensor.dim() for tensor in _tensors(arguments, ("self",))):
        return True
    return index.dim() == 0 or is_true_when_traced(index.shape[0] == 1)


def _has_slice_per_index(arguments: Arguments) -> bool:
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
    return _are_equal(*slices) and is_true_when_traced(index.numel() == copied)


def _require_dim_of(name: str, dim: str) -> ShapeRule:
    """Return the number `dim` names a dimension of `name`."""

    def rule(arguments: Arguments) -> bool:
        number = arguments.get(dim, 0)
        dims = [max(tensor.dim(), 1) for tensor in _tensors(arguments, (name,))]
        return not isinstance(number, int) or all(-count <= number < count for count in dims)

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
    return is_true_when_traced(index >= -size) and is_true_when_traced(index < size)


def _fits_normalized_shape(arguments: Arguments) -> bool:
    """Tell if weight and bias have the shape that is normalized, in which `input` ends."""
    shape = arguments.get("normalized_shape")
    if not isinstance(shape, list | tuple) or not shape:
        return True
    parameters = [sizes.shape for sizes in _tensors(arguments, ("weight", "bias"))]
    ends = [sizes.shape[-len(shape) :] for sizes in _tensors(arguments, ("input",))]
    return all(_are_equal(sizes, shape) for sizes in (*parameters, *ends))


def _has_weight_for_bias(arguments: Arguments) -> bool:
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


def _require_elements_behind_batch(name: str) -> ShapeRule:
    """No dimension of `name` but the first is empty."""

    def rule(arguments: Arguments) -> bool:
        sizes = [size for tensor in _tensors(arguments, (name,)) for size in tensor.shape[1:]]
        return not any(is_surely(size == 0) for size in sizes)

    return rule


def _require_all(*rules: ShapeRule) -> ShapeRule:
    return lambda arguments: all(rule(arguments) for rule in rules)


def _tensors(arguments: Arguments, names: Iterable[str]) -> list[torch.Tensor]:
    values = (arguments.get(name) for name in names)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _are_equal(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """Tell if two shapes are equal, which is guarded on."""
    left, right = list(first), list(second)
    return len(left) == len(right) and all(is_true_when_traced(a == b) for a, b in zip(left, right))


def _broadcasts_to(shape: Iterable[Any], onto: Iterable[Any]) -> bool:
    """Tell if `shape` is broadcast to `onto`, which is guarded on."""
    sizes, wanted = list(shape), list(onto)
    if len(sizes) > len(wanted):
        return False
    pairs = zip(reversed(sizes), reversed(wanted))
    return all(is_surely(size == 1) or is_true_when_traced(size == want) for size, want in pairs)


_BATCH_NORM: Final = _require_all(
    _require_vectors("weight", "bias", "running_mean", "running_var"),
    _require_both_or_neither("running_mean", "running_var"),
    _require_elements("input"),
)
_SHAPE_RULES: Final[Mapping[str, ShapeRule]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("_softmax_backward_data", "_log_softmax_backward_data"),
            _require_one_shape("grad_output", "output"),
        ),
        **dict.fromkeys(list_operators(lambda info: info.norm == "batch"), _BATCH_NORM),
        **dict.fromkeys(("nll_loss2d_forward", "nll_loss2d_backward"), _has_labels),
        "binary_cross_entropy": _require_broadcast_to("self", "weight", "target"),
        "binary_cross_entropy_with_logits": _require_all(
            _require_broadcast_to("self", "weight", "pos_weight"), _require_broadcast_to("target", "self")
        ),
        "soft_margin_loss": _require_broadcast_to("self", "target"),
        **{f"grid_sampler_{spatial}d_backward": _require_grid(spatial) for spatial in (2, 3)},
        **{
            f"{kind}_pad{spatial}d": _require_rank(spatial + 1, spatial + 2)
            for kind in ("replication", "reflection")
            for spatial in (1, 2, 3)
        },
        **{
            f"adaptive_max_pool{spatial}d_backward": _require_elements_behind_batch("grad_output")
            for spatial in (2, 3)
        },
        **{
            f"fractional_max_pool{spatial}d": _require_all(
                _require_samples(spatial), _require_positive("kernel_size")
            )
            for spatial in (2, 3)
        },
        **{f"fractional_max_pool{spatial}d_backward": _require_positive("kernel_size") for spatial in (2, 3)},
        "index_select": _require_all(_require_rank(0, 1, name="index"), _selects_at_most_one),
        **dict.fromkeys(
            ("_embedding_bag", "_embedding_bag_forward_only"),
            _require_all(_require_vectors("offsets"), _require_rank(2, name="weight")),
        ),
        "index_copy": _has_slice_per_index,
        "logsumexp": _require_items("dim"),
        "native_group_norm_backward": _has_weight_for_bias,
        "native_layer_norm_backward": _fits_normalized_shape,
        **dict.fromkeys(("_pdist_forward", "_pdist_backward"), _require_rank(2)),
        "segment_reduce": _require_dim_of("data", "axis"),
        **dict.fromkeys(("index_fill", "put"), _require_elements("self")),
        "embedding": _require_elements("weight"),
        **dict.fromkeys(("empty_strided", "new_empty_strided"), _require_nonnegative("stride")),
        **dict.fromkeys(("tril_indices", "triu_indices"), _require_32_bits("offset")),
        "select_scatter": _has_row,
        "slice_scatter": _require_dimensions("self"),
    }
)


# types


Types: TypeAlias = frozenset[torch.dtype]

_WIDE: Final[Types] = frozenset({torch.float32, torch.float64})
_FLOATS: Final[Types] = frozenset({*_WIDE, torch.float16, torch.bfloat16})
_INTEGERS: Final[Types] = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_WIDE_UNSIGNED: Final[Types] = frozenset({torch.uint16, torch.uint32, torch.uint64})
_COMPLEX: Final[Types] = frozenset({torch.complex32, torch.complex64, torch.complex128})
_CLASSES: Final[Mapping[TypeClass, Types]] = MappingProxyType(
    {
        "float": _FLOATS,
        "wide_float": _WIDE,
        "integer": _INTEGERS,
        "complex": _COMPLEX,
        "wide_complex": _COMPLEX - {torch.complex32},
        "bool": frozenset({torch.bool}),
        "uint8": frozenset({torch.uint8}),
        "int32": frozenset({torch.int32}),
        "int64": frozenset({torch.int64}),
    }
)
_EIGHT_BITS: Final[Types] = frozenset(
    getattr(torch, name)
    for name in "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
    if hasattr(torch, name)
)
# Of `types_everywhere`, the arguments that are operands where they are truth values: others say how to
# compute.
_OPERANDS: Final = ("self", "other", "element", "test_element")
_MASKS: Final = ("condition", "mask")
_PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")


def has_valid_types(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Tell if eager has a kernel of `target` for the types of `arguments`, which are named as in
    the schema.
    """
    info = find_target_info(get_qualified_name(target))
    limits = info.limits
    if target.namespace == "aten" and not info.takes_float8 and _has_eight_bits(arguments.values()):
        return False
    if limits.needs_alike_float8 and _mixes_eight_bits(arguments):
        return False
    tensors = [tensor for tensor in arguments.values() if isinstance(tensor, torch.Tensor)]
    if torch.Tag.pointwise in target.tags and not _have_common_type(arguments):
        return False
    if limits.rejects_float8_powers and any(tensor.dtype is torch.float8_e8m0fnu for tensor in tensors):
        return False
    if limits.types_everywhere and not _have_types(arguments.items(), _types_in(limits.types_everywhere)):
        return False
    if len(_types_of_named(arguments, limits.same_types)) > 1:
        return False
    is_gradient = get_schema(target).name.endswith("_backward")
    if is_gradient and not limits.takes_integer_gradients:
        alike = not limits.takes_other_gradients
        if not _has_gradient_type(arguments, alike=alike):
            return False
    if limits.index_types is not None:
        positions, allowed = limits.index_types
        if not _types_of_named(arguments, (positions,)) <= _types_in(allowed):
            return False
    if limits.makes_no_wide_unsigned and arguments.get("dtype") in _WIDE_UNSIGNED:
        return False
    if not tensors or limits.is_typed_by_result:
        return _accepts_result(limits, arguments, tensors)
    return _accepts_operands(info, arguments, tensors)


def _accepts_result(
    limits: EagerLimits, arguments: Mapping[str, object], tensors: Iterable[torch.Tensor]
) -> bool:
    """Tell if eager has a kernel for the type that the result is to have."""
    dtype = arguments.get("dtype")
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and any(map(torch.is_complex, tensors)):
        return False
    if (limits.rejects_wide_unsigned or limits.is_typed_by_result) and dtype in _WIDE_UNSIGNED:
        return False
    return not limits.types or dtype is None or dtype in _types_in(limits.types)


def _accepts_operands(info: OpInfo, arguments: Mapping[str, object], tensors: Sequence[torch.Tensor]) -> bool:
    """Tell if eager has a kernel for the types of `tensors`, the first of them above all."""
    limits, first = info.limits, tensors[0]
    if limits.types and first.dtype not in _types_in(limits.types):
        return False
    if not has_trait(first.device.type, ATEN_CPU):
        return True
    if arguments.get("input_dtype") not in (None, first.dtype):
        return False
    if limits.rejects_wide_unsigned and any(tensor.dtype in _WIDE_UNSIGNED for tensor in tensors):
        return False
    is_norm = info.norm in ("batch", "group", "layer")
    if is_norm and not _takes_norm_parameters(first.dtype, _types_of_named(arguments, _PARAMETERS)):
        return False
    return not limits.types_on_cpus or first.dtype in _types_in(limits.types_on_cpus)


@functools.cache
def _types_in(classes: tuple[TypeClass, ...]) -> Types:
    """Return the types of these classes."""
    return frozenset().union(*(_CLASSES[each] for each in classes))


def _has_eight_bits(arguments: Iterable[object]) -> bool:
    """Tell if a tensor among the arguments, or in one of their lists, holds floats of 8 bits, or the result
    is to.
    """
    return not _EIGHT_BITS.isdisjoint(_iterate_types(arguments))


def _iterate_types(arguments: Iterable[object]) -> Iterator[torch.dtype]:
    """Yield the types among the arguments, and those of tensors among them and in their lists."""
    for value in arguments:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item.dtype
            elif isinstance(item, torch.dtype):
                yield item


def _mixes_eight_bits(arguments: Mapping[str, object]) -> bool:
    """Tell if floats of 8 bits would have to be promoted, or others to them."""
    tensors = [
        item
        for name, value in arguments.items()
        if name != "condition"
        for item in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(item, torch.Tensor)
    ]
    types = {tensor.dtype for tensor in tensors}
    return len(types) > 1 and not _EIGHT_BITS.isdisjoint(types)


def _have_common_type(arguments: Mapping[str, object]) -> bool:
    """Tell if torch promotes the operands to one type: unsigned integers of more than 8 bits to floats only,
    where others stand beside them.

    Operands without dimensions take on the type of others of their kind.
    """
    operands = [
        operand
        for name, operand in arguments.items()
        if isinstance(operand, torch.Tensor) and name not in _MASKS
    ]
    kinds = {operand.dtype for operand in operands}
    if len(kinds) < 2 or kinds.isdisjoint(_WIDE_UNSIGNED):
        return True
    whole = [operand for operand in operands if not operand.is_floating_point() and not operand.is_complex()]
    ranks = [operand for operand in whole if operand.dim()] or whole
    return len({operand.dtype for operand in ranks}) < 2 and not any(
        operand.is_complex() for operand in operands
    )


def _has_gradient_type(arguments: Mapping[str, object], *, alike: bool) -> bool:
    """Tell if a gradient is no integer, and, if `alike`, has the type of what it is taken of, as most have
    it.
    """
    types = _types_of_named(arguments, ("grad_output", "self", "grid"))
    is_one = not alike or len(types) < 2
    return is_one and not any(dtype in _INTEGERS or dtype is torch.bool for dtype in types)


def _have_types(arguments: Iterable[tuple[str, object]], types: Types) -> bool:
    """Tell if all tensors are of these types, and stay so beside the numbers, which are of these
    types, too.
    """
    return all(_type_of(name, argument) in (None, *types) for name, argument in arguments)


def _type_of(name: str, value: object) -> torch.dtype | None:
    """Return the type of a tensor, or of a number that is an operand; None of others, and of integers, which
    fit any.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype
    if type(value) is float:
        return torch.float32
    return torch.bool if type(value) is bool and name in _OPERANDS else None


def _types_of_named(arguments: Mapping[str, object], names: tuple[str, ...]) -> Types:
    """Return the types of tensors with these names, and of tensors in lists with these names."""
    values = [arguments.get(name) for name in names]
    listed = [item for value in values for item in (value if isinstance(value, list | tuple) else (value,))]
    return frozenset(value.dtype for value in listed if isinstance(value, torch.Tensor))


def _takes_norm_parameters(dtype: torch.dtype, parameters: Types) -> bool:
    """Tell whether a norm of `dtype` may have parameters of these types: its own, or `f32` beside 16 bits."""
    return parameters <= {dtype} or (dtype in _FLOATS - _WIDE and parameters == {torch.float32})


def require_accepted_types(target: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of `target`, for what eager has a kernel."""
    if not isinstance(target, Overload) or target.namespace != "aten":
        return decomposition
    if not _limits_types(target) and not has_shape_rule(target):
        return _require_wider_types(target, decomposition)
    names = [formal.name for formal in get_schema(target).arguments]

    @functools.wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args)), **kwargs}
        if not has_valid_types(target, arguments) or not has_valid_shapes(target, arguments):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _require_wider_types(target: Overload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of an operator that takes every type but floats of 8 bits."""
    if find_target_info(get_qualified_name(target)).takes_float8:
        return decomposition

    @functools.wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if _has_eight_bits(args) or _has_eight_bits(kwargs.values()):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _limits_types(target: Overload) -> bool:
    """Tell if eager refuses some types of the operands of `target`, floats of 8 bits aside."""
    is_gradient = get_schema(target).name.endswith("_backward")
    return is_gradient or find_target_info(get_qualified_name(target)).limits.concern_types
