"""A table of what 8-bit floats do: conversions from and to each type, copies, views and comparisons, to the
bit as in eager.

Both back ends run it: in C++ on the CPU, and in Triton's interpreter when `TRITON_INTERPRET` and
`COILWORK_TRITON_ON_CPU` say so.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from integration_tests.dtype_rules import FLOATS, INTEGERS, Rule, answers

POWERS: Final = torch.float8_e8m0fnu
FLOAT8: Final = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    POWERS,
)
UNSIGNED: Final = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def codes(dtype: torch.dtype) -> tuple[Tensor]:
    """Every number of `dtype`."""
    return (torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype),)


def _small(dtype: torch.dtype) -> tuple[Tensor]:
    """Those whose whole part each integer type has, but for a sign: what others become is undefined."""
    x = codes(dtype)[0]
    return (x[x.float().abs() <= 100],)


def _positive(dtype: torch.dtype) -> tuple[Tensor]:
    (x,) = _small(dtype)
    return (x[x.float() >= 0],)


def near(dtype: torch.dtype) -> tuple[Tensor]:
    """Numbers of `dtype` as f32, what lies half way between two, and next to that; what is too large, too
    small, or no number.
    """
    x = codes(dtype)[0].float()
    x = x[x.isfinite()].sort().values
    middle = ((x[1:].double() + x[:-1].double()) / 2).float()
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (math.inf, -math.inf)]
    wanted = [
        448.0,
        449.0,
        464.0,
        464.1,
        480.0,
        1e9,
        3.4e38,
        57344.0,
        61439.0,
        61440.0,
        65536.0,
        1e-40,
        2.0**-149,
    ]
    more = torch.tensor([*wanted, math.inf, 0.0])
    return (torch.cat([x, middle, *beside, x * 1.7, more, -more, torch.tensor([math.nan])]),)


def _scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """As models quantise: by the largest of all, and of each row."""
    rows = x.nan_to_num(0.0, 3.0, -3.0).clamp(-1e4, 1e4)[:64].view(8, 8)
    found = []
    for largest in (rows.abs().amax(), rows.abs().amax(1, keepdim=True)):
        scale = 448.0 / largest.clamp(min=1e-12)
        small = (rows * scale).clamp(-448.0, 448.0).to(dtype)
        found += [small, small.to(torch.float32) / scale, scale]
    return tuple(found)


def _turned(x: Tensor, steps: int) -> Tensor:
    """`x.roll(steps)`, which eager has no kernel for on GPUs."""
    return torch.cat([x[-steps:], x[:-steps]])


def _copied(x: Tensor) -> tuple[Tensor, ...]:
    chosen = torch.arange(256, device=x.device) % 3 == 0
    index = torch.tensor([1, 5, 200], device=x.device)
    sliced, filled = x.clone(), x.clone()
    sliced[3:7] = x[100:104]
    filled[2:5] = 1.5
    return (
        *(torch.cat([x, x[:5]]), torch.stack([x, _turned(x, 3)]), torch.where(chosen, x, _turned(x, 1))),
        *(x[index], x.index_select(0, index), x.view(16, 16).t().contiguous(), x.repeat(2), sliced, filled),
        *(
            torch.zeros_like(x),
            torch.ones_like(x),
            torch.full_like(x, 3.0),
            x.new_zeros(3),
            x.clone().fill_(0.3),
        ),
        *(
            x.view(torch.uint8) + 1,
            (x.view(torch.uint8) ^ 1).view(x.dtype),
            x.view(torch.int16),
            x.view(64, 4),
        ),
        *(
            functional.embedding(index % 16, x.view(16, 16)),
            torch.full((3,), 0.7, dtype=x.dtype, device=x.device),
        ),
    )


def _padded(x: Tensor) -> tuple[Tensor, ...]:
    index = torch.tensor([1, 5, 200], device=x.device)
    return functional.pad(x, (1, 2)), functional.pad(x, (2, 1), value=2.0), x.index_put((index,), x[:3])


def _compared(x: Tensor) -> tuple[Tensor, ...]:
    return x == _turned(x, 1), x != x, x == 1.0, torch.isnan(x), x.bool()


_RULES: Final = {
    "to floats": Rule(run=lambda x: tuple(x.to(t) for t in FLOATS), inputs=codes, dtypes=FLOAT8),
    "to one another": Rule(run=lambda x: tuple(x.to(t) for t in FLOAT8), inputs=codes, dtypes=FLOAT8),
    "to integers": Rule(run=lambda x: tuple(x.to(t) for t in INTEGERS[:-1]), inputs=_small, dtypes=FLOAT8),
    "to unsigned integers": Rule(
        run=lambda x: tuple(x.to(t) for t in UNSIGNED), inputs=_positive, dtypes=FLOAT8
    ),
    "copies": Rule(run=_copied, inputs=codes, dtypes=FLOAT8),
    "pads": Rule(run=_padded, inputs=codes, dtypes=FLOAT8[:-1]),
    "comparisons": Rule(run=_compared, inputs=codes, dtypes=FLOAT8),
}


def _rounded(dtype: torch.dtype) -> Mapping[str, Rule]:
    """What becomes `dtype`; rules are named by it, and run for the type of what is converted alone."""
    name = str(dtype)[6:]

    def from_floats(x: Tensor) -> tuple[Tensor, ...]:
        small = x.to(dtype)
        wide = (small.to(torch.float32) * 2, small.to(torch.bfloat16) + 1, small.view(torch.uint8))
        return (*(x.to(t).to(dtype) for t in FLOATS), *wide, (x.double() * 1.1).to(dtype))

    def from_integers(x: Tensor) -> tuple[Tensor, ...]:
        whole = torch.arange(-128, 128, device=x.device)
        found = [whole.to(t).to(dtype) for t in (*INTEGERS, torch.bool)]
        return (*found, *((whole + 128).to(t).to(dtype) for t in UNSIGNED), (whole * 2**40).to(dtype))

    def from_complex(x: Tensor) -> Tensor:
        return torch.complex(x[:50], x[:50] * 2).to(dtype)

    def inputs(_: torch.dtype) -> tuple[Tensor]:
        return near(dtype)

    single = (torch.float32,)
    return {
        f"{name} from floats": Rule(run=from_floats, inputs=inputs, dtypes=single),
        f"{name} from integers": Rule(run=from_integers, inputs=inputs, dtypes=single),
        f"{name} from complex numbers": Rule(run=from_complex, inputs=inputs, dtypes=single),
        f"{name} scaled": Rule(run=lambda x: _scaled(x, dtype), inputs=inputs, dtypes=single),
    }


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**_RULES, **{name: rule for dtype in FLOAT8 for name, rule in _rounded(dtype).items()}}
)


def main(_: Path) -> None:
    """Every rule; answers in JSON."""
    print(json.dumps(answers(RULES)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
