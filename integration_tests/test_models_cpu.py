"""Every model at reduced size on the CPU: generated C++ against eager and float64."""

from __future__ import annotations

import pytest
import torch

from benchmarks.models import CASES, ModelCase, Setting, Size, find_case
from integration_tests.model_checks import check_dynamic_sizes, check_inference, check_training

DTYPES = (torch.float32, torch.bfloat16)
TRAINED = tuple(case for case in CASES if case.train)


def setting(dtype: torch.dtype) -> Setting:
    return Setting(size=Size.REDUCED, device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inference_is_as_accurate_as_eager(case: ModelCase, dtype: torch.dtype) -> None:
    check_inference(case, setting(dtype))


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_training_step_is_as_accurate_as_eager(case: ModelCase) -> None:
    check_training(case, setting(torch.float32))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_one_compile_serves_all_batches_and_lengths(name: str) -> None:
    check_dynamic_sizes(find_case(name), setting(torch.float32), ((2, 64), (3, 17), (5, 96), (2, 33)))
