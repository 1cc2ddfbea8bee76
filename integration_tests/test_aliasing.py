"""Every way to alias and overwrite memory, for every layout of an input: results, memory and sharing are eager's.

What is compared: results; the whole storage of every input afterwards, so that a write beside a view is seen; and which
results and inputs share memory, at which distance. What eager refuses, compiled code refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coilwork.backend import backend

Function = Callable[..., Any]
Make = Callable[[], Tensor]


@pytest.fixture(scope="module")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aliasing")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, kernel_cache: Path) -> Iterator[None]:
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(kernel_cache))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Function, **keywords: Any) -> Function:
    return torch.compile(function, backend=backend, options={"strict": True, "verify": True}, **keywords)


# Layouts


def numbers(count: int) -> Tensor:
    return (torch.arange(count) % 13 - 6) / 4.0


LAYOUTS: dict[str, Make] = {
    "contiguous": lambda: numbers(48).reshape(6, 8),
    "transposed": lambda: numbers(48).reshape(8, 6).t(),
    "every other row": lambda: numbers(96).reshape(12, 8)[::2],
    "every third column": lambda: numbers(144).reshape(6, 24)[:, 1::3],
    "unaligned": lambda: numbers(49)[1:].reshape(6, 8),
    "offset and strided": lambda: numbers(200)[5:].as_strided((6, 8), (17, 2)),
    "expanded rows": lambda: numbers(8).expand(6, 8),
    "expanded columns": lambda: numbers(6)[:, None].expand(6, 8),
    "overlapping windows": lambda: numbers(18).unfold(0, 8, 2),
    "one element": lambda: numbers(1).reshape(1, 1),
    "one row": lambda: numbers(8).reshape(1, 8),
    "no rows": lambda: torch.empty(0, 8),
    "no columns": lambda: torch.empty(6, 0),
}


# Programs of one input of two dimensions


def overwritten(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    return x.sum(-1)


def overwritten_through_a_view(x: Tensor) -> Tensor:
    x[1:, ::2].add_(10)
    return x * 2


def overwritten_through_a_transposed_view(x: Tensor) -> Tensor:
    flipped = x.t()
    flipped[:1].zero_()
    return flipped + 1


def overwritten_from_its_own_view(x: Tensor) -> Tensor:
    x[:-1].copy_(x[1:] * 2)
    return x.cumsum(0)


def overlapping_views_written_in_turn(x: Tensor) -> Tensor:
    x[:4].add_(1)
    x[2:].mul_(3)
    x[1:3].sub_(x[3:4])
    return x + 0.5


def diagonal_written(x: Tensor) -> Tensor:
    x.diagonal().fill_(7)
    return x.t().relu()


def read_before_and_after(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x.sin()
    x.neg_()
    return before, x.sin()


def the_input_itself(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x * 2


def overwritten_and_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x, x[:, :1]


def views_of_the_input(x: Tensor) -> tuple[Tensor, ...]:
    return x[1:], x.t(), x.unsqueeze(0), x.diagonal(), x[:, ::2]


def views_of_each_other(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    return y, y.t(), y[:1], y[:, 1:]


def a_view_written_after_it_was_taken(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[:1]
    y.add_(1)
    row.mul_(3)
    return y, row


def only_a_view_of_an_intermediate(x: Tensor) -> Tensor:
    return (x * 2).t()[1:]


def copied_into(x: Tensor) -> Tensor:
    x.copy_(torch.ones_like(x).cumsum(-1))
    return x.mean()


def swapped(x: Tensor) -> None:
    kept = x.clone()
    x.copy_(kept.flip(0))


def positions_written(x: Tensor) -> Tensor:
    x.index_put_((torch.tensor([0, 0]),), torch.tensor(2.0), accumulate=True)
    x.masked_fill_(x > 1, 0.5)
    return x


def the_sum(x: Tensor) -> Tensor:
    return (x * 2).sum(0)


def data_detached(x: Tensor) -> Tensor:
    y = x.detach()
    y.add_(1)
    return x + y


PROGRAMS: Sequence[Function] = (
    overwritten,
    overwritten_through_a_view,
    overwritten_through_a_transposed_view,
    overwritten_from_its_own_view,
    overlapping_views_written_in_turn,
    diagonal_written,
    read_before_and_after,
    the_input_itself,
    overwritten_and_returned,
    views_of_the_input,
    views_of_each_other,
    a_view_written_after_it_was_taken,
    only_a_view_of_an_intermediate,
    copied_into,
    swapped,
    positions_written,
    data_detached,
)


READING: Sequence[Function] = (
    the_input_itself,
    views_of_the_input,
    views_of_each_other,
    a_view_written_after_it_was_taken,
    only_a_view_of_an_intermediate,
)


def whole(value: Tensor) -> Tensor:
    """All of the value's storage, as a line."""
    count = value.untyped_storage().nbytes() // value.element_size()
    return torch.empty(0, dtype=value.dtype).set_(value.untyped_storage(), 0, (count,), (1,))


def tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, Tensor)]


def strides(value: Tensor) -> list[int]:
    """Those that matter: of dimensions of several elements, in tensors that have any."""
    return [step for step, size in zip(value.stride(), value.shape) if size > 1 and value.numel()]


def sharing(values: Sequence[Tensor]) -> set[tuple[int, int, int]]:
    """Pairs of values with common storage, and the distance of their starts in bytes."""
    return {
        (i, j, values[j].data_ptr() - values[i].data_ptr())
        for j in range(len(values))
        for i in range(j)
        if values[i].numel()
        and values[j].numel()
        and values[i].untyped_storage().data_ptr() == values[j].untyped_storage().data_ptr()
    }


def torch_refuses(function: Function, make: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether AOTAutograd cannot run what eager can: a write to one row of an expanded tensor."""
    torch._dynamo.reset()
    try:
        torch.compile(function, backend="aot_eager")(*make())
    except RuntimeError as error:
        return "more than one element of the written-to tensor" in str(error)
    return False


def agrees(function: Function, ours: Function, make: Callable[[], Sequence[Tensor]]) -> None:
    """Both functions do the same to equal inputs, or both refuse."""
    given, theirs = make(), make()
    try:
        expected = function(*theirs)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError)):
            ours(*given)
        return
    try:
        results = ours(*given)
    except RuntimeError:
        assert torch_refuses(function, make)
        return
    torch.testing.assert_close(results, expected, equal_nan=True)
    assert [strides(value) for value in tensors(results)] == [strides(value) for value in tensors(expected)]
    for mine, eagers in zip(given, theirs, strict=True):
        torch.testing.assert_close(whole(mine), whole(eagers))
    assert sharing([*tensors(results), *given]) == sharing([*tensors(expected), *theirs])


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_input(layout: str, function: Function) -> None:
    if layout == "overlapping windows" and function not in READING:
        pytest.skip("torch says of such writes that their result is not defined")
    agrees(function, compiled(function), lambda: [LAYOUTS[layout]()])


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_one_input_of_any_size(function: Function) -> None:
    ours = compiled(function, dynamic=True)
    for rows, columns in ((6, 8), (9, 5)):
        agrees(
            function, ours, lambda shape=(rows, columns): [numbers(99)[3:].as_strided(shape, (1, shape[0]))]
        )


def test_what_is_read_before_a_write_to_overlapping_memory_is_as_it_was() -> None:
    windows = LAYOUTS["overlapping windows"]
    before, _ = compiled(read_before_and_after)(windows())
    torch.testing.assert_close(before, windows().sin())


# Inputs without dimensions


@pytest.mark.parametrize(
    "make", [lambda: torch.tensor(3.0), lambda: numbers(9)[4]], ids=["own", "of a vector"]
)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1) * 2,
        lambda x: (x, x.expand(3), x * 2),
        lambda x: x.view(1).mul_(3).sum(),
        lambda x: x.copy_(x.sin()),
    ],
    ids=["written", "viewed", "written through a view", "copied into"],
)
def test_no_dimensions(function: Function, make: Make) -> None:
    agrees(function, compiled(function), lambda: [make()])


# Inputs that share memory


def two_written(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return x.sum() + y.sum()


def one_written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y + 1


def neither_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, y[1:]


def one_copied_into_the_other(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y * 2)
    return y.clone()


PAIRS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "the same": lambda base: [base[:8], base[:8]],
    "one in the other": lambda base: [base, base[4:8]],
    "overlapping": lambda base: [base[:12], base[6:18]],
    "side by side": lambda base: [base[:8], base[8:16]],
    "interleaved": lambda base: [base[::2][:8], base[1::2][:8]],
    "as matrix and transposed": lambda base: [base[:16].view(4, 4), base[:16].view(4, 4).t()],
    "expanded": lambda base: [base[:8], base[2].expand(8)],
}


@pytest.mark.parametrize(
    "function",
    [two_written, one_written, neither_written, one_copied_into_the_other],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("pair", PAIRS)
def test_inputs_that_share_memory(pair: str, function: Function) -> None:
    agrees(function, compiled(function), lambda: PAIRS[pair](numbers(24)))


def test_memory_shared_in_one_call_and_not_in_the_next() -> None:
    ours = compiled(one_written)
    agrees(one_written, ours, lambda: [numbers(8), numbers(8)])
    agrees(one_written, ours, lambda: PAIRS["the same"](numbers(24)))
    agrees(one_written, ours, lambda: PAIRS["overlapping"](numbers(24)))


def strided_anew(x: Tensor) -> Tensor:
    windows = x.as_strided((5, 4), (1, 2))
    x.as_strided((4,), (3,), 6).add_(100)
    return windows + 1


def placed_before_a_slice_changes(x: Tensor) -> Tensor:
    windows = x.as_strided((5, 2), (2, 1), 5)
    x[8:].add_(100)
    return windows + 1


def placed_before_a_row_changes(x: Tensor) -> Tensor:
    windows = x[1:].as_strided((5, 2), (2, 1), 5)
    x.view(4, 5)[1].mul_(2)
    x.view(4, 5).diagonal().sub_(7)
    return windows + x.as_strided((5, 2), (1, 2), 4)


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    "function",
    [strided_anew, placed_before_a_slice_changes, placed_before_a_row_changes],
    ids=lambda f: f.__name__,
)
def test_as_strided(function: Function, offset: int) -> None:
    agrees(function, compiled(function), lambda: [numbers(30)[offset : offset + 20]])


def placed_in_storage(x: Tensor) -> Tensor:
    return x.as_strided((4,), (3,), 1) + 1


def placed_from_a_part(x: Tensor) -> Tensor:
    return x.split([12, 8], 0)[1].as_strided((4,), (3,), 1) * 2


@pytest.mark.parametrize(
    "function", [strided_anew, placed_in_storage, placed_from_a_part], ids=lambda f: f.__name__
)
def test_as_strided_of_inputs_that_begin_elsewhere(function: Function) -> None:
    """Offsets count in the storage, and Dynamo does not compile anew for an input that begins elsewhere in its own."""
    ours = compiled(function)
    for offset in (0, 3, 5):
        agrees(function, ours, lambda at=offset: [numbers(30)[at : at + 20]])


# Gradients, parameters and buffers


def test_a_leaf_is_written_without_gradients() -> None:
    def update(weight: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight.sub_(0.5)
        return (weight * x).sum()

    weights = [numbers(6).requires_grad_() for _ in range(2)]
    results = [f(w, numbers(6)) for f, w in zip((update, compiled(update)), weights, strict=True)]
    for result in results:
        result.backward()
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(weights[1].detach(), weights[0].detach())
    torch.testing.assert_close(weights[1].grad, weights[0].grad)


def test_an_input_that_is_no_leaf_is_written_and_differentiated() -> None:
    def update(x: Tensor) -> Tensor:
        x[1:].mul_(3)
        x.t()[:1].exp_()
        return x.sin()

    gradients = []
    for function in (update, compiled(update)):
        leaf = numbers(12).reshape(3, 4).requires_grad_()
        value = leaf * 1
        result = function(value)
        (result.sum() + (value * 2).sum()).backward()
        gradients.append((leaf.grad, value.detach(), result.detach()))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_views_that_are_returned_carry_gradients() -> None:
    def views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y[1:], y.t(), x[:1]

    found = []
    for function in (views, compiled(views)):
        leaf = numbers(12).reshape(3, 4).requires_grad_()
        first, second, third = function(leaf)
        (first.sin().sum() + second.square().sum() + third.sum()).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])


class Counter(nn.Module):
    """Overwrites its buffers, one of them through a view, and has a parameter that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("history", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(self.second(torch.tanh(self.first(x))))
        self.history[1:].copy_(self.history[:-1].clone())
        self.history[0] = y.detach().mean(0)
        return y


@pytest.mark.parametrize("training", [True, False])
def test_buffers_and_shared_parameters(training: bool) -> None:
    eager = Counter().train(training)
    model = copy.deepcopy(eager)
    ours = compiled(model)
    for step in range(2):
        x = numbers(20).reshape(5, 4) + step
        results = [function(x) for function in (eager, ours)]
        torch.testing.assert_close(results[1], results[0])
        for result in results:
            result.square().sum().backward()
    torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
    # Batch norm of few rows divides by small deviations.
    torch.testing.assert_close(model.first.weight.grad, eager.first.weight.grad, rtol=1e-3, atol=1e-4)
    assert model.first.weight is model.second.weight


def test_an_aligned_input_and_then_one_that_is_not() -> None:
    ours = compiled(overwritten)
    for start in (0, 1, 2, 3, 4):
        agrees(overwritten, ours, lambda at=start: [numbers(70)[at:].as_strided((6, 8), (8, 1))])


@pytest.mark.parametrize(
    "settings", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}]
)
def test_repeated_elements_that_are_not_aligned_in_a_later_call(settings: dict[str, Any]) -> None:
    ours = torch.compile(the_sum, backend=backend, options={"strict": True, **settings})
    for start in (0, 1, 3):
        agrees(the_sum, ours, lambda at=start: [numbers(99)[at : at + 65].expand(3, 65)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
def test_other_types(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        x[1:].copy_(x[:-1].clone())
        return x[::2], x.t().clone()

    agrees(
        function,
        compiled(function),
        lambda: [(torch.arange(80) % 7).to(dtype)[3:].as_strided((5, 8), (9, 1))],
    )
