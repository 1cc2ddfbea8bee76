"""Results that are views of overwritten inputs lie in the inputs' memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import backend
from coilwork_frontend.calling_convention.view_results import insert_input_views


def half_written(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    x.narrow(1, half, half).abs_()
    return x.narrow(1, 0, half)


def all_written(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x[:, : x.shape[1] // 2], x.unflatten(1, (2, x.shape[1] // 2))


def a_new_one_beside(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    x.copy_(y)
    return y, x[:, x.shape[1] // 2 :]


def of_a_quotient(x: Tensor) -> Tensor:
    """The new contents have twice half of the columns, which is known to be all of them."""
    first = x.unflatten(1, (2, -1)).select(2, 0)
    first.mul_(2)
    return first


def repeated(x: Tensor) -> Tensor:
    """The new contents are one row, which lies otherwise than the input."""
    x.copy_(torch.arange(x.shape[1]))
    return x[:, : x.shape[1] // 2]


@pytest.mark.parametrize("function", [half_written, all_written, a_new_one_beside, of_a_quotient, repeated])
@pytest.mark.parametrize("training", [False, True])
def test_of_any_size_and_place(function: Callable[[Tensor], Tensor], training: bool) -> None:
    def call(run: Callable[[Tensor], Tensor], offset: int, columns: int) -> tuple[list[Tensor], Tensor]:
        storage = torch.arange(-20.0, 20.0, requires_grad=training) * 1
        given = storage.as_strided((3, columns), (columns, 1), offset)
        found = run(given)
        return [found] if isinstance(found, Tensor) else list(found), given

    compiled = torch.compile(
        function, backend=backend, dynamic=True, options={"strict": True, "verify": True}
    )
    for offset, columns in ((1, 4), (4, 4), (0, 6)):
        ours, mine = call(compiled, offset, columns)
        theirs, other = call(function, offset, columns)
        torch.testing.assert_close([*ours, mine], [*theirs, other])
        assert [value.storage_offset() for value in ours] == [value.storage_offset() for value in theirs]
        for one, two in zip(ours, theirs, strict=True):
            assert (one.data_ptr() == mine.data_ptr()) == (two.data_ptr() == other.data_ptr())


def graph_of(function: Callable[..., object], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def written(x: Tensor) -> tuple[Tensor, Tensor]:
    new = x * 2
    x.copy_(new)
    return new.t()[1:], new


def test_views_are_taken_from_the_input_and_what_is_new_stays() -> None:
    gm = graph_of(written, torch.ones(2, 3))
    made = insert_input_views(gm, [(0, 0)])
    view, new = made.graph.output_node().args[0]
    (sliced,) = view.all_input_nodes
    assert sliced.all_input_nodes[0].op == "placeholder"
    assert new.target is torch.ops.aten.mul.Tensor
    given = torch.ones(2, 3)
    first, second = made(given)
    torch.testing.assert_close((first, second), (torch.full((2, 2), 2.0), torch.full((2, 3), 2.0)))
    assert first.data_ptr() == given.data_ptr() + 4 != second.data_ptr() + 4


def test_what_is_no_view_of_new_contents_stays() -> None:
    gm = graph_of(written, torch.ones(2, 3))
    assert insert_input_views(gm, []) is gm
    gm = graph_of(lambda x: (x.copy_(x * 2) + 1,), torch.ones(2, 3))
    assert insert_input_views(gm, [(0, 0)]) is gm


def test_an_empty_result_takes_over_no_memory() -> None:
    def function(rows: Tensor, empty: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        found = x.gather(0, rows)
        return torch._foreach_add([found, y], [y, found])[1], empty - -1

    given = (
        torch.tensor([0, 0, 0]),
        torch.empty(4, 0, dtype=torch.int32),
        torch.tensor([1.5]),
        torch.rand(4, 1),
    )
    compiled = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    torch.testing.assert_close(compiled(*given), function(*given))


def _shared(rows: int, columns: int) -> Tensor:
    """A leaf of 4 by 6 elements, of which rows or columns are one memory."""
    return torch.randn(rows, columns).expand(4, 6).detach().requires_grad_()


@pytest.mark.parametrize("rows, columns", [(1, 6), (4, 1), (1, 1), (4, 6)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.unflatten(1, (2, 3)), x * 2),
        lambda x: (x.unflatten(0, (-1, 2)), x.sin().sum()),
        lambda x: (x.unflatten(1, (2, 3)),),
        lambda x: (x.t().unflatten(0, (2, 3))[1], x.exp(), x.unsqueeze(0).narrow(1, 1, 2)),
    ],
    ids=["beside a result", "beside a number", "alone", "of views"],
)
def test_gradients_of_views_of_memory_that_elements_share(
    function: Callable[[Tensor], tuple[Tensor, ...]], rows: int, columns: int
) -> None:
    compiled = torch.compile(
        function, backend=backend, options={"cache": False, "strict": True}, dynamic=True, fullgraph=True
    )
    x = _shared(rows, columns)
    gradients = []
    for one in (function, compiled):
        results = one(x)
        weights = [torch.randn(r.shape, generator=torch.Generator().manual_seed(3)) for r in results]
        gradients += torch.autograd.grad(
            sum(((r * w).sum() for r, w in zip(results, weights, strict=True)), torch.zeros(())), x
        )
        assert results[0]._base is x
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize(
    "function",
    [lambda x: x.chunk(2), lambda x: x.split([1, 3, 1]), lambda x: x.tensor_split(2), lambda x: x.unbind()],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_a_list_of_views_lies_in_the_input_wherever_its_parts_begin(
    function: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype
) -> None:
    # parts of complex numbers are an operator's results, and begin at odd multiples of 8 bytes
    x = torch.randn(5, 5, 5).to(dtype)
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for found, wanted in zip(compiled(x), function(x), strict=True):
        assert torch.equal(found, wanted) and found.data_ptr() == wanted.data_ptr()


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_parts_of_complex_numbers_reach_the_whole(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        first, second = y.chunk(2)
        second.mul_(3)
        return y, first + second.sum()

    x = torch.randn(6, 5, dtype=torch.complex64)
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(compiled(x), function(x))
