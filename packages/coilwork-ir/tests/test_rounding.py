"""Numbers as floats of a type hold them are those that torch makes."""

from __future__ import annotations

import math

import pytest
import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.rounding import rounded

NUMBERS = (
    0.0,
    -0.0,
    0.1,
    -1.0 / 3,
    1.00390625,
    1.01171875,
    65519.0,
    65520.0,
    3e9,
    1e-8,
    1e-40,
    3.5e38,
    -1e300,
    math.inf,
)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("value", NUMBERS)
def test_as_torch_rounds(value: float, dtype: DType) -> None:
    kinds = {
        DType.F64: torch.float64,
        DType.F32: torch.float32,
        DType.BF16: torch.bfloat16,
        DType.F16: torch.float16,
    }
    wide = torch.tensor(value, dtype=torch.float64)
    narrow = wide.to(torch.float32) if dtype is not DType.F64 else wide
    wanted = narrow.to(kinds[dtype]).item()
    assert rounded(value, dtype) == wanted
    assert math.copysign(1, rounded(value, dtype)) == math.copysign(1, wanted)


def test_nan_stays() -> None:
    assert all(math.isnan(rounded(math.nan, dtype)) for dtype in (DType.F32, DType.BF16, DType.F16))
