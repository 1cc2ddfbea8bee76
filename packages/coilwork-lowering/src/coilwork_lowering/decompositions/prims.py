"""Operators of `torch.ops.prims` in terms of ATen's, and copies between devices.

A prim takes operands of one type and shape, so the ATen operator of its kind promotes and broadcasts nothing.
A prim that copies where ATen makes a view is copied here. Prims that are calls in any case (Fourier
transforms, `svd`, random numbers), that write to an operand (`copy_to`, `resize`), or that return no tensors
are left out.

A copy to another device is one call of ATen's, in one element type; types are converted on the faster device.
Torch's own decomposition ends in `prims.device_put`, which is the same copy again, and imports another
compiler to ask what a device can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from coilwork_ir.device_traits import HOST_MEMORY, has_trait

# ---- Prims ----


aten: Final = torch.ops.aten
prims: Final = torch.ops.prims

# Names that both have.
_UNARY: Final = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil conj_physical cos cosh digamma erf erfc exp "
    "exp2 expm1 floor isfinite "
    "lgamma log log10 log1p log2 neg reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc "
    "real imag"
)
_BINARY: Final = "atan2 fmax fmin gcd hypot igamma igammac maximum minimum nextafter"
_BINARY_OF_TENSORS: Final = "add sub mul bitwise_and bitwise_or bitwise_xor eq ne ge gt le lt fmod remainder"
# A prim, and ATen's name for it.
_RENAMED: Final[Mapping[str, Callable[..., Any]]] = {
    "bessel_i0": aten.i0.default,
    "bessel_i0e": aten.special_i0e.default,
    "bessel_i1": aten.special_i1.default,
    "bessel_i1e": aten.special_i1e.default,
    "bessel_j0": aten.special_bessel_j0.default,
    "bessel_j1": aten.special_bessel_j1.default,
    "cat": aten.cat.default,
    "clone": aten.clone.default,
    "conj": torch.conj,
    "as_strided": aten.as_strided.default,
    "as_strided_scatter": aten.as_strided_scatter.default,
    "erf_inv": aten.erfinv.default,
    "erfcx": aten.special_erfcx.default,
    "fill": aten.fill.Scalar,
    "frexp": aten.frexp.Tensor,
    "ndtri": aten.special_ndtri.default,
    "pow": aten.pow.Tensor_Tensor,
    "rev": aten.flip.default,
    "shift_left": aten.bitwise_left_shift.Tensor,
    "shift_right_arithmetic": aten.bitwise_right_shift.Tensor,
    "spherical_bessel_j0": aten.special_spherical_bessel_j0.default,
    "squeeze": aten.squeeze.dims,
    "transpose": aten.permute.default,
    "view_of_dtype": aten.view.dtype,
    "where": aten.where.self,
    "zeta": aten.special_zeta.default,
}


def prim_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table, of `torch.ops.prims`' overloads."""
    results: dict[str, Callable[..., Any]] = dict(_RENAMED)
    for name in (*_UNARY.split(), *_BINARY.split()):
        # some are composite, and have no overload of their own to call
        results[name] = getattr(torch, name)
    for name in _BINARY_OF_TENSORS.split():
        results[name] = getattr(aten, name).Tensor
    results.update(
        div=_div,
        cbrt=_cbrt,
        broadcast_in_dim=_broadcast_in_dim,
        collapse=_collapse,
        collapse_view=_collapse_view,
        split_dim=_split_dim,
        reshape=_reshape,
        copy_strided=_copy_strided,
        amax=_extreme(aten.amax.default),
        amin=_extreme(aten.amin.default),
        sum=_sum,
        prod=_prod,
        var=_var,
        empty=_empty,
        empty_permuted=_empty_permuted,
        full=_decompose_full,
        full_like=_decompose_full_like,
        scalar_tensor=_scalar_tensor,
    )
    return {getattr(prims, name).default: function for name, function in results.items()}


def _div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the quotient; that of integers is rounded towards 0."""
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return torch.true_divide(a, b)
    return torch.div(a, b, rounding_mode="trunc")


def _cbrt(a: torch.Tensor) -> torch.Tensor:
    return torch.pow(a.abs(), 1 / 3).copysign(a)


def _broadcast_in_dim(a: torch.Tensor, shape: Sequence[Any], dimensions: Sequence[int]) -> torch.Tensor:
    """Return `a` with dimension `k` as `dimensions[k]`; other dimensions are new."""
    for place in range(len(shape)):
        if place not in dimensions:
            a = a.unsqueeze(place)
    return a.expand(shape)


def _collapse_shape(shape: Sequence[Any], start: int, end: int) -> tuple[Any, ...]:
    """`shape` with its dimensions from `start` to `end`, which is one of them, made one."""
    sizes = tuple(shape) or (1,)
    return (*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :])


def _collapse(a: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return _reshape(a, _collapse_shape(a.shape, start, end))


def _collapse_view(a: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return a.view(_collapse_shape(a.shape, start, end))


def _split_dim(a: torch.Tensor, dim: int, outer: Any) -> torch.Tensor:
    """Return `a` with dimension `dim` as two, the first of size `outer`."""
    return a.view((*a.shape[:dim], outer, a.shape[dim] // outer, *a.shape[dim + 1 :]))


def _reshape(a: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    return a.reshape(shape).clone(memory_format=torch.contiguous_format)


def _copy_strided(a: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    result = aten.empty_strided.default(a.shape, strides, dtype=a.dtype, device=a.device)
    copied: torch.Tensor = aten.copy.default(result, a)
    return copied


def _list_all_dims(dims: Sequence[int] | None, rank: int) -> list[int]:
    return list(range(rank)) if dims is None else list(dims)


def _extreme(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return an extreme by `op` that reduces nothing along no dimensions, where ATen takes all of them."""

    def extreme(a: torch.Tensor, dims: Sequence[int] | None, *, output_dtype: Any = None) -> torch.Tensor:
        chosen = _list_all_dims(dims, a.dim())
        result: torch.Tensor = op(a, chosen, False) if chosen else a.clone()
        return result if output_dtype is None else result.to(output_dtype)

    return extreme


def _sum(a: torch.Tensor, dims: Sequence[int] | None, *, output_dtype: Any = None) -> torch.Tensor:
    kind = a.dtype if output_dtype is None else output_dtype
    chosen = _list_all_dims(dims, a.dim())
    result: torch.Tensor = (
        aten.sum.dim_IntList(a, chosen, False, dtype=kind) if chosen else a.to(kind, copy=True)
    )
    return result


def _prod(a: torch.Tensor, dims: Sequence[int] | None, *, output_dtype: Any = None) -> torch.Tensor:
    kind = a.dtype if output_dtype is None else output_dtype
    for dim in sorted(_list_all_dims(dims, a.dim()), reverse=True):
        a = aten.prod.dim_int(a, dim, False, dtype=kind)
    return a.to(kind, copy=not dims)


def _var(
    a: torch.Tensor, dims: Sequence[int] | None, correction: float | None = 1, *, output_dtype: Any = None
) -> torch.Tensor:
    result: torch.Tensor = aten.var.correction(a, _list_all_dims(dims, a.dim()), correction=correction)
    return result if output_dtype is None else result.to(output_dtype)


def _empty(shape: Sequence[Any], *, dtype: Any, device: Any, requires_grad: bool) -> torch.Tensor:
    result: torch.Tensor = aten.empty.memory_format(shape, dtype=dtype, device=device)
    return result


def _empty_permuted(
    shape: Sequence[Any], physical_layout: Sequence[int], *, dtype: Any, device: Any, requires_grad: bool
) -> torch.Tensor:
    result: torch.Tensor = aten.empty_permuted.default(shape, physical_layout, dtype=dtype, device=device)
    return result


def _decompose_full(
    shape: Sequence[Any], value: Any, *, dtype: Any, device: Any, requires_grad: bool
) -> torch.Tensor:
    result: torch.Tensor = aten.full.default(shape, value, dtype=dtype, device=device)
    return result


def _decompose_full_like(
    a: torch.Tensor, value: Any, *, dtype: Any, device: Any, requires_grad: bool
) -> torch.Tensor:
    result: torch.Tensor = aten.full_like.default(a, value, dtype=dtype, device=device)
    return result


def _scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    result: torch.Tensor = aten.scalar_tensor.default(value, dtype=dtype, device=device)
    return result


# ---- Copies between devices ----


def device_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the entries; `table` has torch's own, for copies that stay where they are."""
    return {
        aten._to_copy.default: _to_copy(table[aten._to_copy.default]),
        torch.ops.prims.device_put.default: _device_put,
    }


def _to_copy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def to_copy(
        value: torch.Tensor | float,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
        **rest: Any,
    ) -> Any:
        """Convert types apart from the copy to another device. A copy that does only the latter stays, and so
        does a copy of a number, which products with autograd's zeros make.
        """
        if device is not None and not isinstance(value, torch.Tensor):
            return NotImplemented
        if not isinstance(value, torch.Tensor) or device is None or device == value.device:
            return theirs(
                value,
                dtype=dtype,
                device=device,
                non_blocking=non_blocking,
                memory_format=memory_format,
                **rest,
            )
        if dtype is None or dtype is value.dtype:
            return NotImplemented

        def call_moved(source: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = aten._to_copy.default(
                source, device=device, non_blocking=non_blocking, memory_format=memory_format, **rest
            )
            return result

        return (
            call_moved(value.to(dtype))
            if has_trait(device.type, HOST_MEMORY)
            else call_moved(value).to(dtype)
        )

    return to_copy


def _device_put(value: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
    return value.to(device, non_blocking=non_blocking)
