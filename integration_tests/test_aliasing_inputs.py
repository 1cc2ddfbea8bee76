"""Inputs that share memory, that are placed anew in their storage, and that begin elsewhere in a
later call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from integration_tests.beside_eager import Function, agrees, compiled, numbers

pytestmark = pytest.mark.usefixtures("own_caches")


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


def overwritten(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    return x.sum(-1)


def the_sum(x: Tensor) -> Tensor:
    return x.sum()


def test_a_later_input_may_be_unaligned() -> None:
    ours = compiled(overwritten)
    for start in (0, 1, 2, 3, 4):
        agrees(overwritten, ours, lambda at=start: [numbers(70)[at:].as_strided((6, 8), (8, 1))])


@pytest.mark.parametrize(
    "settings", [{"executor": "native"}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}]
)
def test_a_later_expanded_input_may_be_unaligned(settings: dict[str, Any]) -> None:
    ours = compiled(the_sum, settings=settings)
    for start in (0, 1, 3):
        agrees(the_sum, ours, lambda at=start: [numbers(99)[at : at + 65].expand(3, 65)])
