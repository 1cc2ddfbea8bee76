"""What is particular to graph modules: parameters, source lines, what may be removed, other
runtimes, errors.
"""

from __future__ import annotations

import pytest
import torch
from wrapper_programs import fx_module, program_of

from coilwork_ir.errors import EmitError
from coilwork_wrapper import LayoutError, emit_fx

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
