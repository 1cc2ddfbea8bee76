"""The table of decompositions for AOTAutograd, and those of our own that correct torch's.

`decompositions` builds the table: torch's core decompositions and more, corrected, without the operators that
stay whole. Nothing here comes from `torch._inductor`. `list_corrections` has what differs from torch's own,
and collects the other modules of this folder.

- Probabilities outside [0, 1] are refused on CPUs, as eager's kernels do. On accelerators eager's refusal is
  a device assertion that ends the process's use of the device; there is no check there.
- `multinomial` is a race: each category waits for an exponentially distributed time, and the first ones win.
  ATen draws the same way, so eager's generator gives eager's categories. The division and the search fuse
  with the softmax before them, and nothing is read on the host. What eager raises there are assertions on the
  device.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.operators import find_target_info, list_operators
from coilwork_lowering.building.size_assertions import squeeze_decompositions
from coilwork_lowering.decompositions.images import (
    pad_decompositions,
    resize_decompositions,
    unfold_decompositions,
)
from coilwork_lowering.decompositions.library_operators import (
    fourier_decompositions,
    product_decompositions,
    recurrent_decompositions,
)
from coilwork_lowering.decompositions.prims import device_decompositions, prim_decompositions
from coilwork_lowering.decompositions.scalar_operands import decompose_scaled_sums, number_decompositions
from coilwork_lowering.decompositions.segments_and_scatters import (
    guard_size_condition,
    row_decompositions,
    scatter_decompositions,
)
from coilwork_lowering.decompositions.strides import stride_decompositions
from coilwork_lowering.facts.operand_checks import require_accepted_types
from coilwork_lowering.facts.scalar_overflow import require_accepted_numbers
from coilwork_lowering.options import LoweringOptions, is_listed
from coilwork_lowering.torch_compat.operators import (
    Overload,
    copy_base_decompositions,
    get_more_decompositions,
    get_qualified_name,
    list_composite_operators,
    list_out_dtype_equivalents,
)
from coilwork_lowering.torch_compat.sizes import is_surely

# ---- Probabilities ----


aten: Final = torch.ops.aten


def probability_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return what replaces entries of `table`, torch's own, with checks of probabilities."""
    return {
        aten.binary_cross_entropy.default: _cross_entropy(table[aten.binary_cross_entropy.default]),
        aten.bernoulli.default: _check_bernoulli(table[aten.bernoulli.default]),
    }


def _cross_entropy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def binary_cross_entropy(value: torch.Tensor, target: torch.Tensor, *rest: Any, **named: Any) -> Any:
        _require_probabilities(value, "all elements of input should be between 0 and 1")
        _require_probabilities(target, "all elements of target should be between 0 and 1")
        return theirs(value, target, *rest, **named)

    return binary_cross_entropy


def _check_bernoulli(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def bernoulli(value: torch.Tensor, **named: Any) -> Any:
        _require_probabilities(value, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
        return theirs(value, **named)

    return bernoulli


def _require_probabilities(value: torch.Tensor, message: str) -> None:
    if has_trait(value.device.type, ATEN_CPU) and value.is_floating_point():
        # NaN is neither
        aten._assert_async.msg(((value >= 0) & (value <= 1)).all(), message)


# ---- multinomial ----


_INVALID: Final = "probability tensor contains either `inf`, `nan` or element < 0"
_NOTHING: Final = "invalid multinomial distribution (sum of probabilities <= 0)"


def decompose_sampling() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of `multinomial`, by overload."""
    return {torch.ops.aten.multinomial.default: _multinomial}


def _multinomial(
    probabilities: torch.Tensor, count: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """Return the `count` first of each row. With replacement, several need as many races: that is left to
    eager's search in sums.

    Shape: `(..., categories)` to `(..., count)`, of `int64`.
    """
    aten = torch.ops.aten
    if generator is not None or count < 1 or not is_surely(probabilities.numel() > 0):
        return NotImplemented
    if count != 1 and (replacement or not is_surely(probabilities.shape[-1] >= count)):
        return NotImplemented
    valid = (probabilities >= 0) & (probabilities < math.inf)
    aten._assert_async.msg(valid.all(), _INVALID)
    aten._assert_async.msg((probabilities.sum(-1) != 0).all(), _NOTHING)
    times = aten.exponential.default(torch.empty_like(probabilities))
    speed = probabilities / times
    return speed.argmax(-1, keepdim=True) if count == 1 else speed.topk(count, -1).indices


# ---- Corrections of torch ----


_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LINSPACE = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")

_MOST_DIGITS: Final = sys.float_info.max_10_exp


def list_corrections(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return what replaces entries of `table`, torch's own, or is missing there."""
    aten = torch.ops.aten
    smooth_l1 = aten.smooth_l1_loss_backward.default
    elu = aten.elu_backward.default
    probabilities = probability_decompositions(table)
    numbers = number_decompositions(table)
    linspace = _linspace(numbers[aten.linspace.default])
    batch_norms = {op: _require_channels(table[op]) for op in _batch_norms() if op in table}
    table = {
        **table,
        **batch_norms,
        **probabilities,
        **numbers,
        smooth_l1: _smooth_l1_loss_backward(table[smooth_l1]),
        elu: _elu_backward(table[elu]),
    }
    return {
        **list_out_dtype_equivalents(),
        **numbers,
        aten.index_add.default: _index_add(table[aten.index_add.default]),
        aten.index_copy.default: _index_copy(table[aten.index_copy.default]),
        aten.native_group_norm.default: _group_norm(table[aten.native_group_norm.default]),
        aten.log_sigmoid_forward.default: _log_sigmoid(table[aten.log_sigmoid_forward.default]),
        aten.mse_loss.default: _mse_loss(table[aten.mse_loss.default]),
        aten.take.default: _take,
        aten.angle.default: _angle,
        aten.as_strided_copy.default: _copy_strided_view,
        aten.pow.Tensor_Scalar: _pow,
        aten.round.decimals: _round,
        aten.bincount.default: _bincount,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.masked_scatter.default: _decompose_masked_scatter,
        aten.adaptive_max_pool2d_backward.default: _make_pool_gradient(2),
        aten.adaptive_max_pool3d_backward.default: _make_pool_gradient(3),
        aten.fractional_max_pool2d_backward.default: _make_pool_gradient(2),
        aten.fractional_max_pool3d_backward.default: _make_pool_gradient(3),
        aten._unique.default: _unique,
        aten.unique_dim.default: _unique_along_first_dim(aten.unique_dim.default),
        aten.unique_dim_consecutive.default: _unique_along_first_dim(aten.unique_dim_consecutive.default),
        aten.unique_consecutive.default: _unique_consecutive,
        aten._unsafe_masked_index.default: _unsafe_masked_index(table[aten._unsafe_masked_index.default]),
        **{getattr(aten.linspace, overload): linspace for overload in _LINSPACE},
        **batch_norms,
        **device_decompositions(table),
        **fourier_decompositions(),
        **pad_decompositions(table),
        **prim_decompositions(),
        **probabilities,
        **recurrent_decompositions(),
        **resize_decompositions(),
        **row_decompositions(),
        **decompose_sampling(),
        **decompose_scaled_sums(),
        **scatter_decompositions(),
        **squeeze_decompositions(),
        **stride_decompositions(table),
        **unfold_decompositions(table),
    }


def _log_sigmoid(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def log_sigmoid_forward(value: torch.Tensor) -> Any:
        """Return a contiguous result on a CPU, as eager's kernel and unlike torch's own."""
        return theirs(value.contiguous() if has_trait(value.device.type, ATEN_CPU) else value)

    return log_sigmoid_forward


def _group_norm(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def native_group_norm(value: torch.Tensor, weight: Any, bias: Any, *sizes: Any) -> Any:
        """Return the group norm scaled by vectors; torch's own takes matrices for those, too."""
        if any(item is not None and item.dim() != 1 for item in (weight, bias)):
            return NotImplemented
        return theirs(value, weight, bias, *sizes)

    return native_group_norm


def _batch_norms() -> list[Any]:
    results = [
        getattr(torch.ops.aten, name).default for name in list_operators(lambda info: info.norm == "batch")
    ]
    return [*results, torch.ops.aten._native_batch_norm_legit.no_stats]


def _require_channels(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def batch_norm(value: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Return the batch norm of a batch of vectors at least. Torch's own takes the elements of a single
        vector for channels, which eager refuses.
        """
        return NotImplemented if value.dim() < 2 else theirs(value, *rest, **named)

    return batch_norm


def _mse_loss(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def mse_loss(value: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
        """Return the loss. In 16 bits, eager rounds distances before it squares them; torch's own rounds
        once.
        """
        if torch.result_type(value, target) not in (torch.float16, torch.bfloat16):
            result: torch.Tensor = theirs(value, target, reduction)
            return result
        distance = value - target
        squares = distance * distance
        if reduction == 0:
            return squares
        return squares.mean() if reduction == 1 else squares.sum()

    return mse_loss


def _smooth_l1_loss_backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def smooth_l1_loss_backward(
        gradient: torch.Tensor, value: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
    ) -> torch.Tensor:
        """Return the gradient, NaN where the distance is NaN. Torch's takes the sign of NaN, which is 0."""
        distance = value - target
        result = theirs(gradient, value, target, reduction, beta)
        return torch.where(torch.isnan(distance), distance, result)

    return smooth_l1_loss_backward


def _elu_backward(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def elu_backward(
        gradient: torch.Tensor,
        alpha: float,
        scale: float,
        input_scale: float,
        is_result: bool,
        value: torch.Tensor,
    ) -> torch.Tensor:
        """Return the gradient, NaN where the value is NaN on a CPU. Torch's own takes NaN for positive,
        eager's vectors do not.
        """
        result: torch.Tensor = theirs(gradient, alpha, scale, input_scale, is_result, value)
        return (
            result
            if not has_trait(value.device.type, ATEN_CPU)
            else torch.where(torch.isnan(value), value, result)
        )

    return elu_backward


def _unsafe_masked_index(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def unsafe_masked_index(
        value: torch.Tensor, mask: torch.Tensor, indices: Sequence[torch.Tensor | None], fill: Any
    ) -> torch.Tensor:
        """Return the elements; negative indices count from the end. Torch's own takes them for 0."""
        counted = [
            index if index is None else torch.where(index < 0, index + size, index)
            for index, size in zip(indices, value.shape, strict=False)
        ]
        result: torch.Tensor = theirs(value, mask, counted, fill)
        return result

    return unsafe_masked_index


def _take(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return elements of the flattened tensor, contiguous. Torch's own reads the value of a 0-dimensional
    `index` on the host.
    """
    result: torch.Tensor = torch.ops.aten.index.Tensor(value.reshape(-1), [index.contiguous()])
    return result


def _copy_strided_view(
    value: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> torch.Tensor:
    """Return the view, copied: where a view may lie in a storage is known to the view's lowering."""
    view: torch.Tensor = torch.ops.aten.as_strided.default(value, size, stride, storage_offset)
    return view.clone(memory_format=torch.contiguous_format)


def _describe_refused() -> str:
    return (
        "index_add: the source must have the shape of what it is added to, but for the dimension of the index"
    )


def _adds_in_memory(dtype: torch.dtype) -> bool:
    return dtype in (*_WHOLE, torch.float32, torch.float64)


def _index_copy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def index_copy(value: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
        """Return rows written by index, as torch's own. Complex numbers are left to ATen, which writes at
        negative positions, too.
        """
        return NotImplemented if value.is_complex() else theirs(value, dim, index, source)

    return index_copy


def _index_add(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def index_add(
        value: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
    ) -> Any:
        """Return rows added by index. Torch's own indexes, and so broadcasts sources that eager refuses, and
        looks at positions in an empty tensor.
        """
        if has_trait(value.device.type, ATEN_CPU) and not _adds_in_memory(value.dtype):
            return NotImplemented  # by index ATen writes at negative positions, too
        if source.dim() != value.dim():
            return NotImplemented
        rows = value if value.dim() > 0 else value.unsqueeze(0)
        rows_added = source if source.dim() > 0 else source.unsqueeze(0)
        at = dim % rows.dim()
        for k, (size, wanted) in enumerate(zip(rows_added.shape, rows.shape, strict=True)):
            if k != at and not guard_size_condition(size == wanted, _describe_refused):
                return NotImplemented
        if is_surely(value.numel() == 0):
            return value.clone()
        positions = index if index.dim() > 0 else index.unsqueeze(0)
        added = theirs(rows, at, positions, rows_added, alpha=alpha)
        return added if value.dim() > 0 else added.squeeze(0)

    return index_add


def _angle(value: torch.Tensor) -> Any:
    """Return 0 or pi for real numbers, and NaN for NaN."""
    if value.is_complex():
        return NotImplemented
    wide = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    angle = torch.where(wide < 0, torch.full_like(wide, math.pi), torch.zeros_like(wide))
    return torch.where(torch.isnan(wide), wide, angle)


def _pow(value: torch.Tensor, exponent: Any) -> Any:
    """Return a power of booleans by one boolean, a boolean, where torch's meta function says an integer."""
    if value.dtype is not torch.bool or not isinstance(exponent, bool):
        return NotImplemented
    return value.clone() if exponent else torch.ones_like(value)


def _round(value: torch.Tensor, *, decimals: int) -> Any:
    """Return `value` rounded to `decimals` digits. In 16 bits eager rounds between the steps, and no power of
    ten holds many digits: both are left to eager.
    """
    if decimals == 0:
        return torch.ops.aten.round.default(value)
    if value.dtype not in (torch.float32, torch.float64) or abs(decimals) > _MOST_DIGITS:
        return NotImplemented
    power = torch.full((), 10.0 ** abs(decimals), dtype=value.dtype, device=value.device)
    scaled = value / power if decimals < 0 else value * power
    whole = torch.ops.aten.round.default(scaled)
    return whole * power if decimals < 0 else whole / power


def _describe_unequal_weights() -> str:
    return "bincount: there must be as many weights as positions, in one dimension"


def _bincount(value: torch.Tensor, weights: torch.Tensor | None = None, minlength: Any = 0) -> Any:
    """Return counts, or sums of weights. Torch 2.11's meta function gives both the type of `value`."""
    bincount = torch.ops.aten.bincount.default
    if weights is None or is_surely(value.numel() == 0):
        whole = value.dtype in _WHOLE and value.dtype is not torch.int64
        return bincount(value.to(torch.int64), None, minlength) if whole else NotImplemented
    if value.dtype not in _WHOLE:
        return NotImplemented
    if weights.dim() != 1 or not guard_size_condition(
        weights.shape[0] == value.numel(), _describe_unequal_weights
    ):
        return NotImplemented
    dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    positions = value.to(torch.int64)
    counts = bincount(positions, None, minlength)
    return torch.zeros_like(counts, dtype=dtype).scatter_add(0, positions, weights.to(dtype))


def _vector_norm(
    value: torch.Tensor, order: Any = 2, dim: Sequence[int] | None = None, *rest: Any, **keywords: Any
) -> Any:
    """Return the norm along dimensions counted from the first. Torch 2.11's meta function keeps others of one
    element.
    """
    if dim is None or all(k >= 0 for k in dim):
        return NotImplemented
    counted = [k % max(value.dim(), 1) for k in dim]
    return torch.ops.aten.linalg_vector_norm.default(value, order, counted, *rest, **keywords)


def _decompose_masked_scatter(value: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Return the k-th element that the mask chooses is the k-th of `source`: so many that are chosen
    come before it.
    """
    # Where nothing is chosen, and of what may be empty, there is no element to read.
    if not is_surely(source.numel() > 0) or not is_surely(value.numel() > 0):
        return NotImplemented
    chosen, old = torch.broadcast_tensors(mask, value)
    before = chosen.reshape(-1).cumsum(0) - 1
    # where nothing is chosen, any position will do
    position = torch.where(chosen.reshape(-1), before, 0)
    result = source.reshape(-1)[position].view(chosen.shape)
    return torch.where(chosen, result, old).contiguous()


def _make_pool_gradient(dims: int) -> Callable[..., Any]:
    """Return the gradient of a pooling that chose elements of its input: each goes where its position
    says.
    """

    def backward(gradient: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
        indices = rest[-1]
        known = indices.dtype is torch.int64 and gradient.dtype in (torch.float32, torch.float64)
        if not known or not is_surely(value.numel() > 0) or not value.is_contiguous():
            return NotImplemented
        flat = torch.zeros_like(value).flatten(-dims)
        added = flat.scatter_add(-1, indices.flatten(-dims), gradient.flatten(-dims))
        return added.view(value.shape)

    return backward


def _linspace(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def linspace(
        start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
    ) -> Any:
        """Return evenly spaced numbers. For integers the ends are truncated first, and steps are `float64` on
        a CPU, `float32` elsewhere.
        """
        # theirs asks what type the device is of
        where = torch.get_default_device() if device is None else torch.device(device)
        if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            return theirs(start, end, steps, dtype=dtype, device=where, **rest)
        wide = torch.float64 if has_trait(where.type, ATEN_CPU) else torch.float32
        ends = [_truncate(item, dtype) for item in (start, end)]
        return theirs(*ends, steps, dtype=wide, device=where, **rest).to(dtype)

    return linspace


def _unique_along_first_dim(operator: Callable[..., Any]) -> Callable[..., Any]:
    def unique(value: torch.Tensor, dim: int, *rest: Any, **keywords: Any) -> Any:
        """Return unique rows. Along another dimension than the first, on a CPU, they are a view of those
        along the first, with eager's strides.
        """
        if value.dim() == 0 or dim % value.dim() == 0 or not has_trait(value.device.type, ATEN_CPU):
            return NotImplemented
        result, *others = operator(value.movedim(dim, 0), 0, *rest, **keywords)
        return result.movedim(0, dim), *others

    return unique


def _unique(value: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    """Return the operator whose number of results torch 2.11 knows to depend on data."""
    return torch.ops.aten._unique2.default(value, sorted, return_inverse)[:2]


def _unique_consecutive(
    value: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is None:
        return NotImplemented
    return torch.ops.aten.unique_dim_consecutive.default(value, dim, return_inverse, return_counts)


def _truncate(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.sym_int(value)


# ---- The table ----


def decompositions(
    options: LoweringOptions = LoweringOptions(),  # noqa: B008
) -> dict[Any, Callable[..., Any]]:
    """Return the table for AOTAutograd: torch's core decompositions and more, less what is kept whole. It is
    the caller's own.
    """
    # `dict` of a proxy would hash each operator again, in Python
    return _table(options, list_composite_operators()).copy()


@functools.lru_cache(maxsize=8)
def _table(options: LoweringOptions, operators: tuple[str, ...]) -> MappingProxyType[Any, Callable[..., Any]]:
    """Return the table of `decompositions` for these composite `operators`."""
    table = copy_base_decompositions()
    further = list_operators(lambda info: info.decomposition == "torch")
    packets = [
        getattr(torch.ops.aten, name) for name in further if name in dir(torch.ops.aten) or _exists(name)
    ]
    table.update(get_more_decompositions(packets))
    table.update(list_corrections(table))
    kept = {op: function for op, function in table.items() if not _is_kept(op, options)}
    if options.sum_products:
        kept.update(product_decompositions())
    return MappingProxyType(
        {
            op: require_accepted_types(op, require_accepted_numbers(op, function))
            for op, function in kept.items()
        }
    )


def _exists(name: str) -> bool:
    try:
        getattr(torch.ops.aten, name)
    except AttributeError:
        return False
    return True


def _is_kept(op: Any, options: LoweringOptions) -> bool:
    if not isinstance(op, Overload):
        return False
    name = get_qualified_name(op)
    info = find_target_info(name)
    if info.is_attention:
        return not options.decompose_sdpa
    is_whole = op.namespace == "aten" and info.decomposition == "none"
    return is_whole or is_listed((*options.keep, *options.fallback), name)
