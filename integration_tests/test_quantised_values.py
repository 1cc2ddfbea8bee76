"""What jumps has its jumps where eager has them, though `fast` numerics keep values of 16 bits wide; the
table is in `quantised_rules`.
"""

from __future__ import annotations

import pytest
import torch

from integration_tests.quantised_rules import HALVES, wrong_jumps, wrong_products

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scaled_products_of_quantised_operands_agree(dtype: torch.dtype) -> None:
    assert wrong_products(dtype, "cpu", ("arithmetic", "a norm")) == []


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_jumps_are_where_eager_has_them(dtype: torch.dtype) -> None:
    assert wrong_jumps(dtype, "cpu") == []
