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


def _activate(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate = F.conv2d(x, w, b)
    parts = (gate * gate.sigmoid(), F.silu(F.conv2d(x, w)), F.relu(F.conv2d(x, w * 2)))
    others = (F.conv2d(x, w * 3).tanh(), F.leaky_relu(F.conv2d(x, w * 4), 0.2), F.conv2d(x, w * 5).sigmoid())
    return torch.cat((*parts, *others))


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
    "channels first": (
        lambda x, w, b: F.conv2d(x, w, b),
        (IMAGES[0].contiguous(), IMAGES[1].contiguous(), IMAGES[2]),
    ),
    "one tap": (
        lambda x, w, b: F.conv2d(x, w, b),
        (torch.randn(2, 64, 32, 32), torch.randn(32, 64, 1, 1), torch.randn(32)),
    ),
    "activations": (_activate, IMAGES),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", PACKED)
def test_weights_are_packed_once(case: str, dtype: torch.dtype) -> None:
    function, operands = PACKED[case]
    x, w, b = (one.to(dtype) for one in operands)
    made, count = pack_weights(traced(function, (x, w, b)), [1, 2])
    calls = [one for one in made.graph.nodes if "_pointwise" in str(one.target)]
    assert count == len(calls) == (dtype in list_packed_types()) * (6 if case == "activations" else 1)
    if not count:
        return
    made.graph.lint()
    prepared = split_constants(made, [1, 2])
    assert prepared is not None
    assert not [node for node in prepared.main.graph.nodes if "_reorder" in str(node.target)]
    given = [(x, w, b)[position] for position in prepared.kept]
    values = prepared.preparation(*((x, w, b)[position] for position in prepared.sources))
    found, wanted = prepared.main(*given, *values), function(x, w, b)
    rtol, atol = (2e-2, 1e-1) if dtype is torch.bfloat16 else (1e-5, 1e-4)
    torch.testing.assert_close(found, wanted, check_stride=True, rtol=rtol, atol=atol)


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
    "a small product": (
        lambda x, w, b: F.conv2d(x, w, b),
        (torch.randn(2, 4, 9, 9), torch.randn(6, 4, 1, 1), IMAGES[2]),
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
def test_weights_that_may_not_be_packed_stay(case: str) -> None:
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


def test_chains_of_convolutions_are_not_converted_between_calls() -> None:
    if not list_packed_types():
        return
    x, weight = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    gm = traced(lambda x, w: F.relu(F.conv2d(F.silu(F.conv2d(F.silu(F.conv2d(x, w)), w)), w)), (x, weight))
    made, count = pack_weights(gm, [1])
    made.graph.eliminate_dead_code()
    assert count == 3
    # the image, and the last result, whose strides are captured
    assert [str(node.target) for node in made.graph.nodes].count("aten.clone.default") == 2


def test_what_the_library_makes_of_nan_stays_with_kernels_of_ours() -> None:
    if not list_packed_types():
        return
    x, weight = torch.full((1, 8, 4, 4), float("nan")), torch.randn(8, 8, 3, 3)
    for activate in (F.silu, torch.tanh, torch.sigmoid, lambda v: F.leaky_relu(v, 0.1), F.relu, F.relu6):
        made, count = pack_weights(traced(_convolve_and(activate), (x, weight)), [1])
        prepared = split_constants(made, [1])
        assert count == 1 and prepared is not None
        assert prepared.main(x, *prepared.preparation(weight))[0].isnan().all()


def _convolve_and(activate: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: activate(F.conv2d(x, w))
