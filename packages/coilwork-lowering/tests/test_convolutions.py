"""Biases of convolutions: generated code on accelerators, part of the call on CPUs."""

from __future__ import annotations

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from coilwork_ir.buffers import Buffer
from coilwork_ir.loops import Extern, Graph, Pointwise
from coilwork_ir.loops.parsing import parse_graph
from coilwork_ir.loops.printing import format_graph
from coilwork_ir.scalar import Load, postorder
from coilwork_lowering import Lowered

SHAPES = {
    1: ((2, 3, 17), (5, 3, 3)),
    2: ((2, 3, 9, 11), (5, 3, 3, 3)),
    3: ((2, 3, 5, 6, 7), (5, 3, 2, 2, 2)),
}


FUNCTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def convolved(
    device: str, dims: int, dtype: torch.dtype, *, batched: bool = True, bias: bool = True
) -> Lowered:
    shape, kernel = SHAPES[dims]
    convolution = FUNCTIONS[dims]
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(shape if batched else shape[1:], device=device, dtype=dtype)
        weight = torch.empty(kernel, device=device, dtype=dtype)
        given = torch.empty(kernel[0], device=device, dtype=dtype)
        if bias:
            return trace_and_lower(lambda x, w, b: convolution(x, w, b).relu(), (image, weight, given))
        return trace_and_lower(lambda x, w: convolution(x, w).relu(), (image, weight))


def bias_argument(graph: Graph) -> object:
    (call,) = [node for node in graph.nodes if isinstance(node, Extern)]
    return call.args[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_on_an_accelerator_the_bias_is_added_by_generated_code(dims: int, dtype: torch.dtype) -> None:
    graph = convolved("cuda", dims, dtype).graph
    assert externs(graph) == ["aten.convolution.default"]
    assert bias_argument(graph) is None
    given = graph.inputs[2]
    assert isinstance(given, Buffer)
    loads = [n for node in graph.nodes if isinstance(node, Pointwise) for n in postorder((node.body,))]
    assert given.name in {n.buffer for n in loads if isinstance(n, Load)}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_sum_is_the_convolution_with_its_bias(dims: int, batched: bool) -> None:
    lowered = convolved("cuda", dims, torch.float32, batched=batched)
    shape, kernel = SHAPES[dims]
    image, weight, bias = (
        torch.randn(shape if batched else shape[1:]),
        torch.randn(kernel),
        torch.randn(kernel[0]),
    )
    here = parse_graph(format_graph(lowered.graph).replace("cuda:0", "cpu"))
    (found,) = loop_evaluator.run(here, lowered.constants, [image, weight, bias])
    torch.testing.assert_close(found, FUNCTIONS[dims](image, weight, bias).relu())


def test_a_cpu_adds_it_inside_the_convolution() -> None:
    graph = convolved("cpu", 2, torch.float32).graph
    assert bias_argument(graph) is not None


def test_without_a_bias_nothing_is_added() -> None:
    graph = convolved("cuda", 2, torch.float32, bias=False).graph
    assert bias_argument(graph) is None
    assert len([n for n in graph.nodes if isinstance(n, Pointwise)]) == 1
