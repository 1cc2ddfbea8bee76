"""Integers that a graph is given: calls of the compiled graph that no guard has looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from coilwork.backend import backend

Compiled = Callable[..., Any]
PROGRAMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a row": lambda x, i: x[i] * 2,
    "a row from the end": lambda x, i: x[-i] * 2,
    "rows from one on": lambda x, i: x[i:] * 2,
    "rows up to one": lambda x, i: x[:i].sum(0),
    "a window": lambda x, i: x.narrow(0, i, 5) + 1,
    "every so many": lambda x, i: x[i::2] * 2,
    "a row that is replaced": lambda x, i: torch.zeros(50, 4).select_scatter(x[0], 0, i),
    "a sum of rows": lambda x, i: x[i] + x[i + 1] + x[2 * i],
}
BOUNDS: dict[str, Callable[[int], bool]] = {
    "below a fraction": lambda i: i < 7.5,
    "at most a fraction": lambda i: i <= 7.5,
    "beyond a fraction, as a float": lambda i: float(i) > 1.5,
    "no fraction": lambda i: i != 2.5,
    "no more than floats hold": lambda i: -3.0e38 <= i <= 3.0e38,
    "divided": lambda i: (i + 1) / (abs(i) + 3) < 0.5,
    "multiplied with a fraction": lambda i: i * 0.25 >= 1.0,
    "its square root": lambda i: math.sqrt(abs(i) + 1) < 3,
}
WRONG = (50, 51, -51, 10**6, 10**9, -(10**9), 2**62, -(2**63), 2**63 - 1)


def compile_for_integers(function: Callable[..., Any], *given: Any) -> tuple[Compiled, list[object]]:
    """The compiled graph of `function`, without guards, and its placeholders' values."""
    found: list[tuple[Compiled, list[object]]] = []

    def keep(gm: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        compiled = backend(gm, list(examples))
        values = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        found.append((compiled, values))
        return compiled

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=True)(*given)
    return found[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_integers_that_break_the_guards_are_refused_or_right(name: str) -> None:
    x = torch.randn(50, 4)
    compiled, values = compile_for_integers(PROGRAMS[name], x, 3)

    def call(number: int) -> Tensor:
        sizes = [value for value in values if not isinstance(value, Tensor)]
        numbers = [number if size.node.hint == 3 else size.node.hint for size in sizes]
        given = iter(numbers)
        (result,) = compiled(*(x if isinstance(value, Tensor) else next(given) for value in values))
        assert isinstance(result, Tensor)
        return result

    torch.testing.assert_close(call(4), PROGRAMS[name](x, 4))
    refused = 0
    for number in WRONG:
        try:
            result = call(number)
        except (RuntimeError, IndexError, OverflowError, ValueError, TypeError):
            refused += 1
            continue
        torch.testing.assert_close(result, PROGRAMS[name](x, number))
    assert refused > len(WRONG) // 2


@pytest.mark.parametrize("name", BOUNDS)
def test_integers_are_compared_with_floats(name: str) -> None:
    def program(x: Tensor, number: int) -> Tensor:
        return x * number if BOUNDS[name](number) else x + number

    x = torch.randn(4)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", dynamic=True, options={"strict": True})
    for number in (3, 7, 8, 2, -5, 2**40):
        torch.testing.assert_close(compiled(x, number), program(x, number))


def test_the_error_says_what_the_graph_was_compiled_for() -> None:
    x = torch.randn(50, 4)
    compiled, values = compile_for_integers(PROGRAMS["a row"], x, 3)
    given = [x if isinstance(value, Tensor) else 10**9 for value in values]
    given[:-1] = [x if isinstance(value, Tensor) else value.node.hint for value in values[:-1]]
    with pytest.raises(RuntimeError, match=r"compiled for integers with s\d+ < s\d+"):
        compiled(*given)
