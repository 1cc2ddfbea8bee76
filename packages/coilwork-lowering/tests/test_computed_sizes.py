"""Sizes that go through floating point are computed by the program, as torch computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import SymbolOutput
from coilwork_ir.loops import Extern
from coilwork_lowering import lower

# 0.29 * 100 is 28.999999999999996: no quotient of integers says that
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "created": lambda x: x.new_ones(torch.sym_int(x.shape[0] * 0.29)) + 1,
    "a difference": lambda x: x.new_ones(x.shape[0] - torch.sym_int(x.shape[0] * 0.29)),
    "returned": lambda x: (x + 1, torch.sym_int(x.shape[0] * 0.29)),
    "a call of ATen": lambda x: torch.ops.aten.rand_like(x.new_ones(torch.sym_int(x.shape[0] / 0.7))) * 0,
    "a power": lambda x: x.new_ones(2 ** (x.shape[0] // 25)) + 2 ** (x.shape[0] // 25),
    "bits": lambda x: (
        x.new_ones((x.shape[0] & 12) + 3) * ((x.shape[0] | 3) ^ 5) + (x.shape[0] << 2) + (x.shape[0] >> 1)
    ),
    "nested": lambda x: x.new_ones(torch.sym_int(torch.sym_int(x.shape[0] * 0.7) * 0.29)),
}


def of_an_angle(name: str) -> Callable[..., Any]:
    function = getattr(torch, f"_sym_{name}")

    def made(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = function(x.shape[0] / 128)
        return x.new_ones(torch.sym_int(found * 3 + 4)), x.new_ones(3, dtype=torch.float64) * found

    return made


for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"):
    FUNCTIONS[name] = of_an_angle(name)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [100, 7])
def test_functions_of_computed_sizes_are_those_of_eager(name: str, size: int) -> None:
    function = FUNCTIONS[name]
    gm = make_fx(function, tracing_mode="symbolic")(torch.randn(50))
    lowered = lower(gm, name="graph")
    x = torch.randn(size)
    found = loop_evaluator.run(lowered.graph, lowered.constants, [*_sizes(gm, x), x])
    expected = function(x)
    for got, wanted in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        if isinstance(wanted, torch.Tensor):
            assert got.shape == wanted.shape and torch.equal(got, wanted)
        else:
            assert got == wanted


def _sizes(gm: torch.fx.GraphModule, x: torch.Tensor) -> list[int]:
    """Values of the integer inputs that come before the tensor."""
    given = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [x.shape[0]] * (len(given) - 1)


def test_each_size_is_computed_once() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.new_ones(torch.sym_int(x.shape[0] * 0.29))
        return first + 1, torch.ops.aten.sort(first)[0], first * 2

    lowered = trace_and_lower(function, (torch.randn(50),), mode="symbolic")
    assert externs(lowered.graph).count("aten._local_scalar_dense.default") == 1
    read = next(node for node in lowered.graph.nodes if isinstance(node, Extern))
    assert isinstance(read.outputs[0], SymbolOutput)
    assert read.outputs[0].symbol.name == "computed0"
