"""Rows chosen by tensors give eager's results, and refuse what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

aten = torch.ops.aten
NAN = float("nan")
TABLE = decompositions()


def traced(function: Callable[..., Any], *inputs: Tensor, device: str = "cpu") -> torch.fx.GraphModule:
    """The graph of `function` for `device`, which then runs on a CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device) for one in inputs
        ]
        gm = make_fx(function, decomposition_table=TABLE)(*given)
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    gm.recompile()
    return gm


def calls(gm: torch.fx.GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_shortened(dtype: torch.dtype, norm_type: float) -> None:
    table = torch.randn(6, 5, dtype=dtype)
    table[1], table[2, 0], table[3] = 0, NAN, table[3] / 100
    indices = torch.tensor([[1, 2, 5], [5, 3, 4]], dtype=torch.int32)

    def function(table: Tensor, indices: Tensor) -> Tensor:
        return aten.embedding_renorm(table, indices, 0.5, norm_type)

    gm = traced(function, table, indices)
    assert "aten.embedding_renorm.default" not in calls(gm)
    torch.testing.assert_close(gm(table, indices), function(table, indices), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeated_positions_of_an_accelerator(dtype: torch.dtype) -> None:
    repeats = torch.tensor([0, 2, 0, 3, 1, 0], dtype=dtype)

    def function(repeats: Tensor) -> Tensor:
        return aten.repeat_interleave.Tensor(repeats, output_size=6)

    gm = traced(function, repeats, device="cuda")
    assert "aten.repeat_interleave.Tensor" not in calls(gm)
    wanted = function(repeats)
    assert gm(repeats).dtype is dtype and torch.equal(gm(repeats), wanted)
    for bad in ([0, 2, 0, 3, 2, 0], [0, 2, -1, 3, 2, 0]):
        with pytest.raises(RuntimeError, match="negative" if -1 in bad else "size"):
            gm(torch.tensor(bad, dtype=dtype))


def test_repeated_positions_of_a_cpu_are_atens() -> None:
    gm = traced(lambda r: aten.repeat_interleave.Tensor(r, output_size=3), torch.tensor([1, 2]))
    assert "aten.repeat_interleave.Tensor" in calls(gm)


DATA = torch.tensor([[1.0, 2.0], [NAN, 2.0], [3.0, -1.0], [3.0, 0.0], [-2.0, 0.5], [7.0, 7.0]])
REDUCTIONS = ("sum", "mean", "max", "min", "prod")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("initial", [None, 2.5])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_by_lengths(reduce: str, initial: float | None, device: str) -> None:
    lengths = torch.tensor([2, 0, 3, 1])

    def function(data: Tensor, lengths: Tensor) -> Tensor:
        return torch.segment_reduce(data, reduce, lengths=lengths, initial=initial)

    gm = traced(function, DATA, lengths, device=device)
    assert "aten.segment_reduce.default" not in calls(gm)
    torch.testing.assert_close(gm(DATA, lengths), function(DATA, lengths), equal_nan=True)
    for bad in ([2, 0, 3, 2], [2, -1, 3, 2]):
        with pytest.raises(RuntimeError):
            gm(DATA, torch.tensor(bad))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("offsets", [[0, 2, 2, 6], [1, 3, 5]])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_by_offsets(reduce: str, offsets: list[int], device: str) -> None:
    def function(data: Tensor, offsets: Tensor) -> Tensor:
        return torch.segment_reduce(data, reduce, offsets=offsets)

    given = torch.tensor(offsets)
    gm = traced(function, DATA, given, device=device)
    assert "aten.segment_reduce.default" not in calls(gm)
    torch.testing.assert_close(gm(DATA, given), function(DATA, given), equal_nan=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_of_rows_of_a_batch(reduce: str) -> None:
    data, lengths = torch.randn(2, 5, 3), torch.tensor([[2, 3, 0], [1, 1, 3]])

    def function(data: Tensor, lengths: Tensor) -> Tensor:
        return torch.segment_reduce(data, reduce, lengths=lengths, axis=1)

    gm = traced(function, data, lengths)
    torch.testing.assert_close(gm(data, lengths), function(data, lengths), equal_nan=True)


@pytest.mark.parametrize("by", ["lengths", "offsets"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_gradients_of_segments(reduce: str, by: str) -> None:
    data = torch.tensor([[1.0, 2.0], [NAN, 2.0], [3.0, -1.0], [3.0, -1.0], [-2.0, 0.5], [7.0, 7.0]])
    segment_reduce: Callable[..., Tensor] = torch.segment_reduce
    given = {"lengths": [2, 0, 3, 1]} if by == "lengths" else {"offsets": [1, 2, 2, 5]}
    keywords = {name: torch.tensor(value) for name, value in given.items()}
    result = segment_reduce(data, reduce, **keywords)
    gradient = torch.randn(result.shape)

    def function(gradient: Tensor, result: Tensor, data: Tensor) -> Tensor:
        return aten._segment_reduce_backward(gradient, result, data, reduce, **keywords)

    gm = make_fx(function, decomposition_table=TABLE)(gradient, result, data)
    assert "aten._segment_reduce_backward.default" not in calls(gm)
    found, wanted = gm(gradient, result, data), function(gradient, result, data)
    torch.testing.assert_close(found, wanted, equal_nan=True)
