"""Sizes as index expressions: what torch knows of a size is seen in its expression."""

from __future__ import annotations

from collections.abc import Callable

import loop_evaluator
import pytest
import sympy
import torch
from lowering_backend import Recorder
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import FloorDiv

from coilwork_ir.index import as_int, evaluate, maximum, symbol
from coilwork_ir.loops import Pointwise
from coilwork_lowering import lower
from coilwork_lowering.building.size_table import find_residue, make_bounded_symbol, write_as_multiple


def parts_that_broadcast(x: torch.Tensor) -> torch.Tensor:
    """The second part has one column, though its size is a difference."""
    first, second = x.chunk(2, 1)
    return torch.minimum(x, second) + first[:, :1]


def computed_parts_that_broadcast(x: torch.Tensor) -> torch.Tensor:
    planes = x.unsqueeze(2).expand(-1, -1, 5)
    return planes - planes.chunk(2, 1)[1].exp().clone()


@pytest.mark.parametrize("function", [parts_that_broadcast, computed_parts_that_broadcast])
def test_a_size_that_is_one_is_broadcast(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 3)
    gm = make_fx(function, tracing_mode="symbolic")(x)
    lowered = lower(gm, name="graph")
    sizes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"][:-1]
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [*map(int, sizes), x])
    torch.testing.assert_close(found, function(x))


N, M = sympy.symbols("n m", integer=True)
SIX, FOUR = sympy.Integer(6), sympy.Integer(4)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ((), (1, 0)),
        (((N, SIX),), (6, 0)),
        (((N + 2, SIX),), (6, 4)),
        (((3 - N, SIX),), (6, 3)),
        (((4 * N + 2, SIX),), (3, 1)),
        (((N, SIX), (N, FOUR)), (12, 0)),
        (((N + 3, FOUR), (N, sympy.Integer(3))), (12, 9)),
        (((2 * N + 1, FOUR),), (1, 0)),
        (((N * M, SIX), (N**2, SIX), (N, M), (M, SIX)), (1, 0)),
        (((N, SIX), (N + 1, SIX)), (6, 0)),
        (((FloorDiv(N, FloorDiv(N, 3)), SIX), (N, FOUR)), (4, 0)),
    ],
)
def test_what_is_divisible_has_a_residue(
    facts: tuple[tuple[sympy.Basic, sympy.Basic], ...], expected: tuple[int, int]
) -> None:
    """What no number fulfils, or no single symbol decides, says nothing."""
    modulus, remainder = find_residue(N, facts)
    assert (modulus, remainder) == expected
    told = [(base, divisor) for base, divisor in facts if base.free_symbols == {N}]
    for n in range(remainder, 200, modulus):
        if modulus > 1 and len(facts) == 1:
            assert all(base.subs(N, n) % divisor == 0 for base, divisor in told)


def test_a_multiple_equals_the_product_of_its_parts() -> None:
    name = make_bounded_symbol("n", 2, None, 3, 1)
    size = write_as_multiple(name, 3, 1)
    assert size == 3 * ((size + 2) // 3) - 2
    assert name.lo == 4
    assert all(evaluate(size, {"n": n}) == n for n in range(4, 40, 3))
    assert maximum((size + 2) // 3, 1) == (size + 2) // 3
    assert as_int((size - 1) % 3) == 0
    # as a bound that no multiple keeps: the size is never met
    assert make_bounded_symbol("n", 4, 5, 6, 0) == symbol("n", lo=4, hi=5)


def cut_and_merged(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (4, -1)).reshape(-1)


def test_a_size_that_is_cut_into_equal_parts_is_no_other_layout() -> None:
    """The parts put together again are the input's memory: nothing is copied."""
    recorder, x = Recorder(), torch.randn(3, 8)
    found = torch.compile(cut_and_merged, backend=recorder, dynamic=True)(x)
    assert torch.equal(found, cut_and_merged(x))
    (lowered,) = recorder.lowered
    assert not any(isinstance(node, Pointwise) for node in lowered.graph.nodes)
