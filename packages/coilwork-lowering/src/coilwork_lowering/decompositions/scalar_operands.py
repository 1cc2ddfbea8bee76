"""Numbers among the operands, and the roundings that eager's kernels apply to them in 16 bits.

Torch's decompositions compute in `f32`. Eager's kernels differ: some round a number to the tensors' type and
round at every step, others compute in `f32` and round once. These decompositions round the number first, so
that it is the same however freely the steps are computed.

In `torch.add(x, n, alpha=a)` with a symbol `n`, AOTAutograd puts `n` in a tensor of no dimensions and drops
the `alpha`. So the number is scaled before the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import round_to_dtype
from coilwork_lowering.building.values import get_dtype

# ---- Numbers beside 16-bit floats ----


aten: Final = torch.ops.aten
_HALVES: Final = (torch.float16, torch.bfloat16)


def number_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return what replaces entries of `table`, torch's own."""
    xlogy = (aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
    xlog1py = (
        *(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar),
        aten.special_xlog1py.other_scalar,
    )
    own: dict[Any, Callable[..., Any]] = {
        **dict.fromkeys(xlogy, partial(_product_with_log, torch.log)),
        **dict.fromkeys(xlog1py, partial(_product_with_log, torch.log1p)),
        aten.logaddexp.default: _promote_both,
        aten.logaddexp2.default: _promote_both,
        aten.addr.default: _addr,
        aten.logit.default: _logit,
        aten.logit_backward.default: _logit_backward,
        aten.huber_loss.default: _huber_loss,
        aten.huber_loss_backward.default: _huber_loss_backward,
        aten.smooth_l1_loss.default: _smooth_l1_loss,
        aten.threshold.default: _decompose_threshold,
        aten.threshold_backward.default: _threshold_backward,
        aten.hardtanh_backward.default: _hardtanh_backward,
        aten.isin.Scalar_Tensor: _leave_to_aten,
        aten.celu.default: _celu,
        aten.mvlgamma.default: _mvlgamma,
        **{
            getattr(packet, overload): _decompose_linspace
            for packet in (aten.linspace, aten.logspace)
            for overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
        },
    }
    return {
        operator: partial(function, table[operator])
        for operator, function in own.items()
        if operator in table
    }


def round_to_type(number: Any, dtype: torch.dtype) -> Any:
    """`number` as a float of `dtype`, one of 16 or 32 bits, beyond its range an infinity. Symbols stay as
    they are.
    """
    if not isinstance(number, int | float) or dtype not in (*_HALVES, torch.float32):
        return number
    return round_to_dtype(number, get_dtype(dtype))


def _is_half_on_cpu(value: torch.Tensor, *others: torch.Tensor) -> bool:
    """Tell if eager computes these 16-bit floats on a CPU."""
    same = all(other.dtype is value.dtype for other in others)
    return same and value.dtype in _HALVES and has_trait(value.device.type, ATEN_CPU)


def _product_with_log(logarithm: Callable[..., Any], theirs: Callable[..., Any], a: Any, b: Any) -> Any:
    """`a` times a logarithm of `b`, where a zero makes it zero: both in one type, to which CPUs round the
    logarithm.
    """
    result = torch.result_type(a, b)
    dtype = result if result.is_floating_point else torch.get_default_dtype()
    device = (a if isinstance(a, torch.Tensor) else b).device
    if dtype not in _HALVES or not has_trait(device.type, ATEN_CPU):
        return theirs(round_to_type(a, dtype), round_to_type(b, dtype))
    a, b = (_tensor(item, dtype, device) for item in (a, b))
    product = torch.where(a == 0, torch.zeros((), dtype=dtype, device=device), a * logarithm(b))
    return torch.where(torch.isnan(b), b, product)


def _tensor(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    result: torch.Tensor = aten.full.default([], round_to_type(value, dtype), dtype=dtype, device=device)
    return result


def _promote_both(theirs: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> Any:
    dtype = torch.result_type(a, b)
    return theirs(a.to(dtype), b.to(dtype)) if dtype in _HALVES else theirs(a, b)


def _addr(
    theirs: Callable[..., Any],
    value: torch.Tensor,
    column: torch.Tensor,
    row: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Any:
    """Rounded at every step, of which the first scales the column."""
    dtype = value.dtype
    if dtype not in _HALVES or not column.dtype is row.dtype is dtype or column.dim() != 1 or row.dim() != 1:
        return theirs(value, column, row, beta=beta, alpha=alpha)
    beta, alpha = round_to_type(beta, dtype), round_to_type(alpha, dtype)
    product = _scale(column, alpha).unsqueeze(1) * row
    return product if beta == 0 else _scale(value, beta) + product


def _scale(value: torch.Tensor, factor: Any) -> torch.Tensor:
    return value if factor == 1 else value * factor


def _logit(theirs: Callable[..., Any], value: torch.Tensor, eps: Any = None) -> Any:
    """Return the logit; on CPUs computed in the tensor's type."""
    if not _is_half_on_cpu(value):
        return theirs(value, eps)
    if eps is not None and eps >= 0:
        low, high = _ends(eps, value.dtype)
        value = torch.where(value < low, low, torch.where(value > high, high, value))
    return torch.log(value / (1 - value))


def _logit_backward(
    theirs: Callable[..., Any], gradient: torch.Tensor, value: torch.Tensor, eps: Any = None
) -> Any:
    """Return the gradient of logit; on CPUs in the tensors' type. A negative `eps` counts as none."""
    eps = None if eps is not None and eps < 0 else eps
    if not _is_half_on_cpu(value, gradient):
        return theirs(gradient, value, eps)
    low, high = (0.0, 1.0) if eps is None else _ends(eps, value.dtype)
    slope = gradient / (value * (1 - value))
    return torch.where((value >= low) & (value <= high), slope, math.nan if eps is None else 0.0)


def _ends(eps: float, dtype: torch.dtype) -> tuple[float, float]:
    low = round_to_type(eps, dtype)
    return low, round_to_type(1 - low, dtype)


def _huber_loss(
    theirs: Callable[..., Any],
    value: torch.Tensor,
    target: torch.Tensor,
    reduction: int = 1,
    delta: Any = 1.0,
) -> Any:
    """Return the loss; on CPUs `bf16` is rounded at every step, `f16` once."""
    if not _is_half_on_cpu(value, target) or not delta > 0:
        return theirs(value, target, reduction, delta)
    if value.dtype is torch.float16:
        return _reduce_loss(theirs(value.float(), target.float(), 0, delta).to(value.dtype), reduction)
    delta = round_to_type(delta, value.dtype)
    distance = (value - target).abs()
    far = delta * (distance - round_to_type(0.5 * delta, value.dtype))
    return _reduce_loss(torch.where(distance <= delta, 0.5 * distance * distance, far), reduction)


def _huber_loss_backward(
    theirs: Callable[..., Any],
    gradient: torch.Tensor,
    value: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    delta: Any,
) -> Any:
    """Return the gradient; on CPUs rounded at every step. That of a mean rounds the number alone to the
    tensors' type.
    """
    if not _is_half_on_cpu(value, gradient, target):
        return theirs(gradient, value, target, reduction, delta)
    delta = round_to_type(delta, value.dtype)
    if reduction == 1:
        return theirs(gradient, value, target, reduction, delta)
    distance, most = value - target, gradient * delta
    return torch.where(distance <= -delta, -most, torch.where(distance >= delta, most, distance * gradient))


def _smooth_l1_loss(
    theirs: Callable[..., Any], value: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: Any = 1.0
) -> Any:
    """Return the loss; on CPUs `f16` is rounded at every step, `bf16` once."""
    if not _is_half_on_cpu(value, target) or beta == 0:
        return theirs(value, target, reduction, beta)
    if value.dtype is torch.bfloat16:
        return _reduce_loss(theirs(value.float(), target.float(), 0, beta).to(value.dtype), reduction)
    beta = round_to_type(beta, value.dtype)
    distance = (value - target).abs()
    far = distance - round_to_type(0.5 * beta, value.dtype)
    if beta == 0:
        return _reduce_loss(far, reduction)
    return _reduce_loss(torch.where(distance < beta, 0.5 * distance * distance / beta, far), reduction)


def _reduce_loss(elements: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == 0:
        return elements
    return elements.mean() if reduction == 1 else elements.sum()


def _decompose_threshold(
    theirs: Callable[..., Any], value: torch.Tensor, threshold: Any, replacement: Any
) -> Any:
    return theirs(value, _cut(threshold, value), _cut(replacement, value))


def _threshold_backward(
    theirs: Callable[..., Any], gradient: torch.Tensor, value: torch.Tensor, threshold: Any
) -> Any:
    """Return the gradient; on CPUs 16-bit floats are compared with the number as it is."""
    threshold = _cut(threshold, value)
    if _is_half_on_cpu(value, gradient) and round_to_type(threshold, value.dtype) != threshold:
        return theirs(gradient.float(), value.float(), threshold).to(value.dtype)
    return theirs(gradient, value, threshold)


def _hardtanh_backward(
    theirs: Callable[..., Any], gradient: torch.Tensor, value: torch.Tensor, low: Any, high: Any
) -> Any:
    """Return the gradient. On CPUs a NaN is not inside the limits, as in eager's vectors; torch's own asks if
    it is outside.
    """
    if (
        not has_trait(value.device.type, ATEN_CPU)
        or not value.is_floating_point()
        or gradient.dtype is not value.dtype
    ):
        return theirs(gradient, value, low, high)
    wide = value.float() if value.dtype in _HALVES else value
    return torch.where((wide > low) & (wide < high), gradient, 0.0)


def _cut(number: Any, value: torch.Tensor) -> Any:
    """`number` without its fraction beside integers."""
    return int(number) if isinstance(number, float) and not value.is_floating_point() else number


def _leave_to_aten(theirs: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Leave the search to ATen, which looks for the number in double precision or 16 bits; torch's own looks
    in `f32`.
    """
    return NotImplemented


def _decompose_linspace(theirs: Callable[..., Any], start: Any, end: Any, *rest: Any, **named: Any) -> Any:
    """Return evenly spaced numbers. Booleans as ends count as numbers; torch's own subtracts them. In 16 bits
    the operator has a lowering.
    """
    dtype = named.get("dtype")
    if (torch.get_default_dtype() if dtype is None else dtype) in _HALVES:
        return NotImplemented
    ends = (int(item) if isinstance(item, bool) else item for item in (start, end))
    return theirs(*ends, *rest, **named)


def _mvlgamma(theirs: Callable[..., Any], value: torch.Tensor, p: Any) -> Any:
    """Decompose the multivariate log-gamma, but in 16 bits, where the operator has a lowering: eager rounds
    at every step.
    """
    return NotImplemented if value.dtype in _HALVES else theirs(value, p)


def _celu(theirs: Callable[..., Any], value: torch.Tensor, alpha: Any = 1.0) -> Any:
    """Return `elu` with a scaled input, as eager computes it. A number that only the run knows has no
    reciprocal here.
    """
    if type(alpha) not in (int, float):
        return theirs(value, alpha)
    return aten.elu.default(value, alpha, 1.0, 1.0 / alpha) if alpha else NotImplemented


# ---- Scaled symbols ----


# A boolean or complex one is eager's to refuse.
_FACTORS: Final = (int, float, torch.SymInt, torch.SymFloat)


def decompose_scaled_sums() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of sums and differences with a scaled symbol; others are left alone."""
    return {operator: partial(_scale_before_sum, operator) for operator in (aten.add.Tensor, aten.sub.Tensor)}


def _scale_before_sum(operator: Callable[..., Any], value: Any, other: Any, *, alpha: Any = None) -> Any:
    """Return the sum of `value` and `other * alpha`. Called for the sum that it makes too, then without an
    `alpha`.
    """
    if not isinstance(other, torch.SymFloat) or type(alpha) not in _FACTORS:
        return NotImplemented
    return operator(value, other * alpha)
