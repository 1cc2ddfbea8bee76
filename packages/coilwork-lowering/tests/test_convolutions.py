"""Convolutions and their gradients become nodes, on every device; what nodes can't say stays a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from coilwork_ir.buffers import Buffer
from coilwork_ir.loops import Convolution, Graph, Window
from coilwork_ir.loops.convolutions import find_bias, find_buffer
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.parser import parse_graph
from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import Lowered, LoweringOptions

_aten: Any = torch.ops.aten
CASES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a row": (functional.conv1d, (2, 3, 17), (5, 3, 3), {"padding": 1}),
    "square": (functional.conv2d, (2, 3, 9, 11), (5, 3, 3, 3), {"stride": 2}),
    "volume": (functional.conv3d, (2, 3, 5, 6, 7), (5, 3, 2, 2, 2), {"dilation": (1, 2, 1)}),
    "groups": (functional.conv2d, (2, 6, 9, 11), (4, 3, 3, 5), {"groups": 2, "padding": (0, 2)}),
    "single channels": (functional.conv2d, (2, 6, 9, 11), (12, 1, 3, 3), {"groups": 6, "padding": "same"}),
    "transposed": (
        functional.conv_transpose2d,
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        {"stride": 2, "output_padding": (1, 0)},
    ),
    "transposed, groups": (functional.conv_transpose1d, (2, 4, 7), (4, 3, 3), {"groups": 2, "padding": 1}),
    "no batch": (functional.conv2d, (3, 9, 11), (5, 3, 3, 3), {}),
}


def convolved(
    name: str, device: str = "cpu", dtype: torch.dtype = torch.float32, *, bias: bool = True
) -> Lowered:
    function, shape, kernel, settings = CASES[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        image, weight = (torch.empty(one, device=device, dtype=dtype) for one in (shape, kernel))
        given = (torch.empty(channels_of(name), device=device, dtype=dtype),) if bias else ()
        return trace_and_lower(
            lambda x, w, *b: function(x, w, *b, **settings).relu(), (image, weight, *given)
        )


def channels_of(name: str) -> int:
    function, _, kernel, settings = CASES[name]
    return kernel[1] * settings.get("groups", 1) if "transpose" in function.__name__ else kernel[0]


def node_of(graph: Graph) -> Convolution:
    (node,) = [one for one in graph.nodes if isinstance(one, Convolution)]
    verify_graph(graph)
    return node


def on_cpu(graph: Graph) -> Graph:
    return parse_graph(format_graph(graph).replace("cuda:0", "cpu"))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_a_node_on_every_device(name: str, bias: bool) -> None:
    function, shape, kernel, settings = CASES[name]
    lowered = convolved(name, bias=bias)
    node = node_of(lowered.graph)
    assert not externs(lowered.graph) and bool(find_bias(node)) == bias
    elsewhere = convolved(name, "cuda", bias=bias).graph
    assert on_cpu(elsewhere) == lowered.graph, "lowering asks no device"
    inputs = [torch.randn(shape), torch.randn(kernel)] + [torch.randn(channels_of(name))] * bias
    expected = function(*inputs, **settings).relu()
    for run in (loop_evaluator.run(lowered.graph, {}, inputs), interpret_graph(lowered.graph, inputs)):
        torch.testing.assert_close(run[0], expected)


def test_the_numbers_are_the_operators() -> None:
    node = node_of(convolved("transposed").graph)
    assert node.transposed and node.groups == 1
    assert node.windows == (Window(stride=2, extra=1), Window(stride=2))
    (first, second) = node_of(convolved("groups").graph).windows
    assert (first.padding, second.padding) == (0, 2)


@pytest.mark.parametrize("name", [name for name in CASES if name != "no batch"])
def test_gradients_are_one_node(name: str) -> None:
    function, shape, kernel, settings = CASES[name]
    leaves = [torch.randn(size).double() for size in (shape, kernel, (channels_of(name),))]

    def gradients(*given: Tensor) -> tuple[Tensor, ...]:
        held = [one.detach().requires_grad_() for one in given[:3]]
        return torch.autograd.grad(function(*held, **settings), held, given[3])

    gradient = torch.randn_like(function(*leaves, **settings))
    lowered = trace_and_lower(gradients, (*leaves, gradient))
    (node,) = [one for one in lowered.graph.nodes if isinstance(one, Convolution) and one.gradient]
    verify_graph(lowered.graph)
    assert not externs(lowered.graph) and len(node.outputs) == 3 and None not in node.outputs
    inputs = [*leaves, gradient]
    expected = list(gradients(*inputs))
    torch.testing.assert_close(loop_evaluator.run(lowered.graph, lowered.constants, inputs), expected)
    torch.testing.assert_close(interpret_graph(lowered.graph, inputs, lowered.constants), expected)


def test_gradients_that_nobody_wants_are_none() -> None:
    x, w, g = torch.randn(2, 3, 9), torch.randn(4, 3, 3), torch.randn(2, 4, 7)

    def of_weight(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        found = _aten.convolution_backward(g, x, w, [4], [1], [0], [1], False, [0], 1, [False, True, False])
        return found[1]

    node = node_of(trace_and_lower(of_weight, (x, w, g)).graph)
    assert [output is None for output in node.outputs] == [True, False, True]


def test_operands_lie_as_in_eager_mode() -> None:
    """Strides of libraries' results depend on those of operands, which are laid out as eager's are."""
    x, w = torch.randn(1, 3, 9, 9), torch.randn(4, 3, 3, 3)
    lowered = trace_and_lower(lambda x, w: functional.conv2d(x.flip(2).transpose(2, 3), w), (x, w))
    node = node_of(lowered.graph)
    buffers = {b.name: b for one in lowered.graph.nodes for b in _outputs(one)}
    name = find_buffer(node.value)
    assert name is not None and [s.value for s in buffers[name].strides] == [243, 81, 1, 9]
    torch.testing.assert_close(
        loop_evaluator.run(lowered.graph, {}, [x, w])[0], functional.conv2d(x.flip(2).transpose(2, 3), w)
    )


def _outputs(node: Any) -> tuple[Buffer, ...]:
    return (node.output,) if hasattr(node, "output") else tuple(b for b in node.outputs if b is not None)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        (torch.complex64, (2, 3, 9), "complex numbers"),
        (torch.int64, (2, 3, 9), "integers"),
        (torch.float32, (0, 3, 9), "no images"),
    ],
)
def test_what_no_node_says_is_a_call(dtype: torch.dtype, shape: tuple[int, ...], reason: str) -> None:
    image, weight = torch.empty(shape, dtype=dtype), torch.empty(4, 3, 3, dtype=dtype)
    lowered = trace_and_lower(
        lambda x, w: _aten.convolution(x, w, None, [1], [0], [1], False, [0], 1), (image, weight)
    )
    assert not any(isinstance(node, Convolution) for node in lowered.graph.nodes), reason


def test_an_operator_that_is_left_to_aten_is_a_call() -> None:
    image, weight = torch.empty(2, 3, 9), torch.empty(4, 3, 3)
    options = LoweringOptions(fallback=("aten.convolution",))
    lowered = trace_and_lower(functional.conv1d, (image, weight), options=options)
    assert externs(lowered.graph) == ["aten.convolution.default"]


@pytest.mark.parametrize("name", ["a row", "square", "groups", "transposed"])
def test_sizes_that_the_run_knows(name: str) -> None:
    function, shape, kernel, settings = CASES[name]
    inputs = (torch.randn(shape), torch.randn(kernel), torch.randn(channels_of(name)))
    lowered = trace_and_lower(lambda *given: function(*given, **settings), inputs, mode="symbolic")
    assert any(isinstance(node, Convolution) for node in lowered.graph.nodes)
    verify_graph(lowered.graph)
    torch.testing.assert_close(
        interpret_graph(lowered.graph, list(inputs), lowered.constants), [function(*inputs, **settings)]
    )
