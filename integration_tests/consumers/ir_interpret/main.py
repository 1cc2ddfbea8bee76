"""Use coilwork-ir by itself: read a graph from text, check it, run it, and see what a mistake looks like."""

from __future__ import annotations

import torch

from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph

RMS_NORM = """
graph @rms_norm {
  symbol s0 in [1, inf]
  input %x: f32[s0, 16]
  input %weight: f32[16]
  (%squares: f32[s0]) = reduce sum [i0: s0 | r0: 16] {
    t0 = load %x[i0, r0] : f32
    t1 = mul(t0, t0)
    yield t1
  } loc("pow" "aten.pow.Tensor_Scalar" "model.py":12 "x.pow(2).mean(-1)" "norm")
  %y: f32[s0, 16] = pointwise [i0: s0, i1: 16] {
    t0 = load %x[i0, i1] : f32
    t1 = load %squares[i0] : f32
    t2 = const 0.0625 : f32
    t3 = mul(t1, t2)
    t4 = rsqrt(t3)
    t5 = mul(t0, t4)
    t6 = load %weight[i1] : f32
    t7 = mul(t5, t6)
    yield t7
  } loc("mul" "aten.mul.Tensor" "model.py":13 "x * scale * self.weight" "norm")
  return (%y)
}
"""


def main() -> None:
    graph = parse_graph(RMS_NORM)
    verify_graph(graph)
    print("text is canonical:", format_graph(graph).strip() == RMS_NORM.strip())

    torch.manual_seed(0)
    weight = torch.randn(16)
    for rows in (1, 5, 64):  # one graph, any number of rows
        x = torch.randn(rows, 16)
        (y,) = interpret_graph(graph, [x, weight])
        expected = torch.nn.functional.rms_norm(x, (16,), weight, eps=0.0)
        print(f"{rows} rows:", torch.allclose(y, expected, atol=1e-5))

    try:
        verify_graph(parse_graph(RMS_NORM.replace("load %squares[i0]", "load %squars[i0]")))
    except VerifyError as error:
        print(error)
    try:
        parse_graph(RMS_NORM.replace("rsqrt(t3)", "rsqrt(t9)"))
    except ParseError as error:
        print(error)


main()
