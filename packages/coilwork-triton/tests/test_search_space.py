"""What a kernel's text is right for beyond its candidates: declared, compiled at its corners, and
run there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from kernel_bench import (
    TritonProcess,
    allowed,
    along,
    arg,
    compile_source,
    corners,
    elements_of_a_thread,
    everything,
    run_source,
    value_of,
)
from triton_sample_kernels import SAMPLES, sample_options

from coilwork_ir.conformance import CASES, check_codegen, format_failures
from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.launch.sorts import MOST_WARPS

# Kernels of each walk, with sizes that blocks do not divide and such that change from call to call.
RUN = (
    "broadcast",
    "transpose",
    "row-sum",
    "column-max",
    "softmax",
    "softmax-online",
    "layer-norm",
    "argmax",
    "scan",
    "update-in-place",
    "rows-and-columns",
    "store-box",
)
# Plain sums. Of integers, and below 2^24, no addition is rounded: however a configuration groups them, they
# are the same to the bit.
SUMS = ("row-sum", "scan")


def emitted(
    kernel: Kernel, name: str = "sm_90", options: Mapping[str, object] = MappingProxyType({})
) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target(name), options)


def copied(extent: int) -> Kernel:
    x0 = along("x0", extent)
    return Kernel(
        name="copied",
        ranges=(x0,),
        args=(arg("in0", DType.F32, extent), arg("out0", DType.F32, extent)),
        stores=(Store(buffer="out0", index=x0.symbol, value=load("in0", [x0.symbol], DType.F32)),),
    )


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_candidates_are_in_the_space(sample: str, name: str) -> None:
    source = emitted(SAMPLES[sample], name, sample_options(sample))
    assert source.space.values
    assert all(allowed(source, config) for config in source.configs)
    limit = get_target(name).max_threads_per_block // get_target(name).warp_size
    assert max(value_of(config, "num_warps") for config in everything(source)) <= limit


@pytest.mark.parametrize("sample", ["sorted_rows", "sorted_short_rows", "first_of_rows"])
def test_sorts_have_no_more_warps_than_triton_tells_apart(sample: str) -> None:
    assert max(config.num_warps for config in everything(emitted(SAMPLES[sample]))) <= MOST_WARPS


def test_members_of_a_launch_keep_their_programs() -> None:
    source = emitted(SAMPLES["together"])
    assert [name for name, _ in source.space.values] == ["num_warps"]
    assert len({c.meta for c in everything(source)}) == 1 < len(everything(source))


def test_a_tile_without_a_mask_is_divided() -> None:
    source = emitted(copied(3 * 2**20))
    widths = dict(source.space.values)["XBLOCK"]
    assert "xmask" not in source.text
    assert widths[0] == 1 and all(3 * 2**20 % width == 0 for width in widths)
    masked = emitted(copied(3 * 2**20 + 1))
    assert "xmask" in masked.text and 8192 in dict(masked.space.values)["XBLOCK"]


def test_short_extents_and_threads_without_work_end_the_space() -> None:
    source = emitted(copied(200))
    assert max(dict(source.space.values)["XBLOCK"]) == 256
    for config in everything(source):
        assert config.num_warps == 1 or 32 * config.num_warps <= dict(config.meta)["XBLOCK"]


@pytest.mark.parametrize("sample", ["reductions_across", "reductions_persistent", "logcumsumexp_reverse"])
def test_threads_keep_registers_to_compute_with(sample: str) -> None:
    blocks = {"XBLOCK", "R0_BLOCK"}
    for config in everything(emitted(SAMPLES[sample], options=sample_options(sample))):
        elements = math.prod(value for name, value in config.meta if name in blocks)
        assert elements <= 64 * 32 * config.num_warps


def test_rows_in_registers_stay_whole() -> None:
    source = emitted(SAMPLES["softmax_persistent"])
    assert "R0_BLOCK" not in dict(source.space.values)
    assert {dict(c.meta)["R0_BLOCK"] for c in everything(source)} == {8192}


def test_sequential_rows_have_stages_and_looped_ones_blocks() -> None:
    sequential = dict(emitted(SAMPLES["layer_norm_backward_short"]).space.values)
    assert sequential["STAGES"] == (1, 2, 3, 4) and "WBLOCK" in sequential and "R0_BLOCK" not in sequential
    looped = emitted(SAMPLES["softmax_looped"])
    assert "R0_BLOCK" in dict(looped.space.values)
    assert dict(looped.space.values)["STAGES"] == (1, 2, 3, 4)
    assert {dict(c.meta)["STAGES"] for c in looped.configs} == {1}
    # the text counts on so many neighbours per thread
    assert all(dict(c.meta)["R0_BLOCK"] >= 128 * c.num_warps for c in everything(looped))


def test_a_loop_loads_ahead_of_stores_to_its_own_elements_only() -> None:
    assert "STAGES" in dict(emitted(scaled_rows(50304, "in0", "out0")).space.values)
    in_place = scaled_rows(50304, "io0", "io0")
    assert "STAGES" in dict(emitted(in_place).space.values)
    hinted = replace(scaled_rows(50304, "in0", "out0"), aliasing=(("out0", "in0"),))
    assert "STAGES" in dict(emitted(hinted).space.values)
    (store,) = in_place.stores
    moved = replace(in_place, stores=(replace(store, index=store.index + 1),))
    assert "R0_BLOCK" in dict(emitted(moved).space.values)
    assert "STAGES" not in dict(emitted(moved).space.values)


def scaled_rows(length: int, source: str, result: str) -> Kernel:
    """Rows over their sums."""
    x0, r0 = along("x0", 64), along("r0", length, "reduction")
    index = x0.symbol * length + r0.symbol
    value = load(source, [index], DType.F32)
    total = reduce("sum", [value], [r0.symbol])
    names = dict.fromkeys((source, result))
    return Kernel(
        name="scaled_rows",
        ranges=(x0, r0),
        args=tuple(arg(name, DType.F32, 64 * length) for name in names),
        stores=(Store(buffer=result, index=index, value=op("div", value, total)),),
    )


@pytest.mark.parametrize("sample", ["odd_linear", "softmax_looped", "together"])
def test_corners_have_both_extremes_of_every_parameter(sample: str) -> None:
    source = emitted(SAMPLES[sample], options=sample_options(sample))
    for name, _ in source.space.values:
        known, found = ([value_of(one, name) for one in of] for of in (everything(source), corners(source)))
        assert (min(found), max(found)) == (min(known), max(known)), name


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_corners_compile(compiler: TritonProcess, sample: str) -> None:
    """Blocks, warps and stages are Triton's own part of the way. Machine code is made of the shortest corner
    alone, and of the best guess in `test_samples_compile`.
    """
    source = emitted(SAMPLES[sample], options=sample_options(sample))
    found = corners(source)
    assert len(found) > 1
    shortest = min(found, key=elements_of_a_thread)
    for config in found:
        one = replace(source, configs=(config,))
        assert compile_source(compiler, one, "sm_90", machine_code=config is shortest)


@pytest.mark.parametrize("name", RUN)
def test_corners_are_right(engine: TritonProcess, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    tolerance: float | None = None
    if name in SUMS:
        case, tolerance = replace(case, fills=(("in0", "index"),), limit=100), 0.0
    if engine.interprets:
        # short rows: each program takes the interpreter as long as all of its elements
        case = replace(case, sizes=case.sizes[:2])

    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        tensors = [args[a.name] for a in source.args if a.role != "size"]
        given = [sizes[a.name] for a in source.args if a.role == "size"]
        tried = corners(source)
        other = replace(source, configs=tuple(tried))
        results = [
            run_source(engine, other, [t.clone() for t in tensors], given, number)
            for number in range(len(tried))
        ]
        for found in results:
            for one, first in zip(found, results[0], strict=True):
                torch.testing.assert_close(one, first, equal_nan=True, rtol=tolerance, atol=tolerance)
        for mine, changed in zip(tensors, results[0], strict=True):
            mine.copy_(changed)

    results = check_codegen(TritonCodegen(), get_target("sm_90"), run, cases=(case,), numerics="fast")
    assert not format_failures(results), format_failures(results)
