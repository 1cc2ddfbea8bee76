"""A compact table of where dtypes are easy to get wrong: what eager gives, to the bit, for edge values of
every operand type.

Both back ends run it: in C++ on the CPU, and in Triton's interpreter when `TRITON_INTERPRET` and
`COILWORK_TRITON_ON_CPU` say so.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from coilwork.backend import backend

SIGNED: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS: Final = (*SIGNED, torch.uint8)
FLOATS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NAN, _INF = float("nan"), float("inf")


def integers(dtype: torch.dtype) -> Tensor:
    """Extremes of `dtype`, small numbers of both signs, and what wraps."""
    info = torch.iinfo(dtype)
    low, high = info.min, info.max
    wanted = [low, low + 1, high, high - 1, high // 2, 0, 1, 2, 3, 5, 7, 8, 63, 64, 100]
    wanted += [-1, -2, -3, -7, -8, -100] if low < 0 else [255, 200]
    return torch.tensor(wanted, dtype=dtype)


def floats(dtype: torch.dtype) -> Tensor:
    """Zeros of both signs, halves, subnormals, extremes, infinities, NaN."""
    info = torch.finfo(dtype)
    tiny = float(info.smallest_normal)
    wanted = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 3.0, -3.0, 1.0, -1.0, 7.25, -7.25]
    wanted += [tiny, -tiny, tiny / 2, -tiny / 4, info.max, info.min, _INF, -_INF, _NAN, 0.1, 100.7, -100.7]
    return torch.tensor(wanted, dtype=torch.float64).to(dtype)


def pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair of elements, as two tensors."""
    n = x.numel()
    return x.repeat_interleave(n), x.repeat(n)


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`run` of `inputs` of each of `dtypes` is what eager gives, bit for bit, NaN for NaN.

    With `zeros_alike`, a zero of the other sign will do: which of two unlike zeros is the larger one, IEEE
    754 leaves open, and eager's vector and scalar loops answer differently.
    """

    run: Callable[..., object]
    inputs: Callable[[torch.dtype], tuple[Tensor, ...]]
    dtypes: Sequence[torch.dtype]
    zeros_alike: bool = False


def _divisors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = pairs(integers(dtype))
    # the least integer divided by -1 overflows: a fault of the processor in eager
    safe = _nonzero(b)
    return a, torch.where((safe == -1) & (a == torch.iinfo(dtype).min), torch.ones_like(safe), safe)


def _float_pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return pairs(floats(dtype))


def _normal_divisors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Without quotients that overflow: of these eager's vectorised remainder makes NaN."""
    a, b = pairs(floats(dtype))
    small = (b != 0) & (b.abs() < 1024 * torch.finfo(dtype).smallest_normal)
    largest = a.abs() == torch.finfo(dtype).max
    return torch.where(largest, a / 64, a), torch.where(small, torch.ones_like(b), b)


def _near_divisors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """With quotients below 2^52, of which a quotient of f64 knows every digit."""
    a, b = _normal_divisors(dtype)
    far = (a.double() / b.double()).abs() >= 2.0**52
    return torch.where(far & a.isfinite() & (b != 0), b * 1.75, a), b


def _integer_pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return pairs(integers(dtype))


def _shifts(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    bits = torch.iinfo(dtype).bits
    a, b = torch.meshgrid(integers(dtype), torch.arange(bits, dtype=dtype), indexing="ij")
    return a.reshape(-1), b.reshape(-1)


def _powers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = torch.meshgrid(integers(dtype), torch.arange(9, dtype=dtype), indexing="ij")
    return a.reshape(-1), b.reshape(-1)


def _rows(dtype: torch.dtype) -> tuple[Tensor]:
    """Rows in which NaN and equal extremes come at several places."""
    x = floats(dtype)
    return (torch.stack([x, x.flip(0), x.roll(5), x.roll(11), x.nan_to_num(0.0)]),)


def _integer_rows(dtype: torch.dtype) -> tuple[Tensor]:
    x = integers(dtype)
    return (torch.stack([x, x.flip(0), x.roll(5)]),)


def _one(make: Callable[[torch.dtype], Tensor]) -> Callable[[torch.dtype], tuple[Tensor]]:
    return lambda dtype: (make(dtype),)


def _in_range(dtype: torch.dtype) -> tuple[Tensor]:
    """Floats whose whole part every integer type but unsigned ones has: what is outside is undefined in C++,
    as in eager.
    """
    x = floats(dtype).nan_to_num(1.0, 2.0, -2.0)
    return (torch.where(x.abs() > 120, torch.ones_like(x), x),)


def _huge(dtype: torch.dtype) -> tuple[Tensor]:
    return (floats(dtype),)


def _casts(x: Tensor) -> tuple[Tensor, ...]:
    return x.to(torch.int8), x.to(torch.int16), x.to(torch.int32), x.to(torch.int64), x.bool()


def _wrapping(dtype: torch.dtype) -> tuple[Tensor]:
    """Floats of both signs whose whole part 32 bits hold, whatever a narrower integer type holds of it."""
    wanted = [-0.5, -1.0, -1.5, -2.0, 127.5, 128.0, -129.0, 200.0, 255.0, 256.0, -256.0, 300.0, -300.0]
    wanted += [
        32767.0,
        32768.0,
        -32768.0,
        -32800.0,
        40000.0,
        -40000.0,
        65536.0,
        -65536.0,
        7e4,
        -7e4,
        2.1e9,
        -2.1e9,
    ]
    x = torch.tensor(wanted, dtype=torch.float64)
    return (torch.where(x.abs() > torch.finfo(dtype).max, 1.0, x).to(dtype),)


def _constants_beyond(x: Tensor) -> tuple[Tensor, ...]:
    """Constants that no integer type holds, alone and chosen here and there, as a compiler that folds
    constants sees them.
    """
    found = []
    for value in (3e9, -3e9, 1e20, -1e20, _INF, -_INF, _NAN):
        if torch.finfo(x.dtype).max < abs(value) < _INF:
            continue
        constant = x.new_full(x.shape, value)
        found += [y.to(to) for y in (constant, torch.where(x > 0, x, constant)) for to in INTEGERS]
    return tuple(found)


def _narrowings(x: Tensor) -> tuple[Tensor, ...]:
    return x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16), x.to(torch.int32), x.bool()


def _widenings(x: Tensor) -> tuple[Tensor, ...]:
    return x.to(torch.float64), x.to(torch.float32), x.to(torch.float16), x.to(torch.bfloat16)


def _rounded(a: Tensor) -> tuple[Tensor, ...]:
    """What conversions to 16 bits take away, each with another way to see it."""
    doubled = a * 2
    return (
        a.bfloat16().to(a.dtype) - a,
        a.half() - a,
        doubled.half()[::2].to(a.dtype) - doubled[::2],
    )


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "rounding that is asked for": Rule(run=_rounded, inputs=_one(floats), dtypes=FLOATS[:2]),
        "sums wrap": Rule(run=lambda a, b: (a + b, a - b, a * b, -a), inputs=_integer_pairs, dtypes=INTEGERS),
        "absolute and sign": Rule(run=lambda a: (a.abs(), a.sign()), inputs=_one(integers), dtypes=SIGNED),
        "floor division": Rule(run=lambda a, b: (a // b, a % b), inputs=_divisors, dtypes=INTEGERS),
        "truncated division": Rule(
            run=lambda a, b: (torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b)),
            inputs=_divisors,
            dtypes=INTEGERS,
        ),
        "true division": Rule(run=lambda a, b: a / b, inputs=_integer_pairs, dtypes=INTEGERS),
        "shifts": Rule(run=lambda a, b: (a << b, a >> b), inputs=_shifts, dtypes=INTEGERS),
        "bits": Rule(run=lambda a, b: (a & b, a | b, a ^ b, ~a), inputs=_integer_pairs, dtypes=INTEGERS),
        "comparisons": Rule(
            run=lambda a, b: (a < b, a <= b, a == b, torch.maximum(a, b), torch.minimum(a, b)),
            inputs=_integer_pairs,
            dtypes=INTEGERS,
        ),
        "integer powers": Rule(run=lambda a, b: a**b, inputs=_powers, dtypes=INTEGERS),
        "integer sums": Rule(
            run=lambda x: (x.sum(1), x.prod(1), x.cumsum(1), x.amax(1), x.argmin(1)),
            inputs=_integer_rows,
            dtypes=INTEGERS,
        ),
        "narrowing": Rule(run=_narrowings, inputs=_one(integers), dtypes=INTEGERS),
        "widening": Rule(run=_widenings, inputs=_one(integers), dtypes=INTEGERS),
        "booleans": Rule(
            run=lambda x: (x > 0) & (x < 5) | ~(x == 7) ^ (x > 3), inputs=_one(integers), dtypes=INTEGERS
        ),
        "sums of booleans": Rule(
            run=lambda x: ((x > 0).sum(1), (x > 0).any(1), (x > 0).all(1), (x > 0) + (x > 1)),
            inputs=_integer_rows,
            dtypes=INTEGERS,
        ),
        "float arithmetic": Rule(
            run=lambda a, b: (a + b, a - b, a * b, a / b, -a), inputs=_float_pairs, dtypes=FLOATS
        ),
        "float remainders": Rule(
            run=lambda a, b: (torch.remainder(a, b), torch.fmod(a, b)), inputs=_near_divisors, dtypes=FLOATS
        ),
        "float remainders of far numbers": Rule(
            run=lambda a, b: (torch.remainder(a, b), torch.fmod(a, b)), inputs=_normal_divisors, dtypes=FLOATS
        ),
        "float floor division": Rule(run=lambda a, b: a // b, inputs=_float_pairs, dtypes=FLOATS),
        "float truncated division": Rule(
            run=lambda a, b: torch.div(a, b, rounding_mode="trunc"), inputs=_float_pairs, dtypes=FLOATS
        ),
        "roundings": Rule(
            run=lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()),
            inputs=_one(floats),
            dtypes=FLOATS,
        ),
        "signs": Rule(
            run=lambda a, b: (a.abs(), a.sign(), torch.copysign(a, b), torch.signbit(a)),
            inputs=_float_pairs,
            dtypes=FLOATS,
        ),
        "orders": Rule(
            run=lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b)),
            inputs=_float_pairs,
            dtypes=FLOATS,
            zeros_alike=True,
        ),
        "clamps": Rule(
            run=lambda a, b: (a.clamp(-1, 2), a.relu(), torch.where(a > b, a, b)),
            inputs=_float_pairs,
            dtypes=FLOATS,
            zeros_alike=True,
        ),
        "extremes of rows": Rule(
            run=lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), *x.max(1), *x.min(0)),
            inputs=_rows,
            dtypes=FLOATS,
        ),
        "running extremes": Rule(
            run=lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 1)), inputs=_rows, dtypes=FLOATS
        ),
        "sorts": Rule(
            run=lambda x: (
                *torch.sort(x, dim=1, stable=True),
                torch.sort(x, dim=1, descending=True, stable=True).values,
            ),
            inputs=_rows,
            dtypes=FLOATS,
        ),
        "casts to integers": Rule(run=_casts, inputs=_in_range, dtypes=FLOATS),
        "casts of huge floats": Rule(
            run=lambda x: (x.to(torch.int32), x.to(torch.int64)), inputs=_huge, dtypes=FLOATS
        ),
        "casts to narrow integers that wrap": Rule(
            run=lambda x: (x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16)), inputs=_wrapping,
            dtypes=FLOATS
        ),
        "casts of constants beyond integers": Rule(run=_constants_beyond, inputs=_wrapping, dtypes=FLOATS),
        "casts between floats": Rule(run=_widenings, inputs=_one(floats), dtypes=FLOATS),
        "tests": Rule(
            run=lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.bool(), x == x), inputs=_one(floats),
            dtypes=FLOATS
        ),
        "subnormals": Rule(
            run=lambda x: (x * 0.5, x * 2, x + x, (x * 0.25) * 4), inputs=_one(floats), dtypes=FLOATS
        ),
    }
)  # fmt: skip


def difference(rule: Rule, dtype: torch.dtype, device: str = "cpu") -> str:
    """Where compiled and eager differ; empty if nowhere."""
    torch._dynamo.reset()
    inputs = tuple(x.to(device) for x in rule.inputs(dtype))
    wanted, got = (
        _listed(f(*inputs))
        for f in (
            rule.run,
            torch.compile(
                rule.run, backend=backend, options={"strict": True, "numerics": "eager"}, fullgraph=True
            ),
        )
    )
    for number, (a, b) in enumerate(zip(wanted, got, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {number} is {b.dtype} {tuple(b.shape)}, not {a.dtype} {tuple(a.shape)}"
        alike = (a != a) & (b != b)
        if rule.zeros_alike:
            alike |= (a == 0) & (b == 0)
        wrong = (_bits(a) != _bits(b)) & ~alike
        if wrong.any():
            at = tuple(int(i) for i in wrong.nonzero()[0])
            from_ = [x.reshape(-1)[at[0]].item() for x in inputs if len(at) == 1]
            return (
                f"result {number} at {at} of {from_}: {b[at].item()}, not {a[at].item()}; "
                f"{int(wrong.sum())} of {a.numel()}"
            )
    return ""


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def _bits(x: Tensor) -> Tensor:
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    return x if x.dtype is torch.bool else x.contiguous().view(kinds[x.element_size()])


def answer_rule(rule: Rule, dtype: torch.dtype) -> str:
    """What is wrong; empty if nothing is."""
    try:
        return difference(rule, dtype)
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()


def answers(rules: Mapping[str, Rule]) -> dict[str, str]:
    """What is wrong, for every rule and type."""
    return {
        f"{name}, {str(dtype)[6:]}": answer_rule(rule, dtype)
        for name, rule in rules.items()
        for dtype in rule.dtypes
    }


def main(_: Path) -> None:
    """Every rule; answers in JSON."""
    print(json.dumps(answers(RULES)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
