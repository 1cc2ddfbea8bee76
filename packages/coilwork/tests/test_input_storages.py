"""Inputs whose place in their storage matters, or that overlap, beside eager."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

Function = Callable[..., object]


def replaced(x: Tensor) -> Tensor:
    x.mul_(3)
    return x.as_strided((2, 2), (4, 1), 6) * 2


def replaced_without_an_offset(x: Tensor) -> Tensor:
    x.mul_(3)
    return x.as_strided((2, 2), (3, 1)) * 2


def a_column_replaced(x: Tensor) -> Tensor:
    x[:, 1] = 7
    return torch.as_strided(x, (2, 2), (4, 1), storage_offset=6) + 1


def written_at_a_place(x: Tensor) -> Tensor:
    x[1:2].mul_(3)
    y = x.as_strided((2, 2), (4, 1), 6)
    y.add_(1)
    return y


def written_at_a_place_of_a_part(x: Tensor) -> Tensor:
    y = x[1]
    y.as_strided((2, 2), (4, 1), 6).add_(1)
    return y


def read_before_it_is_replaced(x: Tensor) -> Tensor:
    y = x.as_strided((2, 2), (4, 1), 6)
    x += 1
    return y * 2


def copied_at_a_place(x: Tensor) -> tuple[Tensor, Tensor]:
    x.neg_()
    copied = torch.as_strided_copy(x, (2, 2), (4, 1), 6)
    return copied, torch.as_strided_scatter(x, copied * 2, (2, 2), (4, 1), 6)


def ramp() -> Tensor:
    return torch.arange(64.0)


def compiled(function: Function) -> Function:
    return torch.compile(function, backend=backend, options={"strict": True, "verify": True})


def agree(function: Function, ours: Function, make: Callable[[], tuple[Tensor, ...]]) -> None:
    mine, theirs = make(), make()
    found, expected = ours(*mine), function(*theirs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a._base, b._base, rtol=0, atol=0)
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        assert found.storage_offset() == expected.storage_offset()


@pytest.mark.parametrize(
    ("first", "strides"), [(0, (5, 1)), (5, (4, 1))], ids=["with gaps", "begins elsewhere"]
)
@pytest.mark.parametrize(
    "function",
    [
        replaced,
        replaced_without_an_offset,
        a_column_replaced,
        written_at_a_place,
        written_at_a_place_of_a_part,
        read_before_it_is_replaced,
        copied_at_a_place,
    ],
    ids=lambda f: f.__name__,
)
def test_inputs_that_begin_elsewhere(function: Function, first: int, strides: tuple[int, int]) -> None:
    """Dynamo does not compile anew for an input that begins elsewhere in its storage."""
    ours = compiled(function)
    for offset in (first, 6, 4, first):
        agree(function, ours, partial(one, 3, strides, offset))


def of_two(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    x[1:2].mul_(3)
    y = x.as_strided((2, 2), (4, 1), 6)
    y.add_(1)
    x += 1
    z.sub_(1)
    return y, x


def one_read(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    z.sub_(1)
    return x.as_strided((2, 2), (4, 1), 9) * 1, z


def one(rows: int, strides: tuple[int, int], offset: int) -> tuple[Tensor]:
    return (ramp().as_strided((rows, 4), strides, offset),)


def pair(first: int, second: int, shared: bool) -> tuple[Tensor, Tensor]:
    storage = ramp()
    other = storage if shared else ramp()
    return storage.as_strided((3, 4), (4, 1), first), other.as_strided((3, 4), (4, 1), second)


PAIRS = {
    "the same": (5, 5, True),
    "overlapping": (5, 7, True),
    "beside each other": (5, 40, True),
    "of two storages": (5, 5, False),
    "of two storages, elsewhere": (4, 5, False),
}


# of two storages, `one_read` looks for nothing in what it writes
@pytest.mark.parametrize(
    ("function", "first"),
    [*((of_two, name) for name in PAIRS), *((one_read, name) for name in PAIRS if PAIRS[name][-1])],
)
def test_inputs_that_share_a_storage_or_do_not(function: Function, first: str) -> None:
    ours = compiled(function)
    for name in (first, *PAIRS):
        agree(function, ours, partial(pair, *PAIRS[name]))


def test_an_input_that_asks_for_gradients_and_begins_elsewhere() -> None:
    """The storage cannot be given in its stead, and AOTAutograd would take the place in something else."""

    def make() -> tuple[Tensor]:
        return ((ramp().requires_grad_() * 1).as_strided((3, 4), (4, 1), 5),)

    with pytest.raises(BackendCompilerFailed, match="places-in-storage"):
        compiled(replaced)(*make())
    with pytest.warns(CoilworkFallbackWarning, match="places-in-storage"):
        agree(replaced, torch.compile(replaced, backend=backend), make)


def test_replaced_storages_of_open_sizes_are_eagers() -> None:
    ours = torch.compile(replaced, backend=backend, dynamic=True, options={"strict": True})
    for rows, offset in ((4, 0), (5, 0), (5, 3)):
        agree(replaced, ours, partial(one, rows, (4, 1), offset))


def mapped(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sin() * row.sum())(x)


def differentiated(x: Tensor) -> Tensor:
    found: Tensor = torch.func.grad(lambda y: (y.sin() * y).sum())(x)
    return found


def pushed_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.func.jvp(lambda y: y.sin() * y, (x,), (x + 1,))
    return found


def mapped_over_a_jacobian(x: Tensor) -> Tensor:
    return torch.vmap(torch.func.jacrev(torch.sin))(x)


def mapped_over_places_of_what_is_overwritten(x: Tensor) -> Tensor:
    x.mul_(2)
    return torch.vmap(lambda row: row.as_strided((2,), (2,)) + 1)(x)


@pytest.mark.parametrize(
    "function",
    [
        mapped,
        differentiated,
        pushed_forward,
        mapped_over_a_jacobian,
        mapped_over_places_of_what_is_overwritten,
    ],
)
def test_tensors_of_torch_func_lie_in_the_memory_of_what_they_wrap(function: Function) -> None:
    ours, x = compiled(function), torch.randn(4, 5)
    torch.testing.assert_close(ours(x.clone()), function(x.clone()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1).as_strided((2, 3), (4, 1), 2) + 1,
        lambda x: x.clone().as_strided((5,), (2,), 1) * 2,
        lambda x: (x.double().float() / 1)[1:].as_strided((5,), (1,), 3).sum(),
        lambda x: torch.as_strided_scatter(x * 1, torch.ones(4), (4,), (2,), 1),
    ],
    ids=["product", "clone", "conversions", "scatter"],
)
def test_places_in_a_copy_count_from_its_begin(function: Function) -> None:
    torch._dynamo.reset()
    part = torch.arange(40.0)[6:26]
    compiled = torch.compile(function, backend=backend, options={"strict": True})
    torch.testing.assert_close(compiled(part), function(part), rtol=0, atol=0)


@pytest.mark.parametrize("function", [operator.or_, operator.and_, torch.bitwise_or, lambda x, y: ~x | y])
def test_operators_whose_names_end_as_those_of_writes_write_nothing(function: Callable[..., Tensor]) -> None:
    """The names of `or_` and `and_` end so since the words are Python's."""

    def program(x: Tensor) -> Tensor:
        y = x.as_strided((1, 7), (2, 1), 5)
        return function(y, 1) % 5

    torch._dynamo.reset()
    x = torch.arange(17)[1:].view(4, 4)
    ours = torch.compile(program, backend=backend, options={"strict": True}, dynamic=True)
    assert torch.equal(ours(x), program(x))


Pair = Callable[[Tensor], Sequence[Tensor]]
INPUT_PAIRS: dict[str, Pair] = {
    "apart": lambda base: (base[:4], torch.ones(4)),
    "side by side": lambda base: (base[:4], base[4:]),
    "the first halfway in the second": lambda base: (base[2:6], base[:4]),
    "the second halfway in the first": lambda base: (base[:4], base[2:6]),
    "farther in": lambda base: (base[:4], base[1:5]),
    "as far, behind": lambda base: (base[1:5], base[3:7]),
    "equal": lambda base: (base[:4], base[:4]),
    "in a longer storage": lambda base: (lambda longer: (longer[:4], longer[2:6]))(base.repeat(2)),
    "of a matrix": lambda base: (lambda matrix: (matrix.view(-1)[:4], matrix[0]))(base.view(2, 4)),
}


def before(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y + x


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y.sin()
    x.mul_(2)
    y.add_(1)
    return y + x, z


def same(function: Callable[..., Any], compiled: Callable[..., Any], pair: Pair) -> None:
    given, expected = torch.arange(8.0), torch.arange(8.0)
    torch.testing.assert_close(compiled(*pair(given)), function(*pair(expected)))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("function", [before, both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", INPUT_PAIRS)
def test_inputs_lie_otherwise_in_later_calls(
    first: str, function: Callable[..., Any], dynamic: bool | None
) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for pair in (INPUT_PAIRS[first], *INPUT_PAIRS.values(), INPUT_PAIRS[first]):
        same(function, compiled, pair)


def test_what_runs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(before, backend=backend, dynamic=False)
    with caplog.at_level(logging.WARNING, "coilwork"):
        for name in ("apart", "side by side", "apart"):
            same(before, compiled, INPUT_PAIRS[name])
        assert not caplog.messages
        same(before, compiled, INPUT_PAIRS["farther in"])
    assert any("share memory in another way" in message for message in caplog.messages)


def test_inputs_that_nobody_writes_may_share_memory(caplog: pytest.LogCaptureFixture) -> None:
    def written_beside(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.add_(1)
        return x + y + z

    compiled = torch.compile(written_beside, backend=backend, dynamic=False)
    with caplog.at_level(logging.WARNING, "coilwork"):
        for name in ("apart", "equal", "farther in"):
            base, others = torch.arange(8.0), (torch.zeros(4), torch.zeros(4))
            found = compiled(*INPUT_PAIRS[name](base), others[0])
            torch.testing.assert_close(found, written_beside(*INPUT_PAIRS[name](base), others[1]))
    assert not caplog.messages


def test_inputs_of_no_elements() -> None:
    compiled = torch.compile(before, backend=backend, dynamic=True)
    for count in (3, 0, 2):
        x, y = torch.ones(count), torch.ones(count)
        torch.testing.assert_close(compiled(x, y), torch.full((count,), 3.0))
