"""What jumps has its jumps where eager has them on a GPU, with `fast` numerics; the table is in
`quantised_rules`.
"""

from __future__ import annotations

import pytest
import torch

from integration_tests.quantised_rules import HALVES, wrong_jumps, wrong_products

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# Sums are in another order than eager's, and so are scales behind them.
EXACT = ("nothing", "relu", "arithmetic", "rounding")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scaled_products_of_quantised_operands(dtype: torch.dtype) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU multiplies no 8-bit floats")
    assert wrong_products(dtype, "cuda", EXACT) == []


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_values_jump_where_eagers_do(dtype: torch.dtype) -> None:
    assert wrong_jumps(dtype, "cuda") == []
