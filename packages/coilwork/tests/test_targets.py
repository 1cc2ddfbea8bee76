"""From devices to targets."""

from __future__ import annotations

import torch

from coilwork.options import CompileOptions
from coilwork.targets import choose_targets, target_of_device, targets_text
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import TARGETS

GRAPH = """
graph @g {{
  input %x: f32[8]{where}
  %y: f32[8] = pointwise [i0: 8] {{
    t0 = load %x[i0] : f32
    yield t0
  }}
  return (%y)
}}
"""


def test_the_cpu_is_described_by_what_it_is() -> None:
    found = target_of_device("cpu", CompileOptions())
    assert found.kind == "cpu"
    assert found.name in TARGETS
    assert found.multiprocessors >= 1


def test_triton_on_the_cpu_is_a_gpu_target() -> None:
    assert target_of_device("cpu", CompileOptions(triton_on_cpu=True)) == TARGETS["sm_90"]
    assert target_of_device("cpu", CompileOptions()) != TARGETS["sm_90"]


def test_a_graph_is_compiled_for_its_devices() -> None:
    choice = choose_targets(parse_graph(GRAPH.format(where="")), CompileOptions())
    assert choice.main == choice.of("cpu") == target_of_device("cpu", CompileOptions())
    assert choice.of("cuda:7") == choice.main


def test_a_graph_without_tensors_is_for_the_cpu() -> None:
    graph = parse_graph("graph @g {\n  symbol s0 in [1, inf]\n  input size `s0`\n  return (`s0`)\n}\n")
    assert choose_targets(graph, CompileOptions()).main.kind == "cpu"


def test_the_cache_key_describes_the_devices_of_a_graph() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    gm = torch.fx.symbolic_trace(Sum())
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(2)
    here = targets_text(gm, CompileOptions())
    assert target_of_device("cpu", CompileOptions()).name in here
    assert targets_text(gm, CompileOptions(triton_on_cpu=True)) != here
