"""Graphs with tensors on two devices: each kernel is emitted for its own, which nobody has to have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coilwork.compile_options import CompileOptions
from coilwork.registries import find_codegen
from coilwork.stages import lower_to_program, open_generation
from coilwork_ir.buffers import Ref
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.program import Launch, Return
from coilwork_ir.program.walk import index_buffers
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import decompositions, lower
from coilwork_tools.emit_kernels import emit_kernels
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace
from integration_tests.two_device_programs import PROGRAMS

BOTH = declare_capabilities(
    Targets(main=TARGETS["sm_90"], by_device=(("cpu", TARGETS["x86-64-avx2"]), ("cuda:0", TARGETS["sm_90"]))),
    find_codegen,
)
LANGUAGES = {"cpu": "cpp", "cuda": "triton"}


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_written_in_the_language_of_their_device(name: str, pools: bool) -> None:
    with FakeTensorMode():
        host = torch.empty(6, 8)
        there = torch.empty(6, 8, device="cuda:0")
        expected = PROGRAMS[name](host, there)
        gm = make_fx(PROGRAMS[name], decomposition_table=decompositions())(host, there)
    options = CompileOptions(verify=True, strict=True, pools=pools)
    lowered = lower(gm, name="graph")
    program = lower_to_program(lowered.graph, BOTH, options, trace=Trace(None), clock=StageClock())
    sources = emit_kernels(program, open_generation(program, BOTH, options), Trace(None))
    known = index_buffers(program)
    seen = set()
    for launch in (one for one in program.instructions if isinstance(one, Launch)):
        (device,) = {torch.device(known[argument].device).type for argument in launch.args}
        assert sources[launch.kernel].language == LANGUAGES[device]
        seen.add(device)
    assert seen == {"cpu", "cuda"}
    ending = program.instructions[-1]
    assert isinstance(ending, Return)
    returned = [known[value.name].device for value in ending.values if isinstance(value, Ref)]
    assert returned == [str(tensor.device) for tensor in expected]


def test_assertions_on_numbers_are_checked_on_the_cpu() -> None:
    def function(there: torch.Tensor) -> torch.Tensor:
        count: Any = there.sum().long().item()
        torch.ops.aten._assert_scalar.default(count / 2 >= 1.5, "a count of at least 3")
        return there * 2

    with FakeTensorMode(shape_env=ShapeEnv()):
        gm = make_fx(function)(torch.empty(6, 8, device="cuda:0"))
    options = CompileOptions(verify=True, strict=True)
    lowered = lower(gm, name="graph")
    program = lower_to_program(lowered.graph, BOTH, options, trace=Trace(None), clock=StageClock())
    sources = emit_kernels(program, open_generation(program, BOTH, options), Trace(None))
    checking = [source.language for name, source in sources.items() if "assert" in name]
    assert checking == ["cpp"]
    assert {source.language for source in sources.values()} == {"cpp", "triton"}
