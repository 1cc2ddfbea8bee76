"""8-bit floats on a GPU: conversions, copies and scaled products as in eager there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from integration_tests.beside_eager import compiled
from integration_tests.dtype_rules import difference
from integration_tests.float8_rules import RULES
from integration_tests.test_float8 import by_row, by_tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", list(RULES))
def test_rules_of_float8_are_those_of_eager(name: str) -> None:
    rule = RULES[name]
    assert {d: difference(rule, d, "cuda") for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.parametrize("product", [by_tensor, by_row], ids=lambda f: f.__name__)
def test_scaled_products_of_quantised_operands(product: Callable[..., Tensor]) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU multiplies no 8-bit floats")
    torch.manual_seed(0)
    given = [
        torch.randn(64, 128, device="cuda"),
        torch.randn(96, 128, device="cuda"),
        torch.randn(96, device="cuda").bfloat16(),
    ]
    torch.testing.assert_close(compiled(product)(*given), product(*given))
