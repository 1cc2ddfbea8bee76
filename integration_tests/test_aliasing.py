"""Aliased and overwritten inputs, leaves and parameters, in every layout: results and sharing are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from integration_tests.beside_eager import Function, Make, agrees, compiled, numbers

pytestmark = pytest.mark.usefixtures("own_caches")

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


# of writes to overlapping windows torch says that their result is not defined
@pytest.mark.parametrize(
    ("layout", "function"),
    [
        pytest.param(layout, function, id=f"{layout}-{function.__name__}")
        for layout in LAYOUTS
        for function in (READING if layout == "overlapping windows" else PROGRAMS)
    ],
)
def test_programs_agree_for_every_layout_of_an_input(layout: str, function: Function) -> None:
    agrees(function, compiled(function), lambda: [LAYOUTS[layout]()])


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_agree_for_inputs_of_dynamic_size(function: Function) -> None:
    ours = compiled(function, dynamic=True)
    for rows, columns in ((6, 8), (9, 5)):
        agrees(
            function, ours, lambda shape=(rows, columns): [numbers(99)[3:].as_strided(shape, (1, shape[0]))]
        )


def test_writes_to_equal_chunks_of_dynamic_size_share_memory() -> None:
    """The size of a part is a third of a size that is not known."""

    def written_in_parts(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x + 1
        parts = whole.unflatten(0, (3, -1))
        parts.zero_()
        return whole, parts

    ours = compiled(written_in_parts, dynamic=True)
    for rows in (6, 9, 12):
        agrees(written_in_parts, ours, lambda count=rows: [numbers(4 * count).view(count, 4)])


def test_views_of_an_offset_input_of_dynamic_size_stay_in_its_storage() -> None:
    def cut_and_merged(x: Tensor) -> Tensor:
        return x.unflatten(1, (4, -1)).reshape(-1)

    ours = compiled(cut_and_merged, dynamic=True)
    for columns in (8, 12):
        agrees(cut_and_merged, ours, lambda count=columns: [numbers(17 + 4 * count)[17:].view(2, count, 2)])


def test_an_update_of_another_layout_and_its_view_share_memory() -> None:
    """What is updated lies across, the result row by row: it is laid out anew once, not for each result."""

    def updated_across(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        y = (x + 1).t().scatter_add(0, at, x[:, :4])
        return y, y.narrow(0, 1, 3)

    agrees(
        updated_across,
        compiled(updated_across),
        lambda: [numbers(20).view(4, 5), torch.arange(16).view(4, 4) % 5],
    )


@pytest.mark.parametrize("cut", [lambda x: x.chunk(2), lambda x: x.unbind(0)], ids=["chunk", "unbind"])
def test_overlapping_slices_have_separate_gradients(cut: Function) -> None:
    """Of a tensor whose rows are one row."""

    def gradient(function: Function) -> Tensor:
        x = numbers(4).expand(4, 4).requires_grad_()
        parts = function(x)
        tangents = [numbers(part.numel()).view(part.shape) + k for k, part in enumerate(parts)]
        return torch.autograd.grad(parts, x, tangents)[0]

    try:
        found = gradient(compiled(cut))
    except RuntimeError:
        # torch 2.12 copies tangents into the layout of the parts
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            gradient(torch.compile(cut, backend="aot_eager"))
        return
    torch.testing.assert_close(found, gradient(cut))


def test_reads_before_a_write_to_overlapping_memory_see_old_values() -> None:
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
def test_programs_of_scalars_are_those_of_eager(function: Function, make: Make) -> None:
    agrees(function, compiled(function), lambda: [make()])


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
def test_every_dtype_agrees(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        x[1:].copy_(x[:-1].clone())
        return x[::2], x.t().clone()

    agrees(
        function,
        compiled(function),
        lambda: [(torch.arange(80) % 7).to(dtype)[3:].as_strided((5, 8), (9, 1))],
    )


def overwritten_in_a_storage_of_its_own(x: Tensor) -> Tensor:
    found = x.argmax(-2)[1:][:, [1, 0]]
    found.as_strided((2, 1), (1, 0), 0).add_(-7)
    return found


def test_as_strided_of_a_temporary_counts_from_its_storage() -> None:
    """Where it is placed among others in memory, its storage still begins with it."""
    agrees(
        overwritten_in_a_storage_of_its_own,
        compiled(overwritten_in_a_storage_of_its_own),
        lambda: [numbers(24).view(3, 2, 4)],
    )


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
def test_inputs_that_share_memory_agree(pair: str, function: Function) -> None:
    agrees(function, compiled(function), lambda: PAIRS[pair](numbers(24)))


def test_sharing_may_change_from_call_to_call() -> None:
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
def test_as_strided_of_an_input_agrees(function: Function, offset: int) -> None:
    agrees(function, compiled(function), lambda: [numbers(30)[offset : offset + 20]])


def placed_in_storage(x: Tensor) -> Tensor:
    return x.as_strided((4,), (3,), 1) + 1


def placed_from_a_part(x: Tensor) -> Tensor:
    return x.split([12, 8], 0)[1].as_strided((4,), (3,), 1) * 2


@pytest.mark.parametrize(
    "function", [strided_anew, placed_in_storage, placed_from_a_part], ids=lambda f: f.__name__
)
def test_as_strided_counts_from_the_storage_of_each_call(function: Function) -> None:
    """Offsets count in the storage, and Dynamo does not compile anew for an input that begins elsewhere in
    its own.
    """
    ours = compiled(function)
    for offset in (0, 3, 5):
        agrees(function, ours, lambda at=offset: [numbers(30)[at : at + 20]])


# Later calls


def the_row_sum(x: Tensor) -> Tensor:
    return x.sum()


def test_a_later_input_may_be_unaligned() -> None:
    ours = compiled(overwritten)
    for start in (0, 1, 2, 3, 4):
        agrees(overwritten, ours, lambda at=start: [numbers(70)[at:].as_strided((6, 8), (8, 1))])


@pytest.mark.parametrize(
    "settings", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}]
)
def test_a_later_expanded_input_may_be_unaligned(settings: dict[str, Any]) -> None:
    ours = compiled(the_row_sum, settings=settings)
    for start in (0, 1, 3):
        agrees(the_row_sum, ours, lambda at=start: [numbers(99)[at : at + 65].expand(3, 65)])


def test_a_leaf_is_updated_under_no_grad() -> None:
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


def test_a_non_leaf_input_is_updated_and_differentiated() -> None:
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


def test_returned_views_carry_gradients() -> None:
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
def test_buffers_and_tied_parameters_are_updated_as_in_eager(training: bool) -> None:
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
