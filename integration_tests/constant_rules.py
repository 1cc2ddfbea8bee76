"""A table of constants: each special value of each type at each place where a kernel holds constants, to the
bit as in eager.

Both back ends run it: in C++ on the CPU, and in Triton's interpreter when `TRITON_INTERPRET` and
`COILWORK_TRITON_ON_CPU` say so.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from integration_tests.dtype_rules import FLOATS, INTEGERS, Rule, answers

Number = bool | int | float
UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)
_INF, _NAN = math.inf, math.nan


def special(dtype: torch.dtype) -> list[Number]:
    """Numbers of `dtype` that a compiler may lose: zeros of both signs, extremes, subnormals, what no
    narrower type holds.
    """
    if dtype is torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        wanted = [0, 1, info.max, info.max - 1, info.max // 2 + 1, info.min, info.min + 1, info.max // 2 // 3]
        return [*dict.fromkeys(wanted), *([-1, -2] if info.min else [])]
    info = torch.finfo(dtype)
    tiny = float(info.smallest_normal)
    least = tiny * float(info.eps)
    found: list[Number] = [0.0, -0.0, _INF, -_INF, _NAN, least, -least, 3 * least, tiny - least, tiny, -tiny]
    found += [
        info.max,
        info.min,
        1.0 + info.eps,
        -1.0 - info.eps,
        0.1,
        -1 / 3,
        1e-8,
        1e30,
        65519.99,
        2049.0,
        257.0,
    ]
    # half way between two f16 numbers, but for what f32 does not hold
    found += [1.00048828125 + 1e-9, 2.0**-24 * (1 + 2.0**-30), 16777217.0, 1e300, 5e-324, -5e-324, -1e-60]
    return [value for value in found if not math.isfinite(value) or abs(value) <= info.max]


def _operand(dtype: torch.dtype) -> tuple[Tensor]:
    if not dtype.is_floating_point:
        return (torch.tensor([0, 1, 1, 0, 1, 0, 1]).to(dtype),)
    return (torch.tensor([1.0, -1.0, 2.0, -0.0, 0.0, -_INF, _NAN], dtype=torch.float64).to(dtype),)


def _one(dtype: torch.dtype) -> tuple[Tensor]:
    return (torch.tensor([0.75, -0.75, 1.5, -3.0, 4.0, -0.125, _NAN], dtype=torch.float64).to(dtype),)


Each = Callable[[Tensor, Number], Tensor]


def _everywhere(each: Each, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(each(x, value) for value in special(x.dtype))


def _chosen(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) % 3 == 0


def _padded(x: Tensor, value: Number) -> Tensor:
    return functional.pad(x, (1, 2), value=value)


def _within(x: Tensor, value: Number) -> Tensor:
    """Of parts, one of which is the number: masks of loads have others than 0."""
    return torch.cat([x, x.new_full((2,), value), x.flip(0)])


def _sliced(x: Tensor, value: Number) -> Tensor:
    y = x.clone()
    y[2:5] = value
    return y


def _scattered(x: Tensor, value: Number) -> Tensor:
    y = x.clone()
    y[torch.tensor([1, 4], device=x.device)] = value
    return y


def _plain_numbers(x: Tensor) -> tuple[Tensor, ...]:
    """Choices of two numbers, neither of which is a tensor, and numbers of no argument's shape."""
    chosen, values = _chosen(x), special(x.dtype)
    pairs = zip(values, reversed(values), strict=True)
    return tuple(torch.where(chosen, x.new_full((), a), x.new_full((), b)) for a, b in pairs)


def _converted(to: torch.dtype, x: Tensor, value: Number) -> Tensor:
    return torch.where(_chosen(x), x.to(to), torch.full_like(x, value).to(to))


def _reduced(x: Tensor) -> tuple[Tensor, ...]:
    """Of rows that are constants, and of such with a hole."""
    found = []
    for value in (-0.0, 0.0, _INF, -_INF, _NAN, torch.finfo(x.dtype).max, torch.finfo(x.dtype).min):
        row = torch.where(torch.arange(70, device=x.device) > 68, x[0].abs() * value, value)
        found += [row.amax(), row.amin(), row.prod(), row[:3].cumprod(0)]
        # from which zero a running sum starts, eager's kernels for GPUs do not agree on
        found += [row[:3].cumsum(0), row[69:].logcumsumexp(0)] if value else []
        found += [row.cummax(0).values]
    return tuple(found)


def _powers(x: Tensor) -> tuple[Tensor, ...]:
    whole = torch.tensor([0.0, 1.0, -1.0, 2.0, -3.0, _INF, -_INF], dtype=x.dtype, device=x.device)
    return tuple(torch.pow(value, whole) for value in (0.0, -0.0, 1.0, _INF, -_INF, _NAN))


def _rule(
    each: Each, dtypes: tuple[torch.dtype, ...], inputs: Callable[[torch.dtype], tuple[Tensor]] = _operand
) -> Rule:
    return Rule(run=partial(_everywhere, each), inputs=inputs, dtypes=dtypes)


_COPIED: Final = (*FLOATS, *INTEGERS, torch.bool)
_TENSORS: Final = (*_COPIED, *UNSIGNED)
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "fills": _rule(lambda x, v: torch.full_like(x, v), _TENSORS),
        "chosen from": _rule(lambda x, v: torch.where(_chosen(x), v, x), _COPIED),
        "chosen else": _rule(lambda x, v: torch.where(_chosen(x), x, v), _COPIED),
        "chosen numbers": Rule(run=_plain_numbers, inputs=_operand, dtypes=_COPIED),
        "masked fills": _rule(lambda x, v: x.masked_fill(_chosen(x), v), _COPIED),
        "pads": _rule(_padded, _COPIED),
        "parts": _rule(_within, _COPIED),
        "slices": _rule(_sliced, _COPIED),
        "scattered": _rule(_scattered, _COPIED),
        "tensors of one": _rule(
            lambda x, v: torch.where(_chosen(x), x, torch.tensor(v, dtype=x.dtype)), _COPIED
        ),
        "converted": _rule(partial(_converted, torch.float64), FLOATS),
        "narrowed": _rule(partial(_converted, torch.float16), FLOATS),
        "sums": _rule(lambda x, v: torch.stack([x + v, x - v, v - x]), FLOATS),
        "products": _rule(lambda x, v: torch.stack([x * v, x / v, v / x]), FLOATS),
        "signs": _rule(
            lambda x, v: torch.stack([torch.copysign(x, v), torch.full_like(x, v).sign()]), FLOATS
        ),
        "numerators": _rule(lambda x, v: 1 / torch.full_like(x, v), FLOATS),
        "bounds": _rule(lambda x, v: torch.stack([x.clamp(min=v), x.clamp(max=v)]), FLOATS, _one),
        "compared": _rule(lambda x, v: torch.stack([x == v, x < v, x >= v]), FLOATS),
        "integer arithmetic": _rule(
            lambda x, v: torch.stack([x + v, x - v, x * v, v - x, x & v, x ^ v]), INTEGERS
        ),
        "integer bounds": _rule(lambda x, v: torch.stack([x.clamp(min=v), x.clamp(max=v), x == v]), INTEGERS),
        "replaced": _rule(lambda x, v: torch.nan_to_num(x, nan=v, posinf=v, neginf=v), FLOATS),
        "powers of": Rule(run=_powers, inputs=_one, dtypes=(torch.float64,)),
        "angles": _rule(
            lambda x, v: torch.atan2(torch.zeros_like(x), torch.full_like(x, v)), (torch.float64,)
        ),
        "identities": Rule(run=_reduced, inputs=_one, dtypes=FLOATS),
    }
)


def main(_: Path) -> None:
    """Every rule; answers in JSON."""
    print(json.dumps(answers(RULES)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
