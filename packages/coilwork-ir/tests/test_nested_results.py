"""Results of external calls that lie in lists, and results of types that only operators read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coilwork_ir.errors import InterpretError
from coilwork_ir.loops import Extern
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import ExternCall
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program

GRAPH = """\
graph @g {
  input %x: f32[5, 2]
  extern "aten.histogramdd.default" (%x, [3, 4]) aten defines (%h: f32[3, 4], _, %b: f32[5]) tuple paths \
([0], [1, 0], [1, 1])
  return (%h, %b)
}
"""
PROGRAM = """\
program @p {
  input %x: f32[5, 2]
  extern "aten.histogramdd.default" (%x, [3, 4]) defines (%h: f32[3, 4], _, %b: f32[5]) tuple paths ([0], \
[1, 0], [1, 1])
  return (%h, %b)
}
"""
QUANTIZED = """\
program @p {
  input %x: f32[2, 3]
  extern "aten.quantize_per_tensor.default" (%x, 0.5, 3, type qu8) defines (%q: qu8[2, 3])
  extern "aten.t.default" (%q) defines (%t: qu8[3, 2])
  view %u: qu8[3, 2] of %t offset `0`
  extern "aten.dequantize.self" (%u) defines (%y: f32[3, 2])
  return (%y)
}
"""


def histogram(x: Tensor) -> tuple[Tensor, Tensor]:
    counts, edges = torch.histogramdd(x, [3, 4])
    return counts, edges[1]


def test_of_a_graph() -> None:
    graph = parse_graph(GRAPH)
    assert format_graph(graph) == GRAPH
    verify_graph(graph)
    (call,) = graph.nodes
    assert isinstance(call, Extern) and call.paths == ((0,), (1, 0), (1, 1))
    x = torch.randn(5, 2)
    torch.testing.assert_close(tuple(interpret_graph(graph, [x])), histogram(x))


def test_of_a_program() -> None:
    program = parse_program(PROGRAM)
    assert format_program(program) == PROGRAM
    verify_program(program)
    call = program.instructions[0]
    assert isinstance(call, ExternCall) and call.paths == ((0,), (1, 0), (1, 1))
    x = torch.randn(5, 2)
    torch.testing.assert_close(tuple(interpret_program(program, [x])), histogram(x))


@pytest.mark.parametrize("path", ["[1, 2]", "[0, 0]", "[2]"])
def test_a_place_where_nothing_is(path: str) -> None:
    program = parse_program(PROGRAM.replace("[1, 1])", f"{path})").replace("paths ([0]", "paths ([3]"))
    with pytest.raises(InterpretError, match="returned nothing at"):
        interpret_program(program, [torch.randn(5, 2)])


def test_quantised_tensors_stay_as_their_operators_make_them() -> None:
    program = parse_program(QUANTIZED)
    assert format_program(program) == QUANTIZED
    verify_program(program)
    x = torch.randn(2, 3)
    expected = torch.quantize_per_tensor(x, 0.5, 3, torch.quint8).t().dequantize()
    torch.testing.assert_close(interpret_program(program, [x]), [expected], rtol=0, atol=0)
