"""Results that are numbers: of the types and values that eager gives, in graphs that are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        yield
    torch._dynamo.reset()


def sizes(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return (
        x + 1,
        rows > 3,
        rows >= columns,
        rows < columns,
        rows <= 4,
        rows == columns,
        rows != columns,
        not rows > columns,
        rows + columns,
        True,
        2.5,
        None,
    )


def items(x: torch.Tensor) -> tuple[Any, ...]:
    total = x.sum().item()
    return total, total * 2 + 1, x.amax() - total, int(x.shape[0])


def rounded(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return (
        x[: round(rows / 2)] + round(columns / 4),
        x + round(rows * 123.456, 1) + round(rows * 123.456, -1) + round(columns, 2),
        round(rows / columns, 2),
    )


def conditions(x: torch.Tensor) -> tuple[Any, ...]:
    rows, columns = x.shape
    return x * (rows > columns), torch.full((2,), rows == columns), torch.full((1,), rows < columns) + 1


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("function", [sizes, items, rounded, conditions])
def test_numbers_as_eager_gives_them(
    function: Callable[[torch.Tensor], tuple[Any, ...]], shape: tuple[int, int]
) -> None:
    x = torch.arange(float(shape[0] * shape[1])).view(shape)
    found, wanted = torch.compile(function, backend=backend, dynamic=True)(x), function(x)
    assert [type(value) for value in found] == [type(value) for value in wanted]
    torch.testing.assert_close(found, wanted)


def test_the_rest_of_a_broken_function_that_returns_a_truth_value() -> None:
    def function(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        with torch._dynamo.config.patch(capture_scalar_outputs=False):
            total = x.sum().item()
        return total + 1 > 0, x * 2

    for value in (1.0, -1.0, -2.0):
        found, doubled = torch.compile(function, backend=backend, dynamic=True)(torch.full((3, 3), value))
        assert found is (value > 0)
        assert torch.equal(doubled, torch.full((3, 3), 2 * value))


def constant(count: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.arange(count.item()).split([2, 4]), x + 1


def size(count: torch.Tensor, x: torch.Tensor) -> Any:
    length = count.item()
    torch._check(length == 2 * x.shape[0])
    return torch.cat([x, x]).view(length) + 1


def pinned(count: torch.Tensor, x: torch.Tensor) -> Any:
    length = count.item()
    torch._check(length >= 6)
    torch._check(length <= 6)
    return x * length, torch.ones(length)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [constant, size, pinned])
def test_an_integer_that_can_be_but_one(function: Callable[..., Any], dynamic: bool) -> None:
    """It decides shapes, and another one is refused."""
    ours = torch.compile(function, backend=backend, dynamic=dynamic)
    x = torch.randn(3)
    torch.testing.assert_close(ours(torch.tensor([6]), x), function(torch.tensor([6]), x))
    with pytest.raises(RuntimeError):
        function(torch.tensor([7]), x)
    with pytest.raises(RuntimeError, match="must be"):
        ours(torch.tensor([7]), x)


@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_out_of_a_tensor(value: bool) -> None:
    def function(flag: torch.Tensor) -> tuple[Any, torch.Tensor]:
        found = flag.item()
        return found, torch.zeros(2) + found

    ours = torch.compile(function, backend=backend, fullgraph=True)
    found, added = ours(torch.tensor([value]))
    assert found is value
    assert torch.equal(added, torch.full((2,), float(value)))


def compared(x: torch.Tensor, n: int) -> Any:
    rows = x.shape[0]
    return (
        torch.full((2,), n >= 5),
        torch.full((2,), rows != 3, dtype=torch.float32),
        x.new_full((2,), rows < n),
        torch.tensor([n > 4, rows > 2]),
        x * (n >= 5) + (rows <= n),
        torch.where(x > 0, x, float(n > 5)),
        x.masked_fill(x > 0, n == 6),
    )


def test_comparisons_of_sizes_as_operands() -> None:
    ours = torch.compile(compared, backend=backend, dynamic=True)
    for rows, n in ((3, 4), (3, 5), (4, 6)):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(ours(x, n), compared(x, n))


PARTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "slice": (lambda x, part: x.slice_scatter(part, 1, 1, 5, 2), (4, 2)),
    "select": (lambda x, part: x.select_scatter(part, 1, -1), (4,)),
    "diagonal": (lambda x, part: x.diagonal_scatter(part, -1), (3,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_replaced_by_as_much(name: str, dynamic: bool) -> None:
    """What may be broadcast elsewhere is refused."""
    function, shape = PARTS[name]
    x, part = torch.zeros(4, 6), torch.ones(shape)
    for other in (part[..., :1], torch.ones(*shape[:-1], shape[-1] + 1)):
        torch._dynamo.reset()
        ours = torch.compile(function, backend=backend, dynamic=dynamic)
        torch.testing.assert_close(ours(x, part), function(x, part))
        with pytest.raises(RuntimeError, match="src"):
            function(x, other)
        with pytest.raises(RuntimeError, match="src"):
            ours(x, other)


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fraction": lambda a, b: a / b,
    "negative": lambda a, b: -a // (2 * b),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("wrapper", ["python", "fx", "cpp"])
def test_what_data_decides_is_not_divided_by_zero(name: str, wrapper: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * DIVISIONS[name](y.sum().item(), (y[0] * 1).item())

    compiled = torch.compile(function, backend=backend, options={"wrapper": wrapper})
    x = torch.randn(3)
    for pair in ([2, 5], [-3, 5], [3, -15]):
        y = torch.tensor(pair)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    for call in (compiled, function):
        with pytest.raises(ZeroDivisionError, match="by zero"):
            call(x, torch.tensor([0, 5]))


@pytest.mark.parametrize("name", DIVISIONS)
def test_sizes_are_not_divided_by_zero(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * DIVISIONS[name](7, x.shape[0] - 3)

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for rows in (5, 2, 9):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), function(x))
    for call in (compiled, function):
        with pytest.raises(ZeroDivisionError, match="by zero"):
            call(torch.randn(3))


def test_integers_from_data() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = y.sum().item()
        mixed = ((n & 12) | 3) ^ 5
        return x * abs(n) + (n << 3) - (n >> 1), x + mixed, x.new_ones(abs(n) + (mixed & 7)).cumsum(0)

    compiled = torch.compile(function, backend=backend)
    for numbers in ([2, 5], [-13, 1], [0, 0], [99, 128]):
        x, y = torch.randn(3), torch.tensor(numbers)
        torch.testing.assert_close(compiled(x, y), function(x, y))


SHIFTED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "plus": lambda x, n: torch.nn.functional.pad(x, (0, n)).sin(),
    "minus": lambda x, n: torch.nn.functional.pad(x, (0, -n)).sin(),
    "twice": lambda x, n: torch.nn.functional.pad(x, (n, n + 1)).sin(),
    "more": lambda x, n: x[:1].expand(2 * n + 1, -1).sin(),
    "less": lambda x, n: x[:1].expand(9 - 2 * n, -1).sin(),
    "rest": lambda x, n: x[(n + 3) % 4 :].sin(),
    "rows": lambda x, n: torch.nn.functional.pad(x, (0, n)).reshape(-1).sin(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SHIFTED)
def test_gradients_whose_sizes_are_made_of_integers_from_data(name: str, dynamic: bool) -> None:
    """Torch names the integer anew in the backward graph, and keeps the old name in the sizes of the
    gradients that come in.
    """

    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return SHIFTED[name](x, n.item())

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    for number in (2, 1):
        x, n = torch.randn(6, 5, requires_grad=True), torch.tensor(number)
        found, expected = compiled(x, n), function(x, n)
        torch.testing.assert_close(found, expected)
        weights = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, x, weights), torch.autograd.grad(expected, x, weights)
        )


def test_gradients_whose_size_is_a_sum_of_integers_from_data() -> None:
    def function(x: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (n.item(), m.item())).sin()

    x, n, m = torch.randn(6, 5, requires_grad=True), torch.tensor(2), torch.tensor(1)
    found, expected = torch.compile(function, backend=backend)(x, n, m), function(x, n, m)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, x, weights), torch.autograd.grad(expected, x, weights)
    )


@torch.library.custom_op("coilwork_test_numbers::pairs", mutates_args=())
def pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As many elements as `x` says: twice as many, two more, and as many."""
    count = int(x.sum())
    return torch.ones(2 * count), torch.ones(count + 2), torch.ones(count)


@pairs.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    return torch.empty(2 * count), torch.empty(count + 2), torch.empty(count)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_whose_sizes_are_made_of_a_new_one(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        twice, more, once = torch.ops.coilwork_test_numbers.pairs(x)
        return twice.cumsum(0) + 1, more[:-2] * once, twice.view(2, -1) + once, more + once.shape[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
        for numbers in ([1, 2], [3, 4], [2, 1]):
            x = torch.tensor(numbers)
            torch.testing.assert_close(compiled(x), function(x))


@torch.library.custom_op("coilwork_test_numbers::spaced", mutates_args=())
def spaced(x: torch.Tensor) -> torch.Tensor:
    """Two columns of a matrix that is as wide as `x` says."""
    return torch.arange(2 * int(x.sum()), dtype=torch.float32).view(2, -1)[:, :2]


@spaced.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided((2, 2), (torch.library.get_ctx().new_dynamic_size(min=2), 1))


@pytest.mark.parametrize(
    "options",
    [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}],
    ids=str,
)
def test_distances_in_memory_that_a_result_alone_tells(options: dict[str, str]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.ops.coilwork_test_numbers.spaced(x)
        return found * 2, found.t() @ found, found[1] + 1

    compiled = torch.compile(function, backend=backend, fullgraph=True, options={"strict": True, **options})
    for numbers in ([1, 2], [3, 4], [2, 0]):
        x = torch.tensor(numbers)
        torch.testing.assert_close(compiled(x), function(x))
