"""The contract of docs/numerics.md: dtypes as in eager, and eager's bits with `numerics="eager"`, on both
back ends.

The tables are in `dtype_rules` and `eager_rules`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch

from integration_tests import dtype_rules, eager_rules
from integration_tests.dtype_rules import Rule, difference
from integration_tests.interpreting import answers_of

# Where Triton's interpreter is not a GPU: its fma rounds twice, on which exact remainders of f64 rest.
INTERPRETED_OTHERWISE: Final = frozenset({"float remainders, float64", "float floor division, float64"})
# What docs/numerics.md says of GPUs: a quotient that f64 does not know to the last digit has no remainder.
FAR: Final = "float remainders of far numbers"
# Constants are converted as a GPU would, and what is not constant as the processor does that interprets.
BEYOND: Final = "casts of constants beyond integers"


@pytest.mark.parametrize("name", list(dtype_rules.RULES))
def test_cpu_dtypes_are_those_of_eager(name: str) -> None:
    rule = dtype_rules.RULES[name]
    assert {d: difference(rule, d) for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.parametrize("name", list(eager_rules.RULES))
def test_eager_numerics_give_eager_bits_on_the_cpu(name: str) -> None:
    rule = eager_rules.RULES[name]
    assert {d: difference(rule, d) for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.interpreter
@pytest.mark.slow
@pytest.mark.parametrize("module", ["dtype_rules", "eager_rules"])
def test_triton_meets_the_contract(module: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of(f"integration_tests.{module}", tmp_path)
    assert len(found) > 20
    wrong = {
        k: v
        for k, v in found.items()
        if v and k not in INTERPRETED_OTHERWISE and not k.startswith((FAR, BEYOND))
    }
    assert wrong == {}


def test_a_difference_is_found() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compiler.is_compiling() else x + 2

    rule = Rule(run=run, inputs=lambda dtype: (torch.ones(3, dtype=dtype),), dtypes=(torch.float32,))
    assert "2.0, not 3.0" in difference(rule, torch.float32)
