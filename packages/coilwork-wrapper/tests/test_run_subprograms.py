"""Subprograms in Python and FX: one function or submodule for all calls, which may be replaced."""

from __future__ import annotations

from typing import Any

import torch
from wrapper_programs import check_agreement, fx_module, module_text, program_of

from coilwork_ir.program.regions import outline_regions
from coilwork_ir.program.text import format_program


def layer(source: str, result: str) -> str:
    return f"""region nested (%{source}) sizes (s0 in [1, inf]) leaves (%{result}) {{
    alloc %{result}: f32[s0, 4]
    launch @relu_add (%{source}, %{source}, %{result}) sizes [4 * s0]
  }}"""


TEXT = f"""program @layers {{
  symbol s0 in [1, inf]
  input %x: f32[s0, 4]
  RELU_ADD
  bind s0 in [1, inf] size %x 0
  {layer("x", "a")}
  {layer("a", "b")}
  free (%a)
  region partition @mine (%b) sizes (s0 in [1, inf]) leaves (%c) {{
    extern "aten.neg.default" (%b) defines (%c: f32[s0, 4])
  }}
  free (%b)
  return (%c, %x)
}}
"""


def test_they_compute_what_their_regions_do() -> None:
    check_agreement(TEXT, [torch.randn(3, 4)], [torch.randn(1, 4)])
    check_agreement(TEXT, [torch.randn(3, 4)], change=outline_regions)


def test_regions_beside_branches_have_modules_of_their_own() -> None:
    """Bodies of regions are called `nested` and `nested_1`, whatever branches are called."""
    text = """program @both {
  symbol s0 in [1, inf]
  input %flag: bool[]
  input %x: f32[s0, 4]
  bind s0 in [1, inf] size %x 0
  cond %flag (%x) defines (%a: f32[s0, 4]) {
    program @then { input %i: f32[s0, 4]  return (%i) }
    program @otherwise {
      input %i: f32[s0, 4]
      extern "aten.neg.default" (%i) defines (%r: f32[s0, 4])
      return (%r)
    }
  }
  region nested (%a) sizes (s0 in [1, inf]) leaves (%b) {
    extern "aten.neg.default" (%a) defines (%b: f32[s0, 4])
  }
  region nested (%b) sizes (s0 in [1, inf]) leaves (%c) {
    extern "aten.sin.default" (%b) defines (%c: f32[s0, 4])
  }
  return (%c)
}
"""
    for flag in (True, False):
        check_agreement(text, [torch.tensor(flag), torch.randn(3, 4)], change=outline_regions)


def test_a_body_is_written_once_in_a_module() -> None:
    text = module_text(TEXT)
    assert text.count("Nested program") == 2
    assert text.count("relu_add(") == 1


def test_a_body_is_one_submodule_which_may_be_replaced() -> None:
    graph = fx_module(TEXT)
    called = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert called.count("nested") == 2 and called.count("mine") == 1

    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor, size: int) -> tuple[Any, ...]:
            return (2 * x,)

    x = torch.randn(3, 4)
    (before, _) = graph(x)
    graph.mine = Doubled()
    torch.testing.assert_close(graph(x)[0], -2 * before)


def test_a_body_that_only_writes_its_operand_is_not_dropped() -> None:
    text = """program @writes {
  input %x: f32[4]
  DOUBLE
  alloc %y: f32[4]
  copy %x to %y
  region partition @mine (%y) {
    launch @double (%y) sizes [4]
  }
  return (%y)
}
"""
    check_agreement(text, [torch.randn(4)])
    graph = fx_module(text)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    x = torch.randn(4)
    torch.testing.assert_close(graph(x)[0], 2 * x)


def test_outlined_text_is_read_back_by_emitters() -> None:
    outlined = outline_regions(program_of(TEXT))
    assert module_text(format_program(outlined)).count("relu_add(") == 1
