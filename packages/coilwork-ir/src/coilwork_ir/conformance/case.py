"""A kernel of the conformance kit, and the arguments it is run on.

Inputs hold what scalar operations go wrong on: not-a-numbers, infinities, signed zeros, subnormals, extreme
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.index import evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels.text import parse_kernel

# ---- Inputs ----


Edge = Literal[
    "left", "right", "third", "dividend", "divisor", "count", "degree", "signed-byte", "byte", "choice"
]

_INF: Final = float("inf")
_NAN: Final = float("nan")
_LEFT: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-6, -1e-6, 0.3, -0.3, 0.62, 0.63, 10.0),
    *(
        -10.0,
        19.9,
        20.1,
        80.0,
        -80.0,
        88.0,
        89.5,
        -104.0,
        1e4,
        -1e4,
        0.41,
        0.42,
        0.9999,
        -0.9999,
        33.0,
        100.5,
        4.5,
    ),
    *(_INF, -_INF, _NAN),
)
_RIGHT: Final = (1.0, -1.0, 2.0, 0.5, -3.0, 0.7, 0.0, -0.0, 1e-3, 1e3, _INF, -_INF, _NAN, 3.0, 7.5)
_DEGREES: Final = (0.0, 1.0, 2.0, 3.0, 5.0, 7.5, 12.0, -1.0, -0.5, 0.5, -0.0, _INF, -_INF, _NAN)
_WHOLE: Final = (0, 1, 2, 3, 5, 7, 8, 31, 63, 100, 127, -1, -2, -7, -13, -100, -128)
_DIVISORS: Final = (1, 2, 3, 7, 100, -1, -2, -3, -7, -100)


def make_edge_values(edge: Edge, dtype: DType, count: int) -> Tensor:
    """`count` elements of `dtype`. All values of `left` meet all of `right`, `divisor` and `count`.

    `dividend` by `divisor` stays where the op table defines a quotient and a remainder: no integer is divided
    by zero, nor the least one by -1, and float quotients are below 2**24. `count` is what a shift or an
    integer power takes, `degree` that of a polynomial, `signed-byte` and `byte` integers that these types
    hold.
    """
    lefts = _floats(dtype) if dtype.is_float else _integers(dtype)
    place = torch.arange(count)
    across = place // len(lefts)
    match edge:
        case "left":
            return _cycle(lefts, place, dtype)
        case "right":
            return _cycle(_rights(dtype, lefts), across, dtype)
        case "third":
            return _cycle(_rights(dtype, lefts)[::-1], across + place, dtype)
        case "dividend":
            return _cycle(_LEFT if dtype.is_float else lefts, place, dtype)
        case "divisor":
            return _divisors(dtype, _cycle(lefts, place, dtype), across)
        case "count":
            most = 8 * dtype.itemsize - 1
            return _cycle([n for n in (0, 1, 2, 3, 7, 31, 63) if n <= most], across, dtype)
        case "degree":
            return _cycle(_DEGREES, across, dtype)
        case "signed-byte" | "byte":
            least = -128 if edge == "signed-byte" else 0
            return _cycle([least + 17 * k for k in range(15)], place, dtype)
        case "choice":
            return place % 3 != 1


def count_edge_values(dtype: DType) -> int:
    """Return the number of elements that all pairs of `left` and `right` take."""
    lefts = _floats(dtype) if dtype.is_float else _integers(dtype)
    return len(lefts) * max(len(_rights(dtype, lefts)), len(_DIVISORS))


def _cycle(values: tuple[float, ...] | list[int], places: Tensor, dtype: DType) -> Tensor:
    table = torch.tensor(values, dtype=torch.float64 if dtype.is_float else torch.int64)
    return table[places % len(values)].to(torch_dtype(dtype))


def _floats(dtype: DType) -> tuple[float, ...]:
    """`_LEFT`, and numbers near the ends of the type's range."""
    info = torch.finfo(torch_dtype(dtype))
    # not the very largest: what rounds it to another type may overflow
    ends: Mapping[str, float] = {"most": 0.99 * info.max, "least": info.tiny, "subnormal": info.tiny / 8}
    return (*_LEFT, *ends.values(), *(-value for value in ends.values()))


def _rights(dtype: DType, lefts: tuple[float, ...] | list[int]) -> tuple[float, ...] | list[int]:
    return _RIGHT if dtype.is_float else lefts


def _integers(dtype: DType) -> list[int]:
    if dtype.is_bool:
        return [0, 1]
    info = torch.iinfo(torch_dtype(dtype))
    ends = [info.max, info.max - 1, info.min, info.min + 1]
    return [value for value in (*_WHOLE, *ends) if info.min <= value <= info.max]


def _divisors(dtype: DType, dividends: Tensor, places: Tensor) -> Tensor:
    if dtype.is_float:
        return _cycle(_RIGHT, places, dtype)
    if dtype.is_bool:
        return torch.ones(len(places), dtype=torch.bool)
    divisors = _cycle([d for d in _DIVISORS if d > 0 or dtype.is_signed_integer], places, dtype)
    least = torch.iinfo(torch_dtype(dtype)).min
    return torch.where((dividends == least) & (divisors == -1), torch.ones_like(divisors), divisors)


# ---- Cases ----


Plain = Literal[
    "normal", "positive", "special", "index", "bad-index", "bool", "range", "near-one", "ties", "lows", "zero"
]
Fill: TypeAlias = Plain | Edge

_WITHOUT_SIGN: Final = (DType.U64, DType.U32, DType.U16, DType.U8, DType.BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel and how to make arguments for it.

    Attributes:
        name: unique in the kit.
        text: the kernel.
        sizes: sets of values for its size symbols, to be run one after the other.
        fills: how to fill arguments, by name; others hold numbers of a normal distribution, outputs a
            pattern.
        limit: exclusive bound of `index` fills.
        labels: what outputs show, by argument name, for messages; also the name under which `check_codegen`
            excuses them.
        relative: small floats count, subnormal ones too: the absolute tolerance is a few times the least of
            them instead of the relative one. Not for outputs in `cancelling`, whose results are differences
            of larger numbers.
    """

    name: str
    text: str
    sizes: tuple[Mapping[str, int], ...] = ({},)
    fills: tuple[tuple[str, Fill], ...] = ()
    limit: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    relative: bool = False
    cancelling: tuple[str, ...] = ()

    def make(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Fresh arguments, always the same ones for the same sizes: flat memory by argument name."""
        kernel = parse_kernel(self.text)
        fills = dict(self.fills)
        generator = torch.Generator().manual_seed(len(self.name) + sum(sizes.values()))
        tensors: dict[str, Tensor] = {}
        for arg in kernel.args:
            count = max(evaluate(arg.span, sizes), 0)
            dtype = torch_dtype(arg.dtype)
            if arg.role == "out":
                tensors[arg.name] = torch.full((count,), 3, dtype=torch.float64).to(dtype)
            else:
                fill: Fill = fills.get(arg.name, "normal")
                tensors[arg.name] = _fill(fill, arg.dtype, count, self.limit, generator).to(dtype)
        return tensors


def _fill(fill: Fill, dtype: DType, count: int, limit: int, generator: torch.Generator) -> Tensor:
    match fill:
        case "zero":
            return torch.zeros(count)
        case "normal":
            return torch.randn(count, generator=generator, dtype=torch.float64)
        case "positive":
            return torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
        case "special":
            values = torch.randn(count, generator=generator, dtype=torch.float64)
            for place, value in enumerate((float("nan"), float("inf"), float("-inf"), -0.0, 0.0)):
                values[place::17] = value
            return values
        case "index" | "bad-index":
            values = torch.randint(0, limit, (count,), generator=generator)
            if fill == "bad-index":
                values[-1:] = limit
            return values
        case "bool":
            return torch.randint(0, 2, (count,), generator=generator) > 0
        case "range":
            return torch.arange(count) * 97 - (1 << 40)
        case "near-one":
            return 1 + 0.01 * torch.randn(count, generator=generator, dtype=torch.float64)
        case "ties":
            values = torch.randint(-3, 4, (count,), generator=generator).double()
            values[29::53] = float("nan") if dtype.is_float else 2.0
            return values if dtype.is_float else values.long() + (3 if dtype in _WITHOUT_SIGN else 0)
        case "lows":
            values = torch.randn(count, generator=generator, dtype=torch.float64)
            values[::3] = float("-inf")
            return values
        case _:
            return make_edge_values(fill, dtype, count)
