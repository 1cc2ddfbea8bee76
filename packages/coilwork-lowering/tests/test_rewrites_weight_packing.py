"""Weights in oneDNN's layouts: which calls read them, which do not, and that results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from lowering_against_eager import find_changed_model
from rewritten_graphs import traced
from torch import Tensor
from torch.nn import functional as F

from coilwork_lowering.rewrites import pack_weights, split_constants
from coilwork_lowering.torch_compat.operators import list_packed_types

aten = torch.ops.aten
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
ROWS = (torch.randn(7, 12), torch.randn(5, 12), torch.randn(5))
IMAGES = (
    torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last),
    torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last),
    torch.randn(6),
)

PACKED: dict[str, tuple[Function, tuple[Tensor, Tensor, Tensor]]] = {
    "linear": (F.linear, ROWS),
    "linear without bias": (lambda x, w, b: F.linear(x, w) + b, ROWS),
    "weight by columns": (lambda x, w, b: torch.addmm(b, x, w), (ROWS[0], ROWS[1].t().contiguous(), ROWS[2])),
    "computed weight": (lambda x, w, b: F.linear(x, w * 2, b.exp()), ROWS),
    "transposed operand": (lambda x, w, b: F.linear(x.t(), w, b), (torch.randn(12, 7), *ROWS[1:])),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), IMAGES),
    "convolution without bias": (lambda x, w, b: F.conv2d(x, w, None, 1, "same"), IMAGES),
    "depthwise convolution": (
        lambda x, w, b: F.conv2d(x, w, None, groups=4, dilation=2),
        (IMAGES[0], torch.randn(4, 1, 3, 3), IMAGES[2]),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", PACKED)
def test_weights_are_packed_once(case: str, dtype: torch.dtype) -> None:
    function, operands = PACKED[case]
    x, w, b = (one.to(dtype) for one in operands)
    made, count = pack_weights(traced(function, (x, w, b)), [1, 2])
    assert count == (dtype in list_packed_types())
    if not count:
        return
    made.graph.lint()
    prepared = split_constants(made, [1, 2])
    assert prepared is not None
    assert not [node for node in prepared.main.graph.nodes if "_reorder" in str(node.target)]
    given = [(x, w, b)[position] for position in prepared.kept]
    values = prepared.preparation(*((x, w, b)[position] for position in prepared.sources))
    found, wanted = prepared.main(*given, *values), function(x, w, b)
    tolerance = {"rtol": 2e-2, "atol": 1e-1} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(found, wanted, check_stride=True, **tolerance)


STAYS: dict[str, tuple[Function, tuple[Tensor, Tensor, Tensor], list[int]]] = {
    "weight that is no parameter": (F.linear, ROWS, [2]),
    "nothing but parameters": (F.linear, ROWS, [0, 1, 2]),
    "scaled": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5), ROWS, [1, 2]),
    "added to a matrix": (lambda x, w, b: torch.addmm(x @ x.t(), x, x.t()), ROWS, [1, 2]),
    "added rows": (lambda x, w, b: torch.addmm(b.expand(7, 5) * 2, x, w.t()), ROWS, [1, 2]),
    "64 bits": (
        lambda x, w, b: F.linear(x, w, b),
        (ROWS[0].double(), ROWS[1].double(), ROWS[2].double()),
        [1, 2],
    ),
    "channels first": (
        lambda x, w, b: F.conv2d(x, w, b),
        (IMAGES[0].contiguous(), IMAGES[1].contiguous(), IMAGES[2]),
        [1, 2],
    ),
    "transposed convolution": (
        lambda x, w, b: F.conv_transpose2d(x, w.transpose(0, 1), b),
        IMAGES,
        [1, 2],
    ),
    "many rows": (F.linear, (torch.randn(257, 12), *ROWS[1:]), [1, 2]),
    "one row": (F.linear, (torch.randn(1, 12), *ROWS[1:]), [1, 2]),
    "no rows": (F.linear, (torch.randn(0, 12), *ROWS[1:]), [1, 2]),
    "no columns": (F.linear, (torch.randn(7, 0), torch.randn(5, 0), torch.randn(5)), [1, 2]),
    "a weight that is written to": (lambda x, w, b: F.linear(x, w.add_(1), b), ROWS, [1, 2]),
}


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str) -> None:
    function, operands, frozen = STAYS[case]
    gm = traced(function, operands)
    assert pack_weights(gm, frozen) == (gm, 0)


def test_without_onednn_nothing_is_packed() -> None:
    gm = traced(F.linear, ROWS)
    with mock.patch.object(torch.backends.mkldnn, "is_available", return_value=False):
        assert pack_weights(gm, [1, 2]) == (gm, 0)


def test_the_device_says_up_to_how_many_rows_packing_pays() -> None:
    gm = traced(F.linear, ROWS)
    for most, packed in ((6, 0), (7, 1)):
        if list_packed_types():
            assert pack_weights(gm, [1, 2], find_changed_model(loops__packed_rows=most))[1] == packed
