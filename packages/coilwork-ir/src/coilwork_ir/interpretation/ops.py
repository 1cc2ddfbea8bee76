"""The meaning of every op, as torch functions: the interpreters' tables over `coilwork_ir.ops`.

Needs torch (`pip install coilwork-ir[interpreter]`). A scalar op takes operands that broadcast and returns a
tensor of the type that the op's rule gives. Integers wrap around; an integer division by zero, which is
undefined, gives the dividend divided by one. Reductions, scans and sorts work along the last dimension. A
scan by a function applies it to what came before and the next point, one point after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.dtypes import FORMATS, DType
from coilwork_ir.errors import InterpretError
from coilwork_ir.ops import ReduceKind, ScanKind
from coilwork_ir.scalar import Combine, Combining, Const, Op, Parameter, Scalar, iterate_postorder

# ---- Scalar ops ----


ScalarFunction: TypeAlias = Callable[..., Tensor]

_TORCH: Final[Mapping[DType, torch.dtype]] = MappingProxyType(
    {
        DType.F64: torch.float64,
        DType.F32: torch.float32,
        DType.F16: torch.float16,
        DType.BF16: torch.bfloat16,
        DType.F8E4M3: torch.float8_e4m3fn,
        DType.F8E5M2: torch.float8_e5m2,
        DType.I64: torch.int64,
        DType.I32: torch.int32,
        DType.I16: torch.int16,
        DType.I8: torch.int8,
        DType.U64: torch.uint64,
        DType.U32: torch.uint32,
        DType.U16: torch.uint16,
        DType.U8: torch.uint8,
        DType.BOOL: torch.bool,
        DType.C32: torch.complex32,
        DType.C64: torch.complex64,
        DType.C128: torch.complex128,
        DType.F8E4M3FNUZ: torch.float8_e4m3fnuz,
        DType.F8E5M2FNUZ: torch.float8_e5m2fnuz,
        DType.F8E8M0: torch.float8_e8m0fnu,
        DType.F4E2M1X2: torch.float4_e2m1fn_x2,
        DType.QI8: torch.qint8,
        DType.QU8: torch.quint8,
        DType.QI32: torch.qint32,
        DType.QU4X2: torch.quint4x2,
        DType.QU2X4: torch.quint2x4,
        DType.BITS8: torch.bits8,
        DType.BITS16: torch.bits16,
        DType.BITS4X2: torch.bits4x2,
        DType.BITS2X4: torch.bits2x4,
        DType.BITS1X8: torch.bits1x8,
    }
)
SMALL_FLOATS: Final = frozenset(_TORCH[dtype] for dtype in FORMATS)
"""The torch types of 8-bit floats, which torch computes little with."""
_FEW_KERNELS: Final = (torch.uint16, torch.uint32)  # torch computes little with these: go through int64
_LOW: Final = -(1 << 63)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch type of `dtype`."""
    return _TORCH[dtype]


def literal(value: bool | int | float, dtype: DType) -> Tensor:
    """Return a tensor without dimensions that holds `value`."""
    if dtype is DType.U64:
        return torch.tensor(value - (1 << 64) if value >= 1 << 63 else value, dtype=torch.int64).view(
            torch.uint64
        )
    if dtype.is_integer and not dtype.is_signed_integer:
        return torch.tensor(value, dtype=torch.int64).to(torch_dtype(dtype))
    return torch.tensor(value, dtype=torch.float64 if dtype.is_float else None).to(torch_dtype(dtype))


def order_integers(value: Tensor) -> Tensor:
    """Integers that torch can compare, in the order of `value`; other types unchanged."""
    if value.dtype is torch.uint64:
        return value.view(torch.int64) ^ _LOW
    return value.to(torch.int64) if value.dtype in _FEW_KERNELS else value


def restore_order(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the inverse of `order_integers`, for a result of type `dtype`."""
    if dtype is torch.uint64:
        return (value ^ _LOW).view(torch.uint64)
    return value.to(dtype)


def to_signed(value: Tensor) -> Tensor:
    """Two's complement integers with the value of `value` modulo a power of two; other types unchanged."""
    if value.dtype is torch.uint64:
        return value.view(torch.int64)
    return value.to(torch.int64) if value.dtype in _FEW_KERNELS else value


def from_signed(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the inverse of `to_signed`: `value` modulo the size of `dtype`."""
    return value.view(torch.uint64) if dtype is torch.uint64 else value.to(dtype)


def _modular(function: ScalarFunction) -> ScalarFunction:
    """Return an op whose result modulo 2**n depends on its operands modulo 2**n only."""

    def apply(*operands: Tensor) -> Tensor:
        return from_signed(function(*[to_signed(v) for v in operands]), operands[-1].dtype)

    return apply


def _make_comparison(function: ScalarFunction) -> ScalarFunction:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        return function(order_integers(a), order_integers(b))

    return apply


def _make_choice(function: ScalarFunction) -> ScalarFunction:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        return restore_order(function(order_integers(a), order_integers(b)), a.dtype)

    return apply


def _make_division(function: ScalarFunction, exact: Callable[[int, int], int]) -> ScalarFunction:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        if a.dtype is torch.uint64:
            return _elementwise_u64(lambda x, y: exact(x, y or 1), a, b)
        divisor = to_signed(b)
        safe = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
        return function(to_signed(a), safe).to(a.dtype)

    return apply


def _propagate_nan(polynomial: ScalarFunction) -> ScalarFunction:
    """Torch's recurrence of NaN stops before it has a result, and returns whatever was there."""

    def apply(x: Tensor, degree: Tensor) -> Tensor:
        found = polynomial(x, degree)
        plain = (degree < 1) | torch.isnan(degree) | torch.isinf(degree)
        return torch.where(torch.isnan(x) & ~plain, x, found)

    return apply


def _gcd(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is torch.uint64:
        return _elementwise_u64(math.gcd, a, b)
    if a.dtype in _FEW_KERNELS:
        return torch.gcd(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    return torch.gcd(a, b)


def _elementwise_u64(exact: Callable[[int, int], int], a: Tensor, b: Tensor) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    values = [exact(x, y) for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)]
    wrapped = [v - (1 << 64) if v >= 1 << 63 else v for v in (v % (1 << 64) for v in values)]
    return torch.tensor(wrapped, dtype=torch.int64).view(torch.uint64).reshape(a.shape)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is torch.uint64:
        return _elementwise_u64(lambda x, y: pow(x, y, 1 << 64), a, b)
    return from_signed(torch.pow(to_signed(a), to_signed(b)), a.dtype)


def _rshift(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is torch.uint64:
        return _elementwise_u64(lambda x, y: x >> y, a, b)
    return from_signed(torch.bitwise_right_shift(to_signed(a), to_signed(b)), a.dtype)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    a, b, c = torch.broadcast_tensors(a, b, c)
    if a.dtype is torch.float64:
        rows = zip(a.flatten().tolist(), b.flatten().tolist(), c.flatten().tolist(), strict=True)
        return torch.tensor([_fma_exact(*row) for row in rows], dtype=torch.float64).reshape(a.shape)
    product = a.double() * b.double()  # exact: 24 + 24 bits fit in 53
    addend = c.double()
    total = product + addend
    # Knuth's TwoSum gives the rounding error of the sum; rounding to odd makes the second rounding harmless
    # (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (total.view(torch.int64) & 1) == 0
    towards = torch.where(error > 0, torch.inf, -torch.inf).to(torch.float64)
    odd = torch.where(even & (error != 0) & torch.isfinite(total), torch.nextafter(total, towards), total)
    return odd.to(a.dtype)


def _fma_exact(a: float, b: float, c: float) -> float:
    try:
        exact = Fraction(a) * Fraction(b) + Fraction(c)
    except (OverflowError, ValueError):  # infinities and nan
        return a * b + c
    if exact == 0:
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _select(condition: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    if then.dtype in SMALL_FLOATS:
        chosen = torch.where(condition, then.view(torch.uint8), otherwise.view(torch.uint8))
        return chosen.view(then.dtype)
    return from_signed(torch.where(condition, to_signed(then), to_signed(otherwise)), then.dtype)


def convert(value: Tensor, dtype: DType) -> Tensor:
    """`value` converted to `dtype`: C semantics, truncating floats, wrapping integers; bool is `!= 0`."""
    target = torch_dtype(dtype)
    if target is torch.uint64:
        return (
            value.to(torch.int64).view(torch.uint64) if not value.dtype.is_floating_point else _to_u64(value)
        )
    if value.dtype is torch.uint64:
        if target.is_floating_point:
            low = (value.view(torch.int64) & 0xFFFFFFFF).to(torch.float64)
            high = ((value.view(torch.int64) >> 32) & 0xFFFFFFFF).to(torch.float64)
            return (high * 4294967296.0 + low).to(target)
        return value.view(torch.int64).to(target)
    if target is torch.float8_e4m3fn:
        # torch before 2.13 gives NaN for what is too large
        value = value.double().clamp(-448.0, 448.0).float()
    if value.dtype in _FEW_KERNELS or (target in _FEW_KERNELS and value.dtype.is_floating_point):
        value = value.to(torch.int64)
    return value.to(target)


def _to_u64(value: Tensor) -> Tensor:
    value = value.double()
    large = value >= 2.0**63
    shifted = torch.where(large, value - 2.0**63, value).to(torch.int64)
    return torch.where(large, shifted ^ _LOW, shifted).view(torch.uint64)


def reinterpret(value: Tensor, dtype: DType) -> Tensor:
    """Return the bits of `value` as `dtype`, a type of the same size."""
    return value.contiguous().view(torch_dtype(dtype))


def _compute_abs(value: Tensor) -> Tensor:
    return value if value.dtype in (*_FEW_KERNELS, torch.uint64) else torch.abs(value)


def _sign(value: Tensor) -> Tensor:
    if value.dtype in (*_FEW_KERNELS, torch.uint64):
        return from_signed((to_signed(value) != 0).to(torch.int64), value.dtype)
    return torch.sign(value)


def _floor(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _trunc(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


# `cast` and `bitcast` take the result type from their node; see `apply_op`.
SCALAR_FUNCTIONS: Final[Mapping[str, ScalarFunction]] = MappingProxyType(
    {
        "cast": convert,
        "bitcast": reinterpret,
        "where": _select,
        "add": _modular(torch.add),
        "sub": _modular(torch.sub),
        "mul": _modular(torch.mul),
        "div": torch.true_divide,
        "floordiv": _make_division(_floor, lambda a, b: a // b),
        "truncdiv": _make_division(_trunc, lambda a, b: a // b),
        "mod": _make_division(torch.remainder, lambda a, b: a % b),
        "fmod": _make_division(torch.fmod, lambda a, b: a % b),
        "fma": _fma,
        "neg": _modular(torch.neg),
        "abs": _compute_abs,
        "sign": _sign,
        "minimum": _make_choice(torch.minimum),
        "maximum": _make_choice(torch.maximum),
        "pow": _pow,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "trunc": torch.trunc,
        "round": torch.round,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "expm1": torch.expm1,
        "log": torch.log,
        "log2": torch.log2,
        "log10": torch.log10,
        "log1p": torch.log1p,
        "sin": torch.sin,
        "cos": torch.cos,
        "tan": torch.tan,
        "asin": torch.asin,
        "acos": torch.acos,
        "atan": torch.atan,
        "atan2": torch.atan2,
        "sinh": torch.sinh,
        "cosh": torch.cosh,
        "tanh": torch.tanh,
        "asinh": torch.asinh,
        "acosh": torch.acosh,
        "atanh": torch.atanh,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "erfc": torch.erfc,
        "lgamma": torch.lgamma,
        "hypot": torch.hypot,
        "copysign": torch.copysign,
        "gcd": _gcd,
        "zeta": torch.special.zeta,
        "igamma": torch.igamma,
        "igammac": torch.igammac,
        "hermite_h": torch.special.hermite_polynomial_h,
        "hermite_he": torch.special.hermite_polynomial_he,
        "laguerre": _propagate_nan(torch.special.laguerre_polynomial_l),
        "legendre": _propagate_nan(torch.special.legendre_polynomial_p),
        "eq": _make_comparison(torch.eq),
        "ne": _make_comparison(torch.ne),
        "lt": _make_comparison(torch.lt),
        "le": _make_comparison(torch.le),
        "gt": _make_comparison(torch.gt),
        "ge": _make_comparison(torch.ge),
        "bitwise_and": _modular(torch.bitwise_and),
        "bitwise_or": _modular(torch.bitwise_or),
        "bitwise_xor": _modular(torch.bitwise_xor),
        "bitwise_not": _modular(torch.bitwise_not),
        "lshift": _modular(torch.bitwise_left_shift),
        "rshift": _rshift,
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "signbit": torch.signbit,
    }
)


def apply_op(name: str, operands: list[Tensor], dtype: DType) -> Tensor:
    """Row `name` of the op table applied to `operands`; `dtype` is the type of the result."""
    function = SCALAR_FUNCTIONS[name]
    if name in ("cast", "bitcast"):
        return function(operands[0], dtype)
    return function(*operands)


# ---- Reductions, scans and sorts ----


Reducer: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, ...]]


def reduce_last(kind: ReduceKind, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return all results of combining `value` along its last dimension; elements where `mask` is false take
    no part.

    Raises:
        InterpretError: the smallest or largest of no elements.
    """
    if kind in ("min", "max", "argmin", "argmax") and value.shape[-1] == 0 and value.numel() == 0:
        if 0 in value.shape[:-1]:
            return (value.new_zeros(value.shape[:-1], dtype=torch.int64 if "arg" in kind else value.dtype),)
        raise InterpretError("empty-reduction", f"{kind} of no elements")
    return REDUCERS[kind](value, mask)


def _keep(value: Tensor, mask: Tensor | None, otherwise: bool | int | float) -> Tensor:
    return value if mask is None else torch.where(mask, value, torch.full_like(value, otherwise))


def _sum(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(to_signed(value), mask, 0)
    return (from_signed(torch.sum(work, -1, dtype=work.dtype), value.dtype),)


def _prod(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(to_signed(value), mask, 1)
    return (from_signed(torch.prod(work, -1, dtype=work.dtype), value.dtype),)


def _least(value: Tensor) -> bool | int | float:
    if value.dtype is torch.bool:
        return False
    return float("-inf") if value.dtype.is_floating_point else torch.iinfo(value.dtype).min


def _greatest(value: Tensor) -> bool | int | float:
    if value.dtype is torch.bool:
        return True
    return float("inf") if value.dtype.is_floating_point else torch.iinfo(value.dtype).max


def _min(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    return (restore_order(torch.amin(_keep(work, mask, _greatest(work)), -1), value.dtype),)


def _max(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    return (restore_order(torch.amax(_keep(work, mask, _least(work)), -1), value.dtype),)


def _first(best: Tensor, work: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    hit = work == best.unsqueeze(-1)
    if work.dtype.is_floating_point:
        hit = hit | torch.isnan(work)  # if there is a nan, nothing else equals the best
    if mask is not None:
        hit = hit & mask
    count = work.shape[-1]
    positions = torch.arange(count, device=work.device).expand(work.shape)
    return (torch.where(hit, positions, count).amin(-1) % count,)


def _argmin(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    work = _keep(work, mask, _greatest(work))
    return _first(torch.amin(work, -1), work, mask)


def _argmax(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = order_integers(value)
    work = _keep(work, mask, _least(work))
    return _first(torch.amax(work, -1), work, mask)


def _reduce_any(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return (torch.any(_keep(value, mask, False), -1),)


def _reduce_all(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return (torch.all(_keep(value, mask, True), -1),)


def _xor_sum(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    work = _keep(to_signed(value), mask, 0)
    result = torch.zeros_like(work[..., :1]) if work.shape[-1] else work.new_zeros((*work.shape[:-1], 1))
    while work.shape[-1] > 1:
        half = work.shape[-1] // 2
        if work.shape[-1] % 2:
            result = torch.bitwise_xor(result, work[..., -1:])
        work = torch.bitwise_xor(work[..., :half], work[..., half : 2 * half])
    if work.shape[-1]:
        result = torch.bitwise_xor(result, work)
    return (from_signed(result.squeeze(-1), value.dtype),)


def _welford(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    count: Tensor | int = value.shape[-1] if mask is None else mask.expand(value.shape).sum(-1)
    mean = torch.sum(_keep(value, mask, 0), -1) / count
    apart = _keep(value - mean.unsqueeze(-1), mask, 0)
    return (mean.to(value.dtype), torch.sum(apart * apart, -1))


def _online_softmax(value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    if value.shape[-1] == 0:
        shape = value.shape[:-1]
        return (value.new_full(shape, float("-inf")), value.new_zeros(shape))
    top = torch.amax(_keep(value, mask, float("-inf")), -1)
    return (top, torch.sum(_keep(torch.exp(value - top.unsqueeze(-1)), mask, 0), -1))


REDUCERS: Final[Mapping[ReduceKind, Reducer]] = MappingProxyType(
    {
        "sum": _sum,
        "prod": _prod,
        "min": _min,
        "max": _max,
        "argmin": _argmin,
        "argmax": _argmax,
        "any": _reduce_any,
        "all": _reduce_all,
        "xor_sum": _xor_sum,
        "welford": _welford,
        "online_softmax": _online_softmax,
    }
)


def scan_last(kind: ScanKind, value: Tensor, *, reverse: bool) -> tuple[Tensor, ...]:
    """Return all results of the inclusive running `kind` along the last dimension, from the end if
    `reverse`.
    """
    count = value.shape[-1]
    results = SCANNERS[kind](value.flip(-1) if reverse else value)
    if not reverse:
        return results
    flipped = [result.flip(-1) for result in results]
    places = [_scans_positions(kind, k) for k in range(len(flipped))]
    return tuple(
        count - 1 - result if place else result for result, place in zip(flipped, places, strict=True)
    )


def _scans_positions(kind: ScanKind, output: int) -> bool:
    return output == 1 or kind in ("argmin", "argmax")


def _cumsum(value: Tensor) -> tuple[Tensor, ...]:
    work = to_signed(value)
    return (from_signed(torch.cumsum(work, -1, dtype=work.dtype), value.dtype),)


def _cumprod(value: Tensor) -> tuple[Tensor, ...]:
    work = to_signed(value)
    return (from_signed(torch.cumprod(work, -1, dtype=work.dtype), value.dtype),)


def _cummin(value: Tensor) -> tuple[Tensor, ...]:
    values, positions = torch.cummin(order_integers(value), -1)
    return (restore_order(values, value.dtype), positions)


def _cummax(value: Tensor) -> tuple[Tensor, ...]:
    values, positions = torch.cummax(order_integers(value), -1)
    return (restore_order(values, value.dtype), positions)


SCANNERS: Final[Mapping[ScanKind, Callable[[Tensor], tuple[Tensor, ...]]]] = MappingProxyType(
    {
        "sum": _cumsum,
        "prod": _cumprod,
        "min": _cummin,
        "max": _cummax,
        "argmin": lambda value: (_cummin(value)[1],),
        "argmax": lambda value: (_cummax(value)[1],),
        "logcumsumexp": lambda value: (torch.logcumsumexp(value, -1),),
    }
)


def sort_last(value: Tensor, *, descending: bool, topk: int = 0) -> tuple[Tensor, Tensor]:
    """Return the values along the last dimension in order, equal ones as they were, and where they were.

    The first `topk` are those of `torch.topk` on CPUs instead; behind them is anything.
    """
    keys = order_integers(value)
    values, positions = torch.sort(keys, dim=-1, descending=descending, stable=True)
    if topk and keys.shape[-1]:
        chosen = torch.topk(keys.cpu(), topk, largest=descending)
        for whole, first in ((values, chosen.values), (positions, chosen.indices)):
            whole[..., :topk] = first
    return (restore_order(values, value.dtype), positions)


def scan_all(kind: Combining, values: Sequence[Tensor], *, reverse: bool) -> tuple[Tensor, ...]:
    """Return all results of the inclusive running `kind` of `values` along the last dimension, from the end
    if `reverse`.
    """
    if not isinstance(kind, Combine):
        (value,) = values
        return scan_last(kind, value, reverse=reverse)
    wide = torch.broadcast_tensors(*values)
    count = wide[0].shape[-1]
    points = range(count - 1, -1, -1) if reverse else range(count)
    results = tuple(torch.empty(value.shape, dtype=value.dtype) for value in wide)
    running: list[Tensor] = []
    for point in points:
        element = [value[..., point] for value in wide]
        running = combine(kind, [*running, *element]) if running else element
        for result, value in zip(results, running, strict=True):
            result[..., point] = value
    return results


def combine(function: Combine, given: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of `function` for two tuples of values, one behind the other."""
    done: dict[Scalar, Tensor] = {}
    for node in iterate_postorder(function.results):
        match node:
            case Const():
                done[node] = literal(node.value, node.dtype)
            case Parameter():
                done[node] = given[node.position]
            case Op():
                done[node] = apply_op(node.op, [done[operand] for operand in node.operands], node.dtype)
            case _:
                raise TypeError(f"not a scalar of a function: {node!r}")
    return [done[result] for result in function.results]
