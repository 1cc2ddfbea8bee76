"""Constants reach a GPU's kernels bit for bit; the table is in `constant_rules`."""

from __future__ import annotations

import pytest
import torch

from integration_tests.constant_rules import RULES
from integration_tests.dtype_rules import difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", list(RULES))
def test_constants_are_rounded_as_by_eager(name: str) -> None:
    rule = RULES[name]
    assert {d: difference(rule, d, "cuda") for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")
