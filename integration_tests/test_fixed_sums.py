"""Sums of single elements in fixed point, from torch.compile to kernels in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.interpreting import answers_of


@pytest.mark.interpreter
def test_fixed_point_sums_agree(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    found = answers_of("integration_tests.interpreted_fixed_sums", tmp_path, COILWORK_ACCUMULATION="fixed")
    assert not any(found.values()), "\n".join(found.values())
