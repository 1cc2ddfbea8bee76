"""Mappings of the memory-bound benchmarks' kernels on a GPU that is not there: legal, and all that their text
rests on.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.memory_bound.case import Make, call_of
from benchmarks.memory_bound.cases import find_case
from benchmarks.planner import Planner
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Unit, format_mapping, parse_mapping, verify_versions
from coilwork_ir.target import target
from coilwork_triton import TritonCodegen
from coilwork_triton.codegen import find_mapping
from coilwork_triton.launch.options import TritonOptions

H200 = target("sm_90")
# Rows in registers, in loops, that begin anywhere, walked, shared, in place, scanned, sorted, counted, in
# steps, of data's length.
SAMPLE = (
    "softmax 4096x8192",
    "cross-entropy fwd+bwd 8192x50304",
    "layer norm fwd+bwd 16384x4096",
    "Adafactor 8192x8192 f32",
    "cumsum 64x1048576 f32",
    "one of 64 experts with capacity, 1048576 tokens f32",
    "top 64 of 16384x4096",
    "upsample bilinear 16x64x128x128",
    "embedding fwd+bwd 50257x768, 16384 tokens",
)


def kernels_of(name: str) -> list[Kernel]:
    """What would be launched for the benchmark `name`."""
    case = find_case(name)
    inputs = case.make(Make(device=torch.device("cpu"), values=False), tiny=False)
    torch._dynamo.reset()
    planner = Planner(target="sm_90")
    call_of(case, torch.compile(case.function, backend=planner, dynamic=False), inputs)()
    return [kernel for program in planner.programs for kernel in program.kernels]


def statements(text: str) -> list[str]:
    """The lines of a module from its imports on, without comments, which show the kernel before passes."""
    return [line for line in text[text.index("import triton") :].splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name", SAMPLE)
def test_benchmark_mappings_are_legal_and_determine_the_text(name: str) -> None:
    generator = TritonCodegen()
    for kernel in kernels_of(name):
        for most in (1, 3):
            found = find_mapping(kernel, H200, TritonOptions(max_configs=most))
            verify_versions(found.kernel, found.versions)
        one = find_mapping(kernel, H200, TritonOptions(max_configs=1))
        mapping = one.versions.general
        if kernel.combined is not None or mapping.find(Unit) is not None:
            continue
        source = generator.emit(kernel, H200, {"max_configs": 1})
        again = generator.emit_mapping(one.kernel, parse_mapping(format_mapping(mapping)), H200)
        assert statements(again.text) == statements(source.text)
        assert (again.configs, again.grid) == (source.configs, source.grid)


SMALL = {
    "positions": (lambda x: x.argmax(0), torch.zeros(2, 17, 5, dtype=torch.int64)),
    "positions of bytes": (lambda x: x.argmax(0), torch.zeros(64, dtype=torch.int8)),
    "a scan and a sum": (lambda x: x.cumsum(0) + x.cos().sum(0, keepdim=True), torch.zeros(3, 129)),
    "scaled and scanned": (lambda x: (x / (x.norm(dim=0, keepdim=True) + 1)).cumsum(0), torch.zeros(16)),
}


@pytest.mark.parametrize("name", SMALL)
def test_likely_small_dynamic_sizes_are_planned(name: str) -> None:
    """Candidates may have more threads than a search would try: they are launched all the same."""
    function, x = SMALL[name]
    torch._dynamo.reset()
    planner = Planner(target="sm_90")
    torch.compile(function, backend=planner, dynamic=True)(x)
    (program,), (likely,) = planner.programs, planner.likely
    assert program.kernels and likely.keys() == {kernel.name for kernel in program.kernels}
    for kernel in program.kernels:
        for gpu in ("sm_90", "gfx942"):
            source = TritonCodegen().emit(kernel, target(gpu), {"likely": likely[kernel.name]})
            assert all(source.mapping_of(config).is_closed for config in source.configs)
