"""A failing `torch._check` of numbers from data shows the user's message, as in eager mode. Before torch 2.13
it only fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

Compile = Callable[..., Callable[..., Any]]


@pytest.fixture(autouse=True)
def numbers_are_captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


def of_one_number(x: Tensor) -> Tensor:
    n = x[0].item()
    torch._check(n > 3, lambda: 'not "more" than three:\n\tä')
    torch._check(n < 9, lambda: "nine or more")
    return x + n


def of_several(x: Tensor) -> Tensor:
    n, m = x.tolist()
    torch._check(n <= m, lambda: "not sorted")
    torch._check(n + m > 3, lambda: "too small in sum")
    torch._check(m != 7, lambda: "seven")
    torch._check(n == 4, lambda: "not four")
    return x + n


def of_all(x: Tensor) -> Tensor:
    torch._check_tensor_all(x > 3, lambda: "not all")
    return x + 1


def of_a_size(x: Tensor) -> Tensor:
    n = int(x[0].item())
    torch._check(n >= 2, lambda: "fewer than two")
    return torch.ones(n)


def of_later_numbers(x: Tensor) -> Tensor:
    n = int(x[0].item())
    y = torch.ones(n)
    m = int(x[1].item())
    torch._check(m > n, lambda: "not ascending")
    torch._check(n > 1, lambda: "one or none")
    return y + m


PROGRAMS = (of_one_number, of_several, of_all, of_a_size, of_later_numbers)
WORDS = (
    *('not "more" than three:\n\tä', "nine or more", "not sorted", "too small in sum", "seven", "not four"),
    *("not all", "fewer than two", "not ascending", "one or none"),
)
# Dynamo leaves a check out that it has made an assertion of, before a back end sees the graph
DROPS_WORDS = torch.__version__ < "2.13"
WITHOUT_WORDS = ("Runtime assertion failed for expression ", "a number from data must be ")
VALUES = ([4, 5], [1, 2], [9, 9], [4, 7], [0, 0], [2, 1], [1, 5], [-1, 3])


@pytest.mark.parametrize("function", PROGRAMS)
def test_in_the_users_words(function: Callable[[Tensor], Tensor], strictly: Compile) -> None:
    compiled = strictly(function)
    compared = 0
    for values in VALUES:
        x = torch.tensor(values)
        refusal = error_of(function, x)
        if refusal is None:
            torch.testing.assert_close(compiled(x), function(x))
        elif "negative dimension" not in refusal:
            # where several checks fail, another one's words are as good
            found = error_of(compiled, x) or ""
            assert found.startswith(WORDS + WITHOUT_WORDS if DROPS_WORDS else WORDS), (values, found)
            compared += 1
    assert compared > 2


def error_of(function: Callable[[Tensor], Tensor], x: Tensor) -> str | None:
    try:
        function(x)
    except RuntimeError as refused:
        return str(refused)
    return None


def of_a_count(x: Tensor) -> Tensor:
    found = x.nonzero()
    torch._check(found.shape[0] < 3, lambda: "too many")
    torch._check(found.size(0) * 2 > 2, lambda: "too few")
    return found + 1


def of_all_that_there_are(x: Tensor) -> Tensor:
    """One size is left, which torch puts in the place of the number."""
    found = x.nonzero()
    torch._check(found.shape[0] > 3, lambda: "too few")
    return found + 1


@pytest.mark.parametrize("function", [of_a_count, of_all_that_there_are])
def test_counts_in_the_users_words(function: Callable[[Tensor], Tensor], strictly: Compile) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = strictly(function)
        for values in ([1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 1, 1]):
            x = torch.tensor(values)
            refusal = error_of(function, x)
            found = error_of(compiled, x)
            assert found == refusal or (DROPS_WORDS and refusal and (found or "").startswith(WITHOUT_WORDS))
            if refusal is None:
                assert torch.equal(compiled(x), function(x))


def test_a_check_without_words_is_torchs(strictly: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        found = x.nonzero()
        torch._check(found.shape[0] > 3)
        return found + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = strictly(function)
        assert torch.equal(compiled(torch.ones(4)), function(torch.ones(4)))
        assert (error_of(compiled, torch.tensor([1, 0, 1, 1])) or "").startswith("Runtime assertion failed")
