"""What is decided of a kernel, as a mapping: it parses back, is legal, and launches the same configuration."""

from __future__ import annotations

import random

import pytest
from kernel_bench import WALKS
from triton_sample_kernels import SAMPLES

from coilwork_ir.index import evaluate
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import (
    Keep,
    Lanes,
    Loop,
    Mapped,
    Runs,
    Select,
    Sequential,
    Share,
    Values,
    assume,
    find_fault,
    format_mapped,
    format_versions,
    parse_versions,
)
from coilwork_ir.target import target
from coilwork_triton.codegen import TritonCodegen, find_mapping
from coilwork_triton.kernel_passes.table import LEGALIZATION
from coilwork_triton.launch.options import TritonOptions, parse_options
from coilwork_triton.mapping import config_of, map_kernel
from coilwork_triton.planning import plan_computation
from coilwork_triton.proposals.refinements import Planned

H200 = target("sm_90")
OPEN_SOFTMAX = """kernel @softmax fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel x 0.0
  range r0: `n1` reduction r 1.0
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  likely (16, 64)
  body {
    t0 = load %in0[n1*x0 + r0] : f32
    t1 = reduce online_softmax 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce online_softmax 1 (t0) over (r0)
    t5 = div(t3, t4)
    store %out0[n1*x0 + r0] = t5
  }
}
"""


def mapped(kernel: Kernel, walk: str = "persistent") -> Mapped:
    return find_mapping(kernel, H200, parse_options(WALKS[walk]))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_mapping_is_legal_and_parses_back(name: str, walk: str) -> None:
    found = mapped(SAMPLES[name], walk)
    versions = found.versions
    assert parse_versions(format_versions(versions), found.kernel.sizes) == versions
    (version,) = versions.versions
    assert version.mapping.is_closed
    fault = find_fault(found.kernel, version.mapping)
    # of rows that programs share, pieces are no blocks by the rules of what lies within a block
    shared = version.mapping.find(Share) is not None
    assert fault is None or (shared and isinstance(fault[0], Lanes | Runs)), fault


def test_a_configuration_launches_as_its_mapping_says() -> None:
    count = 0
    for kernel in SAMPLES.values():
        if kernel.combined is not None:
            continue
        plan = plan_computation(LEGALIZATION.run(kernel, H200), H200, TritonOptions())
        if isinstance(plan, Planned):
            for config in plan.shape.configs:
                assert config_of(map_kernel(plan.setting, plan.shape, config), plan.shape) == config
                count += 1
    assert count > 60


def test_how_rows_are_walked_is_read_from_the_mapping() -> None:
    def found(name: str, *kinds: type) -> list[bool]:
        general = mapped(SAMPLES[name]).versions.general
        return [general.find(kind) is not None for kind in kinds]

    assert found("softmax_persistent", Keep, Loop) == [True, False]
    assert found("softmax_looped", Keep, Loop) == [False, True]
    assert found("layer_norm_backward", Keep, Sequential) == [True, True]
    assert found("first_of_rows", Keep, Select) == [True, True]
    assert found("cumsum_shared", Share, Loop) == [True, False]


def open_softmax() -> Kernel:
    return parse_kernel(OPEN_SOFTMAX)


def test_versions_choose_the_form_that_the_departure_chooses() -> None:
    kernel, draw = open_softmax(), random.Random(3)
    source = TritonCodegen().emit(kernel, H200, {})
    versions = mapped(kernel).versions
    assert source.departure is not None and len(versions.versions) == 4
    taken: set[int] = set()
    for _ in range(300):
        sizes = {
            "n0": draw.choice([1, 16, 40, 1 << 22, draw.randint(1, 5000)]),
            "n1": draw.choice([16, 48, 64, 63, 4096, 1 << 20, draw.randint(1, 5000)]),
        }
        number = evaluate(source.departure, sizes)
        assert versions.choose(sizes) is versions.versions[number].mapping
        taken.add(number)
    assert taken == set(range(4))


def test_versions_are_legal_where_their_guards_hold() -> None:
    found = mapped(open_softmax())
    for version in found.versions.versions:
        kernel = found.kernel if version.guard is None else assume(found.kernel, version.guard)
        fault = find_fault(kernel, version.mapping)
        # the guard promises that these fit, of spans; the rule knows bounds of single sizes
        assert fault is None or (isinstance(fault[0], Values) and version.guard is not None), fault


def test_a_mapping_is_of_the_kernel_that_passes_leave() -> None:
    found = mapped(SAMPLES["first_of_rows"])
    text = format_mapped(SAMPLES["first_of_rows"], [found])
    assert "store %out0[c0 + 50*x0]" in text and "select r0 first 50" in text
    assert mapped(SAMPLES["softmax_persistent"]).kernel is SAMPLES["softmax_persistent"]
