"""Constants reach kernels bit for bit, in C++ and in Triton; the table is in `constant_rules`."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.constant_rules import RULES
from integration_tests.dtype_rules import difference
from integration_tests.interpreting import answers_of

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.mark.parametrize("name", list(RULES))
def test_cpu_constants_are_exact(name: str) -> None:
    rule = RULES[name]
    assert {d: difference(rule, d) for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.interpreter
def test_triton_constants_are_exact(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.constant_rules", tmp_path)
    assert len(found) > 100
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
