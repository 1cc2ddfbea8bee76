"""A kernel of the conformance kit, and the arguments it is run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.conformance.edges import Edge, edge_values
from coilwork_ir.dtypes import DType
from coilwork_ir.index import evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels.text import parse_kernel

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
        relative: small floats count: the absolute tolerance is the least normal number instead of the
            relative one. Not for outputs in `cancelling`, whose results are differences of larger numbers.
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
        made: dict[str, Tensor] = {}
        for arg in kernel.args:
            count = max(evaluate(arg.span, sizes), 0)
            dtype = torch_dtype(arg.dtype)
            if arg.role == "out":
                made[arg.name] = torch.full((count,), 3, dtype=torch.float64).to(dtype)
            else:
                fill: Fill = fills.get(arg.name, "normal")
                made[arg.name] = _fill(fill, arg.dtype, count, self.limit, generator).to(dtype)
        return made


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
            return edge_values(fill, dtype, count)
