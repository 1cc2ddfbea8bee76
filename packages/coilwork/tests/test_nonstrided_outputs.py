"""Sparse gradients and meta tensors: made after the program of a graph, the rest of which is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning
from coilwork_frontend.calling_convention.output_epilogues import return_composition_parts


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rows(table: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    return F.embedding(indices, table, sparse=True).sin() @ weight


def rows_twice(table: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    there = F.embedding(indices.flip(0), table * 1, sparse=False)
    return (F.embedding(indices, table, sparse=True) + there.detach()) @ weight


def bags(table: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    return F.embedding_bag(indices, table, sparse=True, mode="sum") @ weight.exp()


@pytest.mark.parametrize("function", [rows, rows_twice, bags])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(function: Callable[..., Tensor], dynamic: bool) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for count in (3, 5):
        indices = torch.randint(7, (count, 2))
        mine = [torch.randn(7, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
        theirs = [leaf.detach().requires_grad_() for leaf in mine]
        with warnings.catch_warnings():
            warnings.simplefilter("error", CoilworkFallbackWarning)
            found, wanted = compiled(*mine, indices), function(*theirs, indices)
            found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(found, wanted)
        for ours, eager in zip(mine, theirs, strict=True):
            assert ours.grad is not None and eager.grad is not None
            assert ours.grad.layout == eager.grad.layout
            torch.testing.assert_close(ours.grad.to_dense(), eager.grad.to_dense())


def test_training_with_sparse_adam() -> None:
    def weights(compiling: bool) -> Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(9, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        forward = torch.compile(table, backend=backend) if compiling else table
        for indices in ([1, 3, 3], [8, 0, 1]):
            optimizer.zero_grad()
            forward(torch.tensor(indices)).square().sum().backward()
            optimizer.step()
        return table.weight.detach()

    torch.testing.assert_close(weights(True), weights(False))


def meta(x: Tensor) -> tuple[Tensor, ...]:
    shapes = torch.empty(3, x.shape[0], device="meta")
    return shapes, x + 1, x.to("meta").t() @ x.to("meta"), (shapes + 1).sum(0), x * shapes.shape[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_meta_tensors_inside_of_a_graph(dynamic: bool) -> None:
    compiled = torch.compile(meta, backend=backend, dynamic=dynamic)
    for rows in (4, 5):
        x = torch.randn(rows, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CoilworkFallbackWarning)
            found = compiled(x)
        for ours, wanted in zip(found, meta(x), strict=True):
            assert (ours.shape, ours.stride(), ours.device) == (wanted.shape, wanted.stride(), wanted.device)
            if ours.device.type != "meta":
                torch.testing.assert_close(ours, wanted)


def test_graphs_of_strided_tensors_stay() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    assert return_composition_parts(gm) == (gm, None)
