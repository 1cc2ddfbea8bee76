"""Mappings that a user gives to Triton kernels: written as they say, or refused by the directive's name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, run_source
from test_shape_versions import LIKELY, kernel_of
from triton_sample_kernels import SAMPLES, sorted_rows

from coilwork_ir.conformance import CASES
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import Config, KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import format_mapping
from coilwork_ir.target import target
from coilwork_triton import TritonCodegen

H200 = target("sm_90")
CODEGEN = TritonCodegen()
# of 6 rows of 200
OPEN_CASE = next(case.text for case in CASES if case.name == "softmax")
SOFTMAX = parse_kernel(OPEN_CASE.replace("size n0 in [0, inf]\n", "").replace("n0", "200"))
IN_A_LOOP = "tile x0 by 2 loop r0 by 64 stages 3 warps 2 index i32 contract"


def emitted(kernel: Kernel, text: str, **options: object) -> KernelSource:
    return CODEGEN.emit(kernel, H200, {"mappings": {kernel.name: text}, **options})


def shown(kernel: Kernel, **options: object) -> str:
    return CODEGEN.describe(kernel, H200, options)


@pytest.mark.parametrize("name", [*SAMPLES, "open"])
def test_what_a_trace_shows_gives_the_same_kernel(name: str) -> None:
    kernel = kernel_of("softmax") if name == "open" else SAMPLES[name]
    options = {"max_configs": 1, "likely": LIKELY["softmax"] if name == "open" else ()}
    wanted = CODEGEN.emit(kernel, H200, options)
    source = emitted(kernel, shown(kernel, **options), **options)
    assert (source.text, source.grid, source.configs) == (wanted.text, wanted.grid, wanted.configs)
    assert source.guards == wanted.guards and source.args == wanted.args
    # there is nothing left to choose
    assert source.space.values == () and len(source.configs) == len(source.guards)


def test_a_kernel_runs_as_it_is_told(engine: TritonProcess) -> None:
    x = torch.randn(6, 200)
    for text in (IN_A_LOOP, "tile x0 by 4 keep r0 by 256 lanes r0 by 1 warps 1 index i64"):
        source = emitted(SOFTMAX, text)
        (config,) = source.configs
        assert dict(config.meta)["XBLOCK"] in (2, 4) and config.num_warps in (1, 2)
        assert config.fp_fusion == ("contract" in text) and ("for " in source.text) == ("loop" in text)
        got = run_source(engine, source, [x.flatten(), torch.zeros(1200)])[-1]
        torch.testing.assert_close(got.view(6, 200), x.softmax(-1))
    assert "loop r0 by 64 stages 3" in shown(SOFTMAX, mappings={"soft*": IN_A_LOOP})


def test_versions_keep_their_guards() -> None:
    kernel = kernel_of("softmax")
    options = {"likely": LIKELY["softmax"]}
    text = shown(kernel, **options)
    changed = text.replace("warps 1", "warps 2")
    assert changed != text and {c.num_warps for c in emitted(kernel, changed, **options).configs} == {2}
    for wrong in (
        "tile x0 by 3 loop r0 by 64 warps 2 index i64",
        text.replace("n1 % 16 == 0", "n1 % 8 == 0"),
        text.replace("n1 <= 64", "n1 <= 65536"),
    ):
        with pytest.raises(EmitError) as caught:
            emitted(kernel, wrong, **options)
        assert caught.value.code in ("mapping-versions", "mapping-tile")


@pytest.mark.parametrize("name", [*SAMPLES, "open", "sorted"])
def test_what_a_search_may_find_is_handed_in(name: str) -> None:
    others = {"open": kernel_of("softmax"), "sorted": sorted_rows(4096, 300, DType.F32, first=8)}
    kernel = others[name] if name in others else SAMPLES[name]
    options = {"likely": LIKELY["softmax"] if name == "open" else ()}
    source = CODEGEN.emit(kernel, H200, options)
    assert source.versions is not None
    first = [c for c in source.configs if source.version_of(c) is source.versions.versions[0]]
    least = {name: values[0] for name, values in source.space.values if "BLOCK" not in name}
    found = [*first, *(_changed(config, least) for config in first[:1])]
    for config in found:
        mapping = source.mapping_of(config)
        assert mapping is not None
        given = emitted(kernel, format_mapping(mapping), **options)
        assert given.configs[0] == config and given.guards == source.guards
        # versions for other sizes run as proposed
        assert given.configs[1:] == source.configs[len(first) :]


def _changed(config: Config, numbers: dict[str, int]) -> Config:
    meta = tuple((name, numbers.get(name, value)) for name, value in config.meta)
    return replace(config, meta=meta)


def test_products_take_other_blocks() -> None:
    kernel = SAMPLES["int8_linear"]
    text = shown(kernel)
    source = emitted(kernel, text.replace("tile x1 by 32", "tile x1 by 64").replace("stages 4", "stages 2"))
    assert dict(source.configs[0].meta) | {"XBLOCK": 64, "STAGES": 2} == dict(source.configs[0].meta)
    for old, new, code in (
        ("tile x1 by 32", "tile x1 by 1024", "mapping-tile"),
        # more than there is shared memory for
        ("tile x1 by 32", "tile x1 by 256", "mapping-tile"),
        ("stages 4", "stages 9", "mapping-loop"),
        ("unit mma", "unit fma", "mapping-unit"),
        ("    flat\n", "", "mapping-flat"),
        ("warps 4", "warps 32", "mapping-warps"),
    ):
        with pytest.raises(EmitError) as caught:
            emitted(kernel, text.replace(old, new).replace("r0 by 256", "r0 by 512"))
        assert caught.value.code == code and "int8_linear" in str(caught.value), new


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("tile r0 by 4 warps 4 index i64", "mapping-tile", "r0 is a reduction range"),
        ("tile x0 by 1 keep r0 by 128 warps 4 index i64", "mapping-keep", "200 points"),
        ("tile x0 by 3 keep r0 by 256 warps 4 index i64", "mapping-tile", "powers of two"),
        ("tile x0 by 1 keep r0 by 256 warps 64 index i64", "mapping-warps", "at most 32"),
        ("tile x0 by 1 warps 4 index i64", "mapping-loop", "which points of r0"),
        ("threads over x0", "mapping-threads", "no such thing"),
        (f"{IN_A_LOOP} hover x0", "mapping-text", "hover"),
        (IN_A_LOOP.replace("i32", "i32 promised"), "mapping-index", "nobody promises"),
        (f"mapping @a for cuda {{ when `1 <= 2`: {IN_A_LOOP} }}", "mapping-versions", "one version"),
    ],
)
def test_what_is_not_legal_is_refused_by_its_name(text: str, code: str, reason: str) -> None:
    with pytest.raises(EmitError, match=reason) as caught:
        emitted(SOFTMAX, text)
    assert caught.value.code == code and "kernel softmax" in caught.value.what
    assert caught.value.remedy


def test_an_open_mapping_is_to_be_closed_first() -> None:
    with pytest.raises(EmitError, match=r"leaves \?w open") as caught:
        emitted(SOFTMAX, IN_A_LOOP.replace("warps 2", "warps ?w in 4 8"))
    assert caught.value.code == "mapping-open" and caught.value.remedy == "choose one of 4, 8"


def test_what_is_promised_stays_promised() -> None:
    with pytest.raises(EmitError, match="is promised") as caught:
        emitted(SOFTMAX, IN_A_LOOP, batch_invariant=True)
    assert caught.value.code == "mapping-invariant"
    text = shown(SOFTMAX, batch_invariant=True)
    wanted = CODEGEN.emit(SOFTMAX, H200, {"batch_invariant": True})
    assert emitted(SOFTMAX, text, batch_invariant=True).text == wanted.text
    with pytest.raises(EmitError) as caught:
        emitted(replace(SOFTMAX, numerics="eager"), IN_A_LOOP)
    assert caught.value.code == "mapping-contract"


def test_a_mapping_for_another_kind_of_device_is_not_this_ones() -> None:
    text = "mapping @softmax for cpu { otherwise: nest store 0: threads over x0 }"
    assert emitted(SOFTMAX, text) == CODEGEN.emit(SOFTMAX, H200, {})
