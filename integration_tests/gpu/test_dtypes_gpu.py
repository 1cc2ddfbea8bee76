"""The contract of docs/numerics.md on a GPU: dtypes as in eager there, and eager's bits with
`numerics="eager"`.
"""

from __future__ import annotations

from typing import Final

import pytest
import torch

from integration_tests import dtype_rules, eager_rules
from integration_tests.dtype_rules import difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# What docs/numerics.md says of GPUs: a quotient that f64 does not know to the last digit has no remainder.
FAR: Final = "float remainders of far numbers"


@pytest.mark.parametrize("name", [name for name in dtype_rules.RULES if name != FAR])
def test_results_have_eagers_types_and_values(name: str) -> None:
    rule = dtype_rules.RULES[name]
    assert {d: difference(rule, d, "cuda") for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.parametrize("name", list(eager_rules.RULES))
def test_the_bits_of_eager(name: str) -> None:
    rule = eager_rules.RULES[name]
    assert {d: difference(rule, d, "cuda") for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")
