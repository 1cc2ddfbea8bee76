"""Decompositions for images: padding, antialiased resizing, and `im2col` of integers.

- Padding: crops by negative pads, padding by elements, and its derivative, where torch's meta functions do
  not know the layout. The derivative adds the gradients of an outermost element's copies to that element.
- Antialiased resizing and its derivative: weighted sums over windows, one dimension after the other. Where an
  image shrinks, windows and the filter widen by the same factor. The program computes positions and weights
  from sizes. Elements outside a window are left out, because an infinity times a weight of 0 would be NaN.
- `im2col` and `col2im` are lowered as they are for floats. Other types take torch's decomposition, by tables
  of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_lowering.torch_compat.operators import suggest_format
from coilwork_lowering.torch_compat.sizes import is_surely

# ---- Padding ----


def pad_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions of padding by overload; `table` holds torch's own."""
    aten = torch.ops.aten
    results: dict[Any, Callable[..., Any]] = {aten.constant_pad_nd.default: _crop}
    for k in (1, 2, 3):
        for kind in ("reflection", "replication"):
            padded = getattr(aten, f"{kind}_pad{k}d").default
            results[padded] = _pad_by_elements(padded, table[padded], k)
        reflected = getattr(aten, f"reflection_pad{k}d_backward").default
        replicated = getattr(aten, f"replication_pad{k}d_backward").default
        results[reflected] = _make_pad_gradient(reflected, k, _reflect_backward)
        results[replicated] = _make_pad_gradient(replicated, k, _replicate_backward)
    return results


def _crop(value: torch.Tensor, padding: Sequence[Any], fill: Any = 0) -> Any:
    """A copy of what is left where nothing is added, as ATen; torch's meta function lays it out by rows if
    sizes are not known.
    """
    if not all(is_surely(amount <= 0) for amount in padding):
        return NotImplemented
    left = value
    for k, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = value.dim() - 1 - k
        left = left.narrow(dim, -before, left.shape[dim] + before + after)
    return left.clone()


def _pad_by_elements(padded: Callable[..., Any], theirs: Callable[..., Any], dims: int) -> Callable[..., Any]:
    def decompose(value: torch.Tensor, *rest: Any) -> Any:
        """Lowered as it is where eager's result is contiguous, which is all that meta functions of torch 2.11
        know; and where it is not, as a copy of such a one.

        Booleans, too: eager refuses them, in words of its own.
        """
        if value.dtype == torch.bool or (_is_surely_contiguous(value) and not value.is_complex()):
            return NotImplemented
        rows = value.clone(memory_format=torch.contiguous_format)
        if (
            value.is_complex()
            or not has_trait(value.device.type, ATEN_CPU)
            or not _is_surely_contiguous(rows)
        ):
            return theirs(value, *rest)
        return _take_format_of(padded(rows, *rest), value, dims)

    return decompose


def _make_pad_gradient(
    backward: Callable[..., Any], dims: int, by_parts: Callable[..., Any]
) -> Callable[..., Any]:
    def decompose(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
        """`by_parts`, or a call, for a contiguous value; what that gives in the format of another. Of a value
        the shape counts.
        """
        if _is_surely_contiguous(value) or not has_trait(value.device.type, ATEN_CPU):
            return by_parts(gradient, value, padding)
        rows = value.new_empty(value.shape)
        if not _is_surely_contiguous(rows):
            return NotImplemented
        result = by_parts(gradient, rows, padding)
        if result is NotImplemented:
            result = backward(gradient, rows, padding)
        return _take_format_of(result.clone(memory_format=torch.contiguous_format), value, dims)

    return decompose


def _take_format_of(result: torch.Tensor, value: torch.Tensor, dims: int) -> torch.Tensor:
    """`result` in channels-last if `value` lies so: as eager's kernels for CPUs make it, of one volume as of
    a batch of images.
    """
    wanted = suggest_format(value) if dims > 1 else torch.contiguous_format
    return result if wanted is torch.contiguous_format else result.clone(memory_format=wanted)


def _is_surely_contiguous(value: torch.Tensor) -> bool:
    """Tell if rows follow each other whatever the sizes are; `is_contiguous` would add guards on them.

    Dimensions of one element count: by their strides torch tells a format from another.
    """
    step: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not is_surely(stride == step):
            return False
        step = step * size
    return True


def _is_summed_by_parts(value: torch.Tensor) -> bool:
    """Tell if sums of copies' gradients, one dimension after the other, are no further from the exact ones
    than ATen's: its kernels for CPUs add numbers of 16 bits in another precision, those for GPUs round each
    addition to them.
    """
    if not has_trait(value.device.type, ATEN_CPU):
        return value.dtype.is_floating_point
    return value.dtype in (torch.float32, torch.float64) and _is_surely_contiguous(value)


def _reflect_backward(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
    """`padding` holds how much is added before and after, from the last dimension on."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    if not _is_summed_by_parts(value) or not all(is_surely(amount >= 0) for pair in pairs for amount in pair):
        return NotImplemented
    for k, (before, after) in enumerate(pairs):
        gradient = _sum_reflections(gradient, value.dim() - 1 - k, before, after)
    return gradient


def _sum_reflections(gradient: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """The gradient of what was reflected along one dimension: an element `i` behind the first one has a copy
    `i` before it, and so at the end.
    """
    size = gradient.shape[dim] - before - after
    total = gradient.narrow(dim, before, size)
    if not is_surely(before == 0):
        copies = gradient.narrow(dim, 0, before).flip(dim)
        total = total + _surround_with_zeros(copies, dim, 1, size - 1 - before)
    if not is_surely(after == 0):
        copies = gradient.narrow(dim, before + size, after).flip(dim)
        total = total + _surround_with_zeros(copies, dim, size - 1 - after, 1)
    return total


def _replicate_backward(gradient: torch.Tensor, value: torch.Tensor, padding: Sequence[int]) -> Any:
    """`padding` holds how much is added before and after, from the last dimension on; what is negative was
    cut off.
    """
    if not _is_summed_by_parts(value):
        return NotImplemented
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    for k, (before, after) in enumerate(pairs):
        size = value.shape[-1 - k]
        if not is_surely(before + size > 0) or not is_surely(after + size > 0):
            return NotImplemented
    for k, (before, after) in enumerate(pairs):
        gradient = _sum_borders(gradient, value.dim() - 1 - k, before, after)
    return gradient


def _sum_borders(gradient: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """The gradient of what was padded along one dimension."""
    first, end = max(before, 0), gradient.shape[dim] - max(after, 0)
    inner = gradient.narrow(dim, first, end - first)
    total = (
        inner
        if before >= 0 and after >= 0
        else _surround_with_zeros(inner, dim, -min(before, 0), -min(after, 0))
    )
    size = total.shape[dim]
    if before > 0:
        outer = gradient.narrow(dim, 0, before).sum(dim, keepdim=True)
        total = total + _surround_with_zeros(outer, dim, 0, size - 1)
    if after > 0:
        outer = gradient.narrow(dim, end, after).sum(dim, keepdim=True)
        total = total + _surround_with_zeros(outer, dim, size - 1, 0)
    return total


def _surround_with_zeros(value: torch.Tensor, dim: int, before: Any, after: Any) -> torch.Tensor:
    """Return `value` with zeros before and after it along `dim`."""
    pads = [0, 0] * (value.dim() - 1 - dim) + [before, after]
    result: torch.Tensor = torch.ops.aten.constant_pad_nd.default(value, pads)
    return result


# ---- Resizing ----


Filter = Callable[[Tensor], Tensor]
# Of the cubic filter, as Pillow and ATen have it where they antialias.
_CUBIC: Final = -0.5


def resize_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of antialiased resizing, by overload."""
    aten = torch.ops.aten
    return {
        aten._upsample_bilinear2d_aa.default: _make_resize(_triangle, 1),
        aten._upsample_bicubic2d_aa.default: _make_resize(_cubic, 2),
        aten._upsample_bilinear2d_aa_backward.default: _make_resize_gradient(_triangle, 1, keeps_layout=True),
        aten._upsample_bicubic2d_aa_backward.default: _make_resize_gradient(_cubic, 2, keeps_layout=False),
    }


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    x = x.abs()
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _CUBIC
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taps:
    """Summands along one dimension: `places` with `weights`, where they are `inside`; all `(results,
    summands)`.
    """

    places: Tensor
    weights: Tensor
    inside: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One dimension of `size` elements that becomes `result`.

    Attributes:
        scale: elements of the image per element of the result.
        reach: how far the filter reaches where nothing shrinks.
    """

    size: int
    result: int
    scale: float
    filter: Filter
    reach: int

    @property
    def support(self) -> float:
        """Return how far the filter reaches."""
        return self.reach * max(self.scale, 1.0)

    def window(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first element of the windows of elements `place` of the result, and the first behind
        it.
        """
        centre = self.scale * (place + 0.5)
        first = (centre - self.support + 0.5).to(torch.int64).clamp(min=0)
        return first, (centre + self.support + 0.5).to(torch.int64).clamp(max=self.size)

    def weight(self, element: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight of `element` for `place`, not normalized, and if it is inside the window.

        The weight is 0 outside.
        """
        first, end = self.window(place)
        slope = 1 / self.scale if self.scale >= 1 else 1.0
        result = self.filter((element - self.scale * (place + 0.5) + 0.5) * slope)
        inside = (element >= first) & (element < end)
        return torch.where(inside, result, torch.zeros_like(result)), inside

    def taps(self, dtype: torch.dtype, device: torch.device) -> _Taps:
        """Return the elements that each place of the result reads, `(result, taps)`."""
        place = torch.arange(self.result, dtype=dtype, device=device)[:, None]
        element, weight, inside = self._list_taps(place)
        weight = weight / _replace_zero_by_one(weight.sum(1, keepdim=True))
        return _Taps(places=element.clamp(max=self.size - 1), weights=weight, inside=inside)

    def users(self, dtype: torch.dtype, device: torch.device) -> _Taps:
        """Return the places of the result that each element counts for, `(size, places)`."""
        everywhere = torch.arange(self.result, dtype=dtype, device=device)
        _, weights, _ = self._list_taps(everywhere[:, None])
        totals = _replace_zero_by_one(weights.sum(1))
        element = torch.arange(self.size, dtype=dtype, device=device)[:, None]
        if self.scale == 0:
            first, many = torch.zeros_like(element).to(torch.int64), self.result
        else:
            first = ((element + 0.5 - self.support) / self.scale - 0.5).floor().to(torch.int64)
            many = math.ceil(2 * self.support / self.scale) + 3
        place = first - 1 + torch.arange(many + 1, device=device)
        exists = (place >= 0) & (place < self.result)
        place = place.clamp(0, self.result - 1)
        weight, inside = self.weight(element, place.to(dtype))
        return _Taps(places=place, weights=weight / totals[place], inside=inside & exists)

    def _list_taps(self, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, _ = self.window(place)
        element = first + torch.arange(math.ceil(self.support) * 2 + 1, device=place.device)
        return (element, *self.weight(element.to(place.dtype), place))


def _replace_zero_by_one(total: Tensor) -> Tensor:
    return torch.where(total == 0, torch.ones_like(total), total)


def _sides(
    image: Sequence[Any],
    result: Sequence[Any],
    corners: bool,
    scales: Sequence[Any],
    filter: Filter,
    reach: int,
) -> list[_Side] | None:
    """Return the two dimensions; None where sizes are not known."""
    if not all(isinstance(n, int) for n in (*image, *result)):
        return None
    results = []
    for size, places, scale in zip(image, result, scales, strict=True):
        if corners:
            ratio = (size - 1) / (places - 1) if places > 1 else 0.0
        else:
            ratio = 1 / scale if scale is not None and scale > 0 else size / places
        results.append(_Side(size=size, result=places, scale=ratio, filter=filter, reach=reach))
    return results


def _combine_taps(value: Tensor, dim: int, taps: _Taps) -> Tensor:
    """Return weighted sums of elements along `dim`, counted from the end."""
    shape = (*taps.places.shape, *(1 for _ in range(-dim - 1)))
    read: Tensor = torch.ops.aten.index.Tensor(value, [None] * (value.dim() + dim) + [taps.places])
    weighed = read * taps.weights.view(shape)
    return torch.where(taps.inside.view(shape), weighed, torch.zeros_like(weighed)).sum(dim)


def _resize_in_steps(value: Tensor, taps: Sequence[_Taps | None]) -> Tensor:
    """Return the columns, then the rows, each as its taps say if it has some."""
    result = value
    for dim, along in zip((-1, -2), taps, strict=True):
        if along is not None:
            result = _combine_taps(result, dim, along)
    return result


def _choose_wide_dtype(value: Tensor) -> torch.dtype:
    return torch.float64 if value.dtype is torch.float64 else torch.float32


def _lay_out_image(found: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    form = torch.channels_last if channels_last else torch.contiguous_format
    return found.to(dtype).contiguous(memory_format=form)


def _is_channels_last(value: Tensor) -> bool:
    """Tell if `value` is channels-last as ATen judges it, which looks at strides of single images, too."""
    return suggest_format(value) is torch.channels_last


def _make_resize(filter: Filter, reach: int) -> Callable[..., Any]:
    def resize(
        value: Tensor, output_size: Sequence[Any], corners: bool, scales_h: Any = None, scales_w: Any = None
    ) -> Any:
        sides = _sides(value.shape[2:], output_size, corners, (scales_h, scales_w), filter, reach)
        if sides is None or not value.is_floating_point() or 0 in (*value.shape, *output_size):
            return NotImplemented
        wide = _choose_wide_dtype(value)
        # On CPUs ATen leaves a dimension as it is that keeps its size, whatever its scale; not so its
        # derivative.
        kept = [has_trait(value.device.type, ATEN_CPU) and side.size == side.result for side in sides]
        taps = [
            None if same else side.taps(wide, value.device)
            for side, same in zip(reversed(sides), reversed(kept), strict=True)
        ]
        result = value.clone() if all(kept) else _resize_in_steps(value.to(wide), taps)
        return _lay_out_image(result, value.dtype, _is_channels_last(value))

    return resize


def _make_resize_gradient(filter: Filter, reach: int, *, keeps_layout: bool) -> Callable[..., Any]:
    def backward(
        gradient: Tensor,
        output_size: Sequence[Any],
        input_size: Sequence[Any],
        corners: bool,
        scales_h: Any = None,
        scales_w: Any = None,
    ) -> Any:
        sides = _sides(input_size[2:], output_size, corners, (scales_h, scales_w), filter, reach)
        if sides is None or not gradient.is_floating_point() or 0 in (*gradient.shape, *input_size):
            return NotImplemented
        wide = _choose_wide_dtype(gradient)
        users = [side.users(wide, gradient.device) for side in reversed(sides)]
        channels_last = keeps_layout and _is_channels_last(gradient)
        return _lay_out_image(_resize_in_steps(gradient.to(wide), users), gradient.dtype, channels_last)

    return backward


# ---- windows: im2col, col2im, and what is behind unfold ----


def unfold_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions of `im2col`, `col2im` and `unfold_backward` by overload; `table` holds torch's
    own.
    """
    aten = torch.ops.aten
    patches = (aten.im2col.default, aten.col2im.default)
    backward = aten.unfold_backward.default
    return {
        **{op: _decompose_other_types(table[op]) for op in patches},
        backward: partial(_put_windows_back, table[backward]),
    }


def _put_windows_back(
    theirs: Callable[..., Any],
    gradient: torch.Tensor,
    input_size: Sequence[Any],
    dim: int,
    size: int,
    step: int,
) -> Any:
    """Return the tensor whose windows are `gradient`, and 0 between them; a sum where they overlap.

    Windows that do not overlap are only moved: adding -0 to 0 would lose its sign.
    """
    rank = len(input_size)
    dim = dim % rank if rank else 0
    known = rank > 0 and isinstance(input_size[dim], int) and isinstance(gradient.shape[dim], int)
    if not known or step < size or gradient.shape[dim] == 0 or size == 0:
        return theirs(gradient, input_size, dim, size, step)
    apart = gradient.movedim(-1, dim + 1)
    behind = [0, 0] * (rank - 1 - dim)
    apart = torch.constant_pad_nd(apart, [*behind, 0, step - size]) if step > size else apart
    line = apart.flatten(dim, dim + 1)
    rest = input_size[dim] - line.shape[dim]
    whole = (
        torch.constant_pad_nd(line, [*behind, 0, rest]) if rest > 0 else line.narrow(dim, 0, input_size[dim])
    )
    return whole.contiguous()


def _decompose_other_types(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(value: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return NotImplemented if value.is_floating_point() else theirs(value, *rest, **named)

    return decompose
