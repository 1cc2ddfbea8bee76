"""`flex_attention` on a GPU: variants beside float64, gradients too, and the same bits twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.flex_attention import check, list_variants, make_function
from coilwork.backend import backend
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

NAMES = ("causal", "window", "alibi", "cap", "document", "captured", "gqa", "full", "causal128")


@pytest.mark.parametrize("name", NAMES)
def test_flex_attention_is_as_exact_as_its_type(name: str) -> None:
    torch._dynamo.reset()
    variant = next(one for one in list_variants("cuda") if one.name == name)
    function = make_function(variant, "cuda")
    with no_fallback():
        compiled: Any = torch.compile(function, backend=backend, dynamic=False)
        *parts, again = check(variant, compiled, "cuda").split()
    assert again == "same"
    # of the greatest element, whose last place in bf16 is 2 ** -8
    assert all(float(part) < 0.01 for part in parts), parts
