"""Mappings that a user gives to Triton kernels: written as they say, or refused by the directive's name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from contraction_kernels import Product, product_kernel
from kernel_bench import TritonProcess, run_source
from source_checks import versions_of
from test_shape_versions import LIKELY, kernel_of
from triton_sample_kernels import SAMPLES, sorted_rows

from coilwork_ir.conformance import CASES
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import Config, KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import format_mapping, parse_mapping
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

H200 = get_target("sm_90")
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


OPEN = "tile x0 by ?rows in 2 4 loop r0 by ?row in 64 128 stages 3 warps ?w in 2 4 index i32 contract"


def test_an_open_mapping_is_a_search_space(engine: TritonProcess) -> None:
    source = emitted(SOFTMAX, OPEN)
    assert source.space.values == (("XBLOCK", (2, 4)), ("R0_BLOCK", (64, 128)), ("num_warps", (2, 4)))
    (first,) = source.configs
    assert (dict(first.meta), first.num_warps) == ({"XBLOCK": 2, "R0_BLOCK": 64, "STAGES": 3}, 2)
    x = torch.randn(6, 200)
    for config in (first, _changed(first, {"XBLOCK": 4, "R0_BLOCK": 128})):
        got = run_source(engine, replace(source, configs=(config,)), [x.flatten(), torch.zeros(1200)])[-1]
        torch.testing.assert_close(got.view(6, 200), x.softmax(-1))
    # what a search may find is handed in as ever
    closed = source.mapping_of(_changed(first, {"XBLOCK": 4}))
    assert closed is not None and "XBLOCK = 4" not in format_mapping(closed)
    assert dict(emitted(SOFTMAX, format_mapping(closed)).configs[0].meta)["XBLOCK"] == 4


def test_limits_of_an_open_mapping_are_over_parameters() -> None:
    source = emitted(SOFTMAX, f"{OPEN} limit `rows*row` at most `256`")
    found = [(repr(a), repr(b)) for a, b in source.space.limits]
    assert ("R0_BLOCK*XBLOCK", "256") in found
    # the generator's own searches have more: no more threads than elements
    assert len(found) > 1
    tied = emitted(SOFTMAX, OPEN.replace("?w in 2 4", "?rows in 2 4"))
    assert "choose XBLOCK, num_warps as 4, 4" in format_mapping(versions_of(tied).general)
    assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in tied.configs] == [(2, 2), (4, 4)]
    assert [name for name, _ in tied.space.values] == ["R0_BLOCK"]


@pytest.mark.parametrize("name", [*SAMPLES, "open", "sorted"])
def test_what_a_search_may_choose_is_handed_in_open(name: str) -> None:
    others = {"open": kernel_of("softmax"), "sorted": sorted_rows(4096, 300, DType.F32, first=8)}
    kernel = others[name] if name in others else SAMPLES[name]
    options = {"likely": LIKELY["softmax"] if name == "open" else ()}
    source = CODEGEN.emit(kernel, H200, options)
    assert source.versions is not None
    given = emitted(kernel, format_mapping(source.versions.versions[0].mapping), **options)
    assert (given.text, given.grid, given.args) == (source.text, source.grid, source.args)
    assert given.configs[0] == source.configs[0] and given.space.values == source.space.values
    assert given.guards == source.guards


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("tile x0 by 1 keep r0 by ?b in 256 128 warps 4 index i64", "mapping-keep", "200 points"),
        (OPEN.replace("?w in 2 4", "?w in 2 64"), "mapping-warps", "at most 32"),
        (OPEN.replace("?rows in 2 4", "?rows in 2 3"), "mapping-tile", "powers of two"),
        (f"{OPEN} lanes r0 by ?n in 1 4", "mapping-lanes", "no parameter"),
        (f"{OPEN} limit `rows` at most `1`", "mapping-limit", "nothing is left"),
        (f"{OPEN} limit `others` at most `1`", "mapping-limit", "no open number"),
        (f"{OPEN} choose rows as 8", "mapping-choose", "never 8"),
    ],
)
def test_an_open_mapping_is_refused_by_name_where_it_is_not_legal(text: str, code: str, reason: str) -> None:
    with pytest.raises(EmitError, match=reason) as caught:
        emitted(SOFTMAX, text)
    assert caught.value.code == code and "kernel softmax" in str(caught.value)


def test_each_choice_of_an_open_mapping_is_judged() -> None:
    """Of rows in lanes of their own a program has several points."""
    text = shown(SAMPLES["reflected"], max_configs=1)
    block = re.search(r"tile .* by (\d+) padded", text)
    assert block is not None
    opened = text.replace(f"by {block[1]} padded", f"by ?n in {block[1]} 1 padded")
    with pytest.raises(EmitError, match=r"with XBLOCK = 1") as caught:
        emitted(SAMPLES["reflected"], opened)
    assert caught.value.code == "mapping-tile"
    # no search tries it either
    assert 1 not in dict(CODEGEN.emit(SAMPLES["reflected"], H200, {}).space.values)["XBLOCK"]


def test_a_search_tries_the_first_version_alone() -> None:
    kernel, options = kernel_of("softmax"), {"likely": LIKELY["softmax"]}
    text = shown(kernel, **options)
    first, rest = text.split("warps 1", 1)
    opened = emitted(kernel, f"{first}warps ?w in 1 2{rest}", **options)
    assert ("num_warps", (1, 2)) in opened.space.values and len(opened.guards) == 4
    *_, last = text.rsplit("warps", 1)
    with pytest.raises(EmitError, match="close the others") as caught:
        emitted(kernel, f"{text[: -len(last)]} ?w in 4 8{last[2:]}", **options)
    assert caught.value.code == "mapping-open"


def test_products_are_searched_as_they_are_told(engine: TritonProcess) -> None:
    kernel = product_kernel(Product(m=40, n=40, k=40, left=DType.F16, right=DType.F16, batch=2))
    text = shown(kernel, max_configs=1)
    assert "tile x2 by 64" in text and "stages 3" in text
    opened = text.replace("tile x2 by 64", "tile x2 by ?n in 64 16").replace("stages 3", "stages ?s in 1 2")
    source = emitted(kernel, opened)
    assert source.space.values == (("XBLOCK", (16, 64)), ("STAGES", (1, 2)))
    left, right = torch.randn(2, 40, 40).half(), torch.randn(2, 40, 40).half()
    for meta in ({}, {"XBLOCK": 16}):
        one = replace(source, configs=(_changed(source.configs[0], meta),))
        got = run_source(engine, one, [left.flatten(), right.flatten(), torch.zeros(3200).half()])[-1]
        torch.testing.assert_close(got.view(2, 40, 40), left @ right, rtol=1e-2, atol=1e-2)
    for new, code in (
        ("tile x2 by ?n in 64 8", "mapping-tile"),
        ("tile x2 by ?n in 64 48", "mapping-tile"),
        ("tile x2, x1 by 64", "mapping-tile"),
        ("tile x2 by ?n in 64 128 limit `n` at most `32`", "mapping-limit"),
    ):
        with pytest.raises(EmitError) as caught:
            emitted(kernel, text.replace("tile x2 by 64", new))
        assert caught.value.code == code and "product" in str(caught.value), new


def test_how_much_is_said_decides_the_text() -> None:
    """Blocks of 16 divide 48 columns, and need no mask; if 64 may be chosen, there is one."""
    kernel = product_kernel(Product(m=64, n=48, k=64, left=DType.F16, right=DType.F16))
    text = shown(kernel, max_configs=1)
    whole, masked = (emitted(kernel, text.replace("tile x2 by 64", f"tile x2 by {n}")) for n in ("16", "64"))
    either = emitted(kernel, text.replace("tile x2 by 64", "tile x2 by ?n in 16 64"))
    assert "x2 < 48" not in whole.text
    assert "x2 < 48" in masked.text and "x2 < 48" in either.text
    closed = versions_of(either).general.close({"XBLOCK": 16})
    assert CODEGEN.emit_mapping(kernel, closed, H200).text == whole.text
    assert CODEGEN.emit_mapping(kernel, versions_of(either).general, H200).text == either.text


def test_a_combined_kernel_is_written_as_its_mapping_says() -> None:
    kernel = SAMPLES["together"]
    source = CODEGEN.emit(kernel, H200, {"max_configs": 1})
    mapping = versions_of(source).general.first_choice
    again = CODEGEN.emit_mapping(kernel, mapping, H200)
    assert (again.text, again.grid) == (source.text, source.grid)
    block = dict(source.configs[0].meta)["XBLOCK"]
    opened = format_mapping(mapping).replace(f"by {block}", f"by ?n in {block} {2 * block}", 1)
    assert "tl.cdiv" in CODEGEN.emit_mapping(kernel, parse_mapping(opened), H200).text
    with pytest.raises(EmitError) as caught:
        emitted(kernel, opened.replace("warps 4", "warps 64"))
    assert caught.value.code == "mapping-warps"


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
