"""Every way to alias and overwrite memory, for every layout of an input: results, memory and sharing are
eager's.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

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
def test_scalars_agree(function: Function, make: Make) -> None:
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
