"""Elements added to places from data, many to one place among them, through every generator of code."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.interpreted_one_place import CASES, compared
from integration_tests.interpreting import answers_of


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(CASES))
def test_every_element_scattered_to_one_place_counts(name: str, dynamic: bool) -> None:
    compared(CASES[name], dynamic=dynamic)


@pytest.mark.interpreter
@pytest.mark.parametrize("accumulation", ["fixed", "sorted", "atomic"])
def test_every_element_scattered_to_one_place_counts_in_triton(tmp_path: Path, accumulation: str) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of(
        "integration_tests.interpreted_one_place", tmp_path, COILWORK_ACCUMULATION=accumulation
    )
    # GPUs have no atomic products: without `strict` these are ATen's
    assert "EmitError[atomic]" in found.pop("halved")
    assert not any(found.values()), found


@pytest.mark.interpreter
def test_fixed_point_sums_agree(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.interpreted_fixed_sums", tmp_path, COILWORK_ACCUMULATION="fixed")
    assert not any(found.values()), "\n".join(found.values())
