"""Divisions and rounding as torch's kernels for accelerators compute them, which its kernels for CPUs do
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from aot_compilers import tensors_of
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.parser import parse_graph
from coilwork_ir.loops.text import format_graph
from coilwork_lowering import LoweringOptions, lower


def lowered(
    function: Callable[..., Tensor], *dtypes: torch.dtype, device: str, numerics: Numerics = "fast"
) -> Graph:
    """The graph of `function` of vectors of 20 elements on `device`, of a name for CPUs, where it can be
    interpreted.
    """
    with FakeTensorMode():
        gm = make_fx(function)(*(torch.empty(20, dtype=dtype, device=device) for dtype in dtypes))
    options = LoweringOptions(numerics=numerics)
    return parse_graph(format_graph(lower(gm, name="graph", options=options).graph).replace("cuda:0", "cpu"))


def interpreted(graph: Graph, inputs: list[Tensor]) -> list[Tensor]:
    return tensors_of(interpret_graph(graph, inputs))


@pytest.mark.parametrize("number", [3.0, 7.0, -0.3])
def test_floats_are_multiplied_by_the_reciprocal_of_a_number(number: float) -> None:
    x = torch.randn(20, dtype=torch.float32)
    eager = lowered(lambda x: x / number, torch.float32, device="cuda", numerics="eager")
    assert torch.equal(interpreted(eager, [x])[0], x * (1 / torch.tensor(number)))
    levels: tuple[tuple[str, Numerics], ...] = (("cuda", "strict"), ("cpu", "eager"))
    for device, numerics in levels:
        divided = lowered(lambda x: x / number, torch.float32, device=device, numerics=numerics)
        assert torch.equal(interpreted(divided, [x])[0], x / number)


def test_by_a_tensor_they_are_divided() -> None:
    x, y = torch.randn(20), torch.rand(20) + 1
    divided = lowered(lambda x, y: x / y, torch.float32, torch.float32, device="cuda", numerics="eager")
    assert torch.equal(interpreted(divided, [x, y])[0], x / y)


def test_halves_are_divided_and_rounded_down_in_f32() -> None:
    x, y = torch.full((20,), 65504.0, dtype=torch.float16), torch.full((20,), -7.25, dtype=torch.float16)
    for device, wanted in (("cuda", -9040.0), ("cpu", -9032.0)):
        graph = lowered(torch.floor_divide, torch.float16, torch.float16, device=device, numerics="eager")
        assert interpreted(graph, [x, y])[0].tolist() == [wanted] * 20


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_nothing_is_left_of_a_zero_of_either_sign(device: str) -> None:
    x = torch.tensor([-0.0, 0.0, -1.5, 2.25, -3.0] * 4)
    graph = lowered(torch.frac, torch.float32, device=device)
    found = interpreted(graph, [x])[0].tolist()[:5]
    assert found == [0.0, 0.0, -0.5, 0.25, 0.0]
    assert [math.copysign(1, v) for v in found] == [1, 1, -1, 1, 1]
