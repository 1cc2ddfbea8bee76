"""What `numerics="eager"` promises: the bits of eager wherever both sides do the same operations on the same
numbers.

Chains of rounded operations in every float type: no intermediate is kept wider than eager stores it, nothing
is contracted to a fused multiplication and addition, and a quotient is no product with a reciprocal.
`dtype_rules` runs them on either back end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from integration_tests.dtype_rules import FLOATS, Rule, answers

HALVES: Final = (torch.float16, torch.bfloat16)


def _four(dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    x, y, z = (torch.randn(37, 67, generator=generator).to(dtype) for _ in range(3))
    return x, y, z, z.abs() + 0.25


def _contractible(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    return x * y + z, x * y - z, z - x * y, (x * y) * z + (x * x - y * y), -(x * y) + z * z


def _quotients(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    return x / p, (x + y) / p, x / 3.0, (x / p) * p, 1.0 / p, (x / 7.0) / p


def _residual(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    first = x + y * 0.3
    return first, (first * z + x).clamp(-1.5, 1.5) - y


def _selected(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    big = x * 1.1 > y
    return torch.where(big, x * y, z + x), torch.maximum(x * y, z), F.relu(x * y + z), (x * y).abs() - z


def _moved(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    wide = torch.cat([x * y, z + 1], 1) * 1.7
    return wide, (x * y).t() + (z.t() * 3), wide[:, 5:60] + x[:, 5:60]


def _numbers(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    # those that halves are compared with, or to which powers they are raised, are halves
    near = torch.full_like(x, 0.1)
    return (
        near == 0.1,
        near < 0.1,
        near >= 0.1,
        x > 0.3,
        near + 0.1,
        0.7 - x,
        near**0.3,
        F.hardshrink(near, 0.1),
    )


def _squared_distances(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> Tensor:
    return F.mse_loss(x, y, reduction="none")


def _mixed(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).float() * z.float() + 0.1, ((x * y).double() + z).to(x.dtype) * p


def _of_rows(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    # a maximum is exact in any order, and what surrounds it is rounded
    most = (x * y).amax(1, keepdim=True)
    return x * y - most, (x * y - most) / (most.abs() + 1), (x * y).amin(0) + z


def _updated(x: Tensor, y: Tensor, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    average = x.mul(0.9).add(y.mul(0.1))
    return average, z - 0.01 * average


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "contractible": Rule(run=_contractible, inputs=_four, dtypes=FLOATS),
        "quotients": Rule(run=_quotients, inputs=_four, dtypes=FLOATS),
        "residual": Rule(run=_residual, inputs=_four, dtypes=FLOATS),
        "selected": Rule(run=_selected, inputs=_four, dtypes=FLOATS),
        "moved": Rule(run=_moved, inputs=_four, dtypes=FLOATS),
        "numbers beside halves": Rule(run=_numbers, inputs=_four, dtypes=HALVES),
        "squared distances": Rule(run=_squared_distances, inputs=_four, dtypes=HALVES),
        "mixed types": Rule(run=_mixed, inputs=_four, dtypes=HALVES),
        "around maxima of rows": Rule(run=_of_rows, inputs=_four, dtypes=FLOATS),
        "moving averages": Rule(run=_updated, inputs=_four, dtypes=FLOATS),
    }
)


def main(_: Path) -> None:
    """Every rule; answers in JSON."""
    print(json.dumps(answers(RULES)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
