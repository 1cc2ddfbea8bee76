"""Several computations of one kind in one launch: results, wide accesses, and how programs are shared out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_bench import TARGETS, TritonProcess, compile_source, corners, run_source
from triton_sample_kernels import together

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, evaluate, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

TYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}


def emitted(kernel: Kernel, **options: object) -> KernelSource:
    verify_kernel(kernel)
    return TritonCodegen().emit(kernel, get_target("sm_90"), options)


def check(engine: TritonProcess, kernel: Kernel, sizes: dict[str, int], **options: object) -> None:
    """The engine's results are those of the reference interpreter."""
    generator = torch.Generator().manual_seed(5)
    spans = [evaluate(a.span, sizes) for a in kernel.args]
    tensors = [
        torch.randn(span, generator=generator).to(TYPES[a.dtype])
        for a, span in zip(kernel.args, spans, strict=True)
    ]
    wanted = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, wanted, sizes)
    values = [sizes[s.name] for s in kernel.sizes]
    got = run_source(engine, emitted(kernel, **options), tensors, values)
    for arg, found in zip(kernel.args, got, strict=True):
        torch.testing.assert_close(found.cpu(), wanted[arg.name], msg=arg.name)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("counts", [[7], [1, 300, 2], [64, 64, 64, 64, 1], [5] * 33])
def test_members_of_known_sizes(engine: TritonProcess, counts: list[int], dtype: DType) -> None:
    check(engine, together(counts, dtype), {})


@pytest.mark.parametrize("unit", [1, 16])
def test_members_without_elements(engine: TritonProcess, unit: int) -> None:
    check(engine, together([0, 3, 0, 0, 80, 0], unit=unit), {})


@pytest.mark.parametrize("values", [(3, 5), (0, 1), (200, 0), (0, 0)])
def test_members_of_sizes_known_at_the_call(engine: TritonProcess, values: tuple[int, int]) -> None:
    one, two = (symbol(f"m_n{k}", lo=0, hi=1 << 20) for k in range(2))
    counts: list[int | Expr] = [4, one, two, one, 9]
    sizes = dict(zip(("m_n0", "m_n1"), values, strict=True))
    check(engine, together(counts), sizes)
    check(engine, together(counts, unit=1), sizes, index_dtype="i64")


@pytest.mark.parametrize("ones", [("m_n1",), ("m_n0", "m_n1")])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.slow
def test_a_size_of_one_taken_for_a_constant(
    compiler: TritonProcess, name: str, ones: tuple[str, ...]
) -> None:
    one, two = (symbol(f"m_n{k}", lo=0, hi=1 << 20) for k in range(2))
    for width in ("auto", "i64"):
        source = TritonCodegen().emit(together([4, one, two, 9]), get_target(name), {"index_dtype": width})
        assert compile_source(compiler, source, name, ones=ones)


def test_one_element_each(engine: TritonProcess) -> None:
    check(engine, together([1] * 161, unit=1), {})


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.slow
def test_accesses_stay_16_bytes_wide(compiler: TritonProcess, name: str) -> None:
    source = TritonCodegen().emit(together([1, 4096, 3, 65536, 64]), get_target(name), {})
    text = compile_source(compiler, source, name)
    wide = ("ld.global.v4", "st.global.v4") if name == "sm_90" else ("load_dwordx4", "store_dwordx4")
    assert all(word in text for word in wide)


@pytest.mark.slow
def test_pointers_are_fetched_by_those_who_need_them(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(together([65536] * 60), get_target("sm_90"), {})
    text = compile_source(compiler, source, "sm_90")
    # a body that is inlined is joined with the others, behind 120 fetches
    assert ".func" in text
    before = text.partition(".entry")[2].partition("bra")[0]
    assert before.count("ld.param") < 20


@pytest.mark.slow
def test_many_members_are_found_by_halving(compiler: TritonProcess) -> None:
    text = compile_source(compiler, emitted(together([1] * 161, unit=1)), "sm_90")
    branches = [line for line in text.splitlines() if "bra" in line]
    # about one per member in all, of which a program takes eight
    assert len(branches) < 2 * 161


def test_grids_are_sums_and_there_is_one_configuration() -> None:
    source = emitted(together([1, 64, 3]))
    block = dict(source.configs[0].meta)["XBLOCK"]
    assert len(source.configs) == 1
    assert [as_int(g) for g in source.grid] == [sum(-(-16 * n // block) for n in (1, 64, 3))]


def large(counts: list[int], **options: object) -> KernelSource:
    """As of a launch that is large, on a device of one multiprocessor."""
    kernel = together(counts)
    verify_kernel(kernel)
    return TritonCodegen().emit(kernel, replace(get_target("sm_90"), multiprocessors=1), options)


def test_large_launches_that_update_little_try_several_configurations() -> None:
    counts = [1, 1024, 3, 65536]
    source = large(counts)
    assert [(dict(c.meta)["XBLOCK"], c.num_warps) for c in source.configs] == [(2048, 4), (1024, 4)]
    for config in source.configs:
        block = dict(config.meta)["XBLOCK"]
        assert [evaluate(g, {"XBLOCK": block}) for g in source.grid] == [
            sum(-(-16 * n // block) for n in counts)
        ]
    assert len(large(counts, max_configs=1).configs) == len(large([1, 3]).configs) == 1
    # copies of a gigabyte
    assert len(emitted(together([1 << 20] * 16)).configs) == 1
    unknown = together([symbol("m_n0", lo=1 << 18, hi=1 << 20), 1 << 18])
    assert len(emitted(unknown).configs) == 1


def test_every_configuration_finds_its_members(engine: TritonProcess) -> None:
    counts = [1, 1024, 0, 300, 7, 256]
    kernel, source = together(counts), large(counts)
    tensors = [torch.randn(evaluate(a.span, {})) for a in kernel.args]
    wanted = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, wanted, {})
    tried = [*source.configs, *corners(source)]
    for number in range(len(tried)):
        got = run_source(engine, replace(source, configs=tuple(tried)), tensors, config=number)
        for arg, found in zip(kernel.args, got, strict=True):
            torch.testing.assert_close(found.cpu(), wanted[arg.name], msg=arg.name)


@pytest.mark.slow
def test_firsts_that_follow_from_blocks_are_constants(compiler: TritonProcess) -> None:
    source = large([1, 1024, 3, 65536])
    for number in range(len(source.configs)):
        entry = compile_source(compiler, source, "sm_90", number).partition(".entry")[2]
        compared = [line for line in entry.partition("ret;")[0].splitlines() if "setp" in line]
        assert compared and all(line.rstrip(";").split()[-1].isdigit() for line in compared)


def test_blocks_follow_from_all_points() -> None:
    few, many = (dict(emitted(together([64] * count)).configs[0].meta)["XBLOCK"] for count in (2, 500))
    assert few == 128 and many == 2048


def test_names_of_the_body_are_not_those_of_the_kernel() -> None:
    kernel = together([symbol("n0", lo=0, hi=8)])
    with pytest.raises(EmitError, match="n0"):
        TritonCodegen().emit(kernel, get_target("sm_90"), {})
