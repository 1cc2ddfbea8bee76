"""A cross-section of torch's operators through `torch.compile(..., backend="coilwork")`, beside eager.

The whole database takes a quarter of an hour per way of calling: `python -m
integration_tests.operators.sweep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from integration_tests.operators.calls import WAYS
from integration_tests.operators.checks import check
from integration_tests.operators.database import operators

# One or two operators for each rule or family of rules; those with derivatives are called with them.
DIFFERENTIABLE = """
    add atan2 pow nn.functional.gelu log_softmax logsumexp sum var_mean std amax norm prod
    cumsum cumprod logcumsumexp cat stack gather index_select index_put index_add scatter_add take unfold \
diagonal_scatter
    roll tril where masked_fill clamp permute narrow sort topk
    matmul baddbmm einsum nn.functional.conv2d nn.functional.conv_transpose1d nn.functional.max_pool2d
    nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.interpolate.bilinear
    nn.functional.layer_norm nn.functional.group_norm nn.functional.batch_norm nn.functional.embedding
    nn.functional.cross_entropy nn.functional.pad.reflect nn.functional.grid_sample nn.functional.max_unpool2d
    linalg.solve cdist
""".split()
OTHERS = (
    "eye arange argmax nonzero searchsorted histc bucketize isclose fmod floor_divide nextafter frexp".split()
)
INTEGERS = "add sum floor_divide bitwise_xor cumsum amax where argmin remainder".split()
BFLOAT16 = "exp sum mul mean maximum".split()
DYNAMIC = "add softmax cat nn.functional.conv3d index_select view slice matmul".split()
IN_PLACE = "add clamp index_put tril masked_fill".split()


@pytest.fixture(scope="module")
def database() -> Iterator[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield operators()
    torch.set_num_threads(threads)


def cases() -> list[tuple[str, str, torch.dtype]]:
    plan = (
        ("backward", DIFFERENTIABLE, torch.float32),
        ("forward", OTHERS, torch.float32),
        ("forward", INTEGERS, torch.int64),
        ("forward", BFLOAT16, torch.bfloat16),
        ("dynamic", DYNAMIC, torch.float32),
        ("inplace", IN_PLACE, torch.float32),
    )
    return [(name, way, dtype) for way, names, dtype in plan for name in names]


@pytest.mark.parametrize("name, way, dtype", cases())
def test_an_operators_samples_are_those_of_eager(
    database: dict[str, Any], name: str, way: str, dtype: torch.dtype
) -> None:
    outcomes = check(name, database[name], way=WAYS[way], device="cpu", dtype=dtype, most=2)
    # "torch": aot_eager, which is not ours, differs from eager in the same way
    assert [one for one in outcomes if one.status not in ("ok", "torch")] == []


def test_which_of_equal_elements_gets_a_gradient_is_free(database: dict[str, Any]) -> None:
    """Thousands of elements of 16 bits have equals, which eager's sort leaves in any order."""
    found = check(
        "msort", database["msort"], way=WAYS["backward"], device="cpu", dtype=torch.bfloat16, most=2
    )
    assert {one.status for one in found} == {"ok"}, found
