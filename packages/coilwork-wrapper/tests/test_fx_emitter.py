"""What is particular to graph modules: parameters, source lines, what may be removed, other
runtimes, errors.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from wrapper_programs import fx_module, program_of

from coilwork_ir.errors import EmitError
from coilwork_wrapper import LayoutError, emit_fx
from coilwork_wrapper.kernel_operators import define_operator

LAUNCH = """program @relu {
  input %x: f32[4]
  DOUBLE
  check %x
  launch @double (%x) sizes [4] loc("mul" "aten.mul.Tensor" "model.py":3 "x *= 2" "")
  return (%x)
}"""


def test_parameters_have_valid_distinct_names() -> None:
    text = """program @p {
      symbol lambda in [0, inf]
      input size `lambda`
      input %size_0: f32[lambda]
      input size `lambda`
      input size `2`
      return (%size_0)
    }"""
    x = torch.ones(3)
    assert fx_module(text)(3, x, 3, 2)[0] is x


def test_launches_remember_their_source_lines() -> None:
    graph = fx_module(LAUNCH)
    (launch,) = [node for node in graph.graph.nodes if "double" in node.name]
    assert launch.meta["stack_trace"] == "model.py:3  x *= 2  [mul]"
    assert type(graph).__name__ == "relu"


def test_launches_and_checks_are_never_dead_code() -> None:
    graph = fx_module(LAUNCH)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert graph(torch.ones(4))[0].tolist() == [2.0] * 4
    with pytest.raises(LayoutError, match="input x"):
        graph(torch.ones(5))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(EmitError, match="no launcher for kernel double"):
        emit_fx(program_of(LAUNCH), {})
    with pytest.raises(EmitError, match="no tensor for constant 'k'"):
        emit_fx(program_of('program @p {\n constant "k" %w: f32[4]\n return (%w)\n}'), {})


def test_memory_in_flight_lives_until_it_is_freed() -> None:
    """The operand has no user behind the call that starts; the operator has."""
    graph = fx_module(
        """program @p {
          input %x: f32[4]
          extern "aten.neg.default" (%x) defines (%y: f32[4])
          extern "aten.exp.default" (%y) defines (%g: f32[4]) in_flight (%y, %g) until (%g)
          extern "aten.sin.default" (%x) defines (%u: f32[4])
          extern "aten.abs.default" (%g) defines (_) waits (%g)
          free (%y)
          return (%g, %u)
        }"""
    )
    assert graph.code.index("aten.abs") < graph.code.index("hold(")
    assert [value.tolist() for value in graph(torch.zeros(4))] == [[1.0] * 4, [0.0] * 4]


def test_memory_of_a_graph_lives_as_long_as_its_last_use() -> None:
    graph = fx_module(
        """program @p {
          input %x: f32[4]
          extern "aten.neg.default" (%x) defines (%y: f32[4])
          extern "aten.exp.default" (%y) defines (%z: f32[4])
          free (%y)
          extern "aten.sin.default" (%z) defines (%w: f32[4])
          return (%w)
        }"""
    )
    before_sin = graph.code.partition("aten.sin")[0]
    assert "neg_default = ensure_layout = None" in before_sin or "ensure_layout = None" in before_sin


POOLED = """program @pooled {
  symbol n in [1, inf]
  input %x: f32[n, 2]
  RELU_ADD
  bind n in [1, inf] size %x 0
  check %x aligned
  pool %pool `8*n + 64` "cpu"
  carve %a: f32[2*n] of %pool at `64`
  launch @relu_add (%x, %x, %a) sizes [2*n]
  extern "aten.neg.default" (%a) defines (%b: f32[2*n])
  free (%a, %pool)
  reuse %c: i16[2, 2*n] of %b
  extern "aten.fill_.Scalar" (%c, 3) defines (_)
  return (%c)
}"""


def test_graphs_are_of_nodes_that_passes_know_and_can_be_traced_again() -> None:
    graph = fx_module(POOLED)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.empty_strided in targets and torch.ops.aten.view.dtype in targets
    (launch,) = [target for target in targets if "coilwork_launches" in str(target)]
    schema = launch._schema
    assert schema.is_mutable and [a.name for a in schema.arguments if a.is_write] == ["t2"]
    x = torch.randn(3, 2)
    traced = make_fx(graph, tracing_mode="symbolic")(x)
    assert launch in [node.target for node in traced.graph.nodes]
    for call in (graph, traced, copy.deepcopy(graph), torch.fx.Interpreter(graph).run):
        assert torch.equal(call(x)[0], torch.full((2, 6), 3, dtype=torch.int16))


def test_equal_code_has_one_operator_in_every_process() -> None:
    program = program_of(LAUNCH)
    (kernel,) = program.kernels
    one, same, other = (define_operator(kernel, print, code) for code in (b"1", b"1", b"2"))
    assert one is same and one is not other
    assert str(one) == "coilwork_launches.double_e5d56d650ee6.default"
    assert define_operator(kernel, print) is not define_operator(kernel, print)
