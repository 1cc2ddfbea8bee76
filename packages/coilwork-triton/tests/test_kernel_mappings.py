"""What is decided of a kernel, as a mapping: it parses back, is legal, and launches the same
configuration.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from kernel_bench import WALKS
from triton_sample_kernels import SAMPLES, sorted_rows

from coilwork_ir.conformance import CASES
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import evaluate
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import (
    Choose,
    Keep,
    Loop,
    Mapped,
    Select,
    Sequential,
    Share,
    Values,
    format_mapped,
    format_mapping,
    format_versions,
    parse_mapping,
    parse_versions,
    verify_versions,
)
from coilwork_ir.target import get_target
from coilwork_triton.codegen import TritonCodegen, find_mapping
from coilwork_triton.iteration.mapping_parameters import make_mapping_config
from coilwork_triton.kernel_passes.table import LEGALIZATION
from coilwork_triton.options import TritonOptions, parse_options
from coilwork_triton.planning import close_mapping, plan_computation
from coilwork_triton.proposals.mapping_proposal import Planned

H200 = get_target("sm_90")
OPEN_SOFTMAX = """kernel @softmax fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel
  range r0: `n1` reduction
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
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
# what its sizes likely are
LIKELY: dict[str, Any] = {"likely": (16, 64)}
# a position that is a value, and is too large for 32 bits unless a guard says otherwise
WITH_A_POSITION = """t6 = index [n1*x0 + r0]
    t7 = cast(t6) : f32
    t8 = mul(t3, t7)
    t5 = div(t8, t4)"""


def mapped(kernel: Kernel, walk: str = "persistent", **options: Any) -> Mapped:
    return find_mapping(kernel, H200, parse_options({**WALKS[walk], **options}))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_mapping_is_legal_and_parses_back(name: str, walk: str) -> None:
    found = mapped(SAMPLES[name], walk)
    versions = found.versions
    assert parse_versions(format_versions(versions), found.kernel.sizes) == versions
    (version,) = versions.versions
    assert version.mapping.is_closed
    verify_versions(found.kernel, versions)


@pytest.mark.parametrize("invariant", [False, True])
def test_mappings_of_the_conformance_kit_are_legal(invariant: bool) -> None:
    refused: set[str] = set()
    for case in CASES:
        try:
            found = find_mapping(parse_kernel(case.text), H200, TritonOptions(batch_invariant=invariant))
        except EmitError as error:
            refused.add(error.code)
            continue
        verify_versions(found.kernel, found.versions)
    # rows that are walked are pieces, whose number decides the order of sums
    assert refused == {"sort-type", *(["mapping-invariant"] if invariant else [])}


def test_a_configuration_launches_as_its_mapping_says() -> None:
    count = 0
    for kernel in SAMPLES.values():
        if kernel.combined is not None:
            continue
        plan = plan_computation(LEGALIZATION.run(kernel, H200), H200, TritonOptions())
        if isinstance(plan, Planned):
            for config in plan.configs:
                closed = close_mapping(plan, config)
                assert closed.is_closed and make_mapping_config(plan.setting.kernel, closed) == config
                count += 1
    assert count > 60


def test_a_mapping_alone_gives_the_text() -> None:
    for kernel in SAMPLES.values():
        if kernel.combined is not None:
            continue
        # one candidate is one mapping, which says all that the text rests on
        source = TritonCodegen().emit(kernel, H200, {"max_configs": 1})
        closed = find_mapping(kernel, H200, TritonOptions(max_configs=1))
        text = format_mapping(closed.versions.general)
        again = TritonCodegen().emit_mapping(closed.kernel, parse_mapping(text), H200)
        assert again.configs == source.configs and again.grid == source.grid
        assert code(again.text) == code(source.text)


def code(text: str) -> str:
    """The statements of a module: comments are of the kernel before passes."""
    lines = text[text.index("import triton") :].splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


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


def test_versions_choose_the_first_whose_guard_holds() -> None:
    kernel, draw = open_softmax(), random.Random(3)
    source = TritonCodegen().emit(kernel, H200, LIKELY)
    versions = mapped(kernel, **LIKELY).versions
    assert len(versions.versions) == len(source.guards) == 4
    taken: set[int] = set()
    for _ in range(300):
        sizes = {
            "n0": draw.choice([1, 16, 40, 1 << 22, draw.randint(1, 5000)]),
            "n1": draw.choice([16, 48, 64, 63, 4096, 1 << 20, draw.randint(1, 5000)]),
        }
        distances = [0 if guard is None else evaluate(guard.distance, sizes) for guard in source.guards]
        assert min(distances) == 0
        number = distances.index(0)
        assert versions.choose(sizes) is versions.versions[number].mapping
        taken.add(number)
    assert taken == set(range(4))


def test_versions_are_legal_where_their_guards_hold() -> None:
    found = mapped(parse_kernel(OPEN_SOFTMAX.replace("t5 = div(t3, t4)", WITH_A_POSITION)), **LIKELY)
    assert any(version.mapping.find(Values) for version in found.versions.versions)
    verify_versions(found.kernel, found.versions)


def test_a_mapping_is_of_the_kernel_that_passes_leave() -> None:
    found = mapped(SAMPLES["first_of_rows"])
    text = format_mapped(SAMPLES["first_of_rows"], [found])
    assert "store %out0[c0 + 50*x0]" in text and "select r0 first 50" in text
    assert mapped(SAMPLES["softmax_persistent"]).kernel is SAMPLES["softmax_persistent"]


@pytest.mark.parametrize("name", [*SAMPLES, "open"])
def test_candidates_and_the_search_space_are_the_numbers_of_an_open_mapping(name: str) -> None:
    options: dict[str, Any] = LIKELY if name == "open" else {}
    kernel = open_softmax() if name == "open" else SAMPLES[name]
    source, found = TritonCodegen().emit(kernel, H200, options), mapped(kernel, **options)
    versions = source.versions
    assert versions is not None
    assert parse_versions(format_versions(versions), kernel.sizes) == versions
    assert [one.mapping.first_choice for one in versions.versions] == [
        one.mapping for one in found.versions.versions
    ]
    taken = set()
    for config in source.configs:
        closed = source.mapping_of(config)
        assert closed is not None and closed.is_closed
        assert parse_mapping(format_mapping(closed)) == closed
        taken.add((config.meta[-1], closed))
    # no two candidates are launched alike
    assert len(taken) == len(source.configs)


def test_what_no_search_varies_is_chosen_together() -> None:
    source = TritonCodegen().emit(sorted_rows(4096, 300, DType.F32, first=8), H200, {})
    assert source.versions is not None
    general = source.versions.general
    rows = [one for one in general.directives if isinstance(one, Choose)]
    assert len(rows) == len(source.configs) == 2
    names = {number.name for number in general.open_numbers}
    assert set(rows[0].names) == names - {name for name, _ in source.space.values}
    ways = [dict(zip(one.names, one.values, strict=True)) for one in rows]
    assert all(map(general.allows, ways))
    assert not general.allows(ways[0] | {"SORT_ROOM": ways[1]["SORT_ROOM"]})
    with pytest.raises(ValueError, match="breaks a limit"):
        general.close(ways[0] | {"SORT_ROOM": ways[1]["SORT_ROOM"]})
