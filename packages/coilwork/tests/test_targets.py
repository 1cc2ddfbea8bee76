"""From devices to targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import run_stages
from coilwork.targets import choose_targets, count_resident_bytes, describe_devices, find_target
from coilwork_frontend.calling_convention.aten_graph import list_devices
from coilwork_ir.index import as_int
from coilwork_ir.loops import Scatter
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import TARGETS
from coilwork_runtime import DeviceFacts

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
    found = find_target("cpu", CompileOptions())
    assert found.kind == "cpu"
    assert found.name in TARGETS
    assert found.multiprocessors >= 1


def test_triton_on_the_cpu_is_a_gpu_target() -> None:
    assert find_target("cpu", CompileOptions(triton_on_cpu=True)) == TARGETS["sm_90"]
    assert find_target("cpu", CompileOptions()) != TARGETS["sm_90"]


def test_a_graph_is_compiled_for_its_devices() -> None:
    choice = choose_targets(parse_graph(GRAPH.format(where="")), CompileOptions())
    assert choice.main == choice.of("cpu") == find_target("cpu", CompileOptions())
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
    here = describe_devices(list_devices(gm), CompileOptions())["key"]
    assert find_target("cpu", CompileOptions()).name in here
    assert describe_devices(list_devices(gm), CompileOptions(triton_on_cpu=True))["key"] != here


def test_code_for_cpus_needs_no_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    here = describe_devices(["cpu"], CompileOptions())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    with_more = describe_devices(["cpu"], CompileOptions())
    assert "multiprocessors=97" in with_more["key"] != here["key"]
    assert with_more["code"] == here["code"]
    assert find_target("cpu", CompileOptions()).name in here["code"]
    gpu = TARGETS["sm_90"]
    assert replace(gpu, multiprocessors=16).code_text != gpu.code_text == gpu.key_text


def largest_of_rows() -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Atomic updates of 20 MiB on a GPU that this machine need not have, and fake arguments."""
    with FakeTensorMode():
        x = torch.empty(20480, 256, device="cuda")
        index = torch.empty(20480, 256, device="cuda", dtype=torch.int64)
        return make_fx(lambda x, i: x.scatter_reduce(0, i, x, "amax"))(x, index), [x, index]


@pytest.mark.parametrize(
    ("name", "l2_mib", "stays_mib", "ranges"),
    [
        ("sm_90", 60, 24, [20480, 256]),
        # an H100's
        ("sm_90", 50, 20, [20480, 256]),
        ("sm_80", 40, 16, [4, 20480, 64]),
    ],
)
def test_what_stays_in_a_gpus_cache_is_updated_together(
    monkeypatch: pytest.MonkeyPatch, name: str, l2_mib: int, stays_mib: int, ranges: list[int]
) -> None:
    base = TARGETS[name]

    def described(index: int) -> DeviceFacts:
        assert index == 0
        return DeviceFacts(
            name=base.name, arch=base.arch, multiprocessors=base.multiprocessors, l2_bytes=l2_mib << 20
        )

    monkeypatch.setattr("coilwork.backends.describe_gpu", described)
    gm, inputs = largest_of_rows()
    options = CompileOptions(strict=True)
    assert count_resident_bytes(gm, options) == stays_mib << 20
    compiled = run_stages(open_job(gm, inputs, role="inference", options=options), fallback=())
    (scatter,) = (node for node in compiled.graph.nodes if isinstance(node, Scatter))
    assert [as_int(r.extent) for r in scatter.ranges if r.extent is not None] == ranges
    # so graphs are cached for one size of cache
    assert f"l2_bytes={l2_mib << 20}" in describe_devices(list_devices(gm), options)["key"]


def test_a_graph_without_a_gpu_has_no_cache_of_one() -> None:
    with FakeTensorMode():
        gm = make_fx(lambda x: x + 1)(torch.empty(2))
    assert count_resident_bytes(gm, CompileOptions()) is None
    assert count_resident_bytes(gm, CompileOptions(triton_on_cpu=True)) == TARGETS["sm_90"].resident_bytes
