"""Results that are made after the call: sparse and meta tensors, and inputs that are set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
def test_gradients_of_such_results_are_those_of_eager(function: Callable[..., Tensor], dynamic: bool) -> None:
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


def an_input(x: Tensor, y: Tensor) -> Tensor:
    x.data = y
    return x + 1


def a_part(x: Tensor, y: Tensor) -> Tensor:
    x.data = y[1:3]
    return x + 1


def something_new(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    new = (y * 2).t()
    x.data = new
    return new, x


def twice(x: Tensor, y: Tensor) -> Tensor:
    x.data = y * 2
    x.data = x * 3
    return x


def one_another(x: Tensor, y: Tensor) -> Tensor:
    x.data, y.data = y * 1, x * 1
    return x[0] - y[0]


def agree(function: Callable[..., Any], options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    ours = torch.compile(function, backend=backend, options=options)
    mine, theirs = ([torch.arange(6.0).view(2, 3), torch.ones(4, 3)] for _ in range(2))
    for _ in range(2):
        found, wanted = ours(*mine), function(*theirs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, theirs)
        assert [value.stride() for value in mine] == [value.stride() for value in theirs]
        assert sharing(mine, found) == sharing(theirs, wanted)


def sharing(inputs: list[Tensor], results: Any) -> list[int]:
    """For each tensor, the first that lies in the same storage."""
    found = [*inputs, *(results if isinstance(results, tuple) else (results,))]
    starts = [value.untyped_storage().data_ptr() for value in found]
    return [starts.index(start) for start in starts]


@pytest.mark.parametrize("function", [an_input, a_part, something_new, twice, one_another])
@pytest.mark.parametrize("executor", ["auto", "python"])
def test_such_results_are_those_of_eager(function: Callable[..., Any], executor: str) -> None:
    agree(function, {"strict": True, "verify": True, "executor": executor})


def _set_beside(x: Tensor, y: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    x.data = y + 1
    return x * 2, there.sin()


def _agree_beside(there: Tensor) -> None:
    theirs, mine = (torch.zeros(2), torch.ones(3)), (torch.zeros(2), torch.ones(3))
    found, _ = torch.compile(_set_beside, backend=backend)(*mine, there)
    assert torch.equal(found, _set_beside(*theirs, there)[0])
    assert torch.equal(mine[0], theirs[0])


def test_a_graph_that_runs_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("a fault of a stage")

    monkeypatch.setattr("coilwork.compile_graph._compile", fail)
    with pytest.warns(CoilworkFallbackWarning, match="a fault of a stage"):
        _agree_beside(torch.ones(3))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_a_graph_in_parts() -> None:
    _agree_beside(torch.empty(3, device="meta"))


class Masked(nn.Module):
    """A layer some of whose weights are nothing, whatever an optimizer made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.data *= self.mask
        return self.linear(x)


def test_a_parameter_in_training() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    theirs = Masked()
    mine = Masked()
    mine.load_state_dict(theirs.state_dict())
    ours = torch.compile(mine, backend=backend, options={"strict": True})
    parameter = mine.linear.weight
    x = torch.randn(3, 4)
    for _ in range(2):
        found, wanted = ours(x), theirs(x)
        torch.testing.assert_close(found, wanted)
        assert mine.linear.weight is parameter
        torch.testing.assert_close(parameter, theirs.linear.weight)
        assert torch.equal(parameter, parameter.tril())
        bias = torch.autograd.grad(found.sum(), mine.linear.bias)
        torch.testing.assert_close(bias, torch.autograd.grad(wanted.sum(), theirs.linear.bias))
