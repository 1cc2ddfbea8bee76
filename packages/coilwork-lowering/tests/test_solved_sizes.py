"""Symbols of sizes, told by other sizes that they are part of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import sympy
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import PythonMod

from coilwork_ir.buffers import Buffer
from coilwork_lowering import lower
from coilwork_lowering.building.size_table import solve_term

U, V, N, WHOLE = sympy.symbols("u v n whole", integer=True)


@pytest.mark.parametrize(
    ("size", "unknown"),
    [
        (U + 3, [U]),
        (9 - U, [U]),
        (2 * U, [U]),
        (7 - 2 * U, [U]),
        (6 * U + 18 + N, [U]),
        (U + V + 1, [U, V]),
        (3 * U + V, [U, V]),
        (6 - PythonMod(U + 3, 4), [U]),
        (N * U + 2, [U]),
    ],
    ids=str,
)
def test_what_a_size_tells(size: sympy.Expr, unknown: Sequence[sympy.Symbol]) -> None:
    """It is nothing but the new symbol, and multiples of the term that it tells have the values that they
    had.
    """
    found = solve_term(size, WHOLE, frozenset(unknown))
    assert size.xreplace(found) == WHOLE
    for numbers in itertools.product((0, 1, 5, 12), repeat=3):
        values = dict(zip((U, V, N), map(sympy.Integer, numbers), strict=True))
        known = values | {WHOLE: size.xreplace(values)}
        for term, told in found.items():
            assert told.xreplace(known) == term.xreplace(values)


def test_symbols_of_an_input() -> None:
    """`u` is a number from data that no input is; a tensor has two more columns than it says."""
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.sin.default, (given,))
    graph.output((made,))
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        count = env.create_unbacked_symint()
        torch._check(count >= 0)
        given.meta["val"] = made.meta["val"] = torch.empty(6, 2 * count + 2)
    lowered = lower(torch.fx.GraphModule(torch.nn.Module(), graph), name="graph").graph
    (symbol,) = lowered.symbols
    operand = lowered.inputs[0]
    assert isinstance(operand, Buffer) and operand.shape[1] is symbol
