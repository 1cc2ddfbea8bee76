"""Triton kernels of the user's are launched by the program: results, fusion around them, and the cache.

One process runs all cases over CPU tensors: what torch captures for a device, Triton's interpreter runs.
"""

from __future__ import annotations

import pytest

from integration_tests.interpreting import answers_of

NAMES = (
    "fused around",
    "fused around, open sizes",
    "several in a row",
    "an input overwritten",
    "the old value read",
    "a slice of an input",
    "slices",
    "parts of parts",
    "a product's layout",
    "texts, types, None",
    "autotuned",
    "autotuned, open sizes",
    "pruned",
    "heuristics",
    "an operator, trained",
    "an operator, trained, open sizes",
    "a function, trained",
    "an empty grid",
    "numbers from data",
    "branches",
    "in Python",
    "in FX",
    "in C++",
    "from the cache",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("user_kernels")
    module = "integration_tests.user_kernel_cases"
    return answers_of(module, folder, TRITON_INTERPRET="0", COILWORK_TRITON_ON_CPU="0", COILWORK_CACHE="1")


@pytest.mark.parametrize("name", NAMES)
def test_programs_compute_what_eager_does(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""


def test_every_case_is_named(answers: dict[str, str]) -> None:
    assert set(answers) == set(NAMES)
