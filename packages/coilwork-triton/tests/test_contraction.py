"""Sums of products on matrix units: in Triton's interpreter and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from contraction_kernels import Product, gated_products, int8_linear, product_kernel, product_over_two_ranges
from kernel_bench import TARGETS, TritonProcess, compile_source, corners, grid_of, run_source
from source_checks import prefix_with, versions_of

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.mapping import Specialise, Tile, parse_mapping
from coilwork_ir.target import Target, get_target
from coilwork_triton import TritonCodegen

F32, F16, BF16, I8 = DType.F32, DType.F16, DType.BF16, DType.I8


def tensors_of(kernel: Kernel) -> list[torch.Tensor]:
    """Small numbers for every input; outputs start as nan."""
    generator = torch.Generator().manual_seed(len(kernel.args))
    found = []
    for argument in kernel.args:
        dtype, count = torch_dtype(argument.dtype), int(repr(argument.span))
        if argument.role == "out":
            found.append(torch.full((count,), float("nan"), dtype=dtype))
        elif argument.dtype is I8:
            found.append(torch.randint(-100, 100, (count,), generator=generator, dtype=dtype))
        else:
            found.append(torch.randn(count, generator=generator).to(dtype))
    return found


def agree(process: TritonProcess, kernel: Kernel, on: Target | None = None, **options: Any) -> None:
    """Fail unless every candidate does what the kernel means."""
    verify_kernel(kernel)
    source = TritonCodegen().emit(kernel, on or get_target("sm_90"), options)
    assert "tl.dot" in source.text
    agree_as_written(process, kernel, source)


def agree_as_written(process: TritonProcess, kernel: Kernel, source: KernelSource) -> None:
    """Fail unless every candidate of `source` does what the kernel means."""
    tensors = tensors_of(kernel)
    expected = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, expected, ())
    for number in range(len(source.configs)):
        found = run_source(process, source, [t.clone() for t in tensors], (), number)
        for (name, wanted), got in zip(expected.items(), found, strict=True):
            rtol, atol = (1e-2, 1e-2) if wanted.dtype.itemsize == 2 else (1e-4, 1e-3)
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol, msg=prefix_with(name))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("m, n, k", [(16, 32, 64), (5, 33, 17), (70, 65, 50), (2, 2, 2)])
def test_products_of_any_size_are_right(engine: TritonProcess, m: int, n: int, k: int, dtype: DType) -> None:
    agree(engine, product_kernel(Product(m=m, n=n, k=k, left=dtype, right=dtype)))


@pytest.mark.parametrize("left_by_rows", [True, False])
@pytest.mark.parametrize("right_by_rows", [True, False])
def test_products_of_transposed_factors_are_right(
    engine: TritonProcess, left_by_rows: bool, right_by_rows: bool
) -> None:
    shape = Product(
        m=40, n=27, k=35, left=F16, right=F16, left_by_rows=left_by_rows, right_by_rows=right_by_rows
    )
    agree(engine, product_kernel(shape))


@pytest.mark.parametrize("batch", [1, 3])
def test_each_product_of_a_batch_is_right(engine: TritonProcess, batch: int) -> None:
    agree(engine, product_kernel(Product(m=20, n=17, k=19, batch=batch, left=F32, right=F32)))


@pytest.mark.parametrize("k", [64, 50])
@pytest.mark.parametrize("half", [F16, BF16])
def test_weights_of_8_bits_are_widened_in_the_kernel(engine: TritonProcess, k: int, half: DType) -> None:
    agree(engine, int8_linear(m=16, n=40, k=k, half=half))


@pytest.mark.parametrize("m, k", [(20, 37), (90, 64)])
def test_what_becomes_of_factors_and_sums(engine: TritonProcess, m: int, k: int) -> None:
    """A factor that is not zero where it reads zeros, a bias per column, an activation, a residual."""
    agree(engine, product_kernel(Product(m=m, n=33, k=k, left=F32, right=F32, left_exp=True, epilogue=True)))


def test_a_sum_over_two_ranges(engine: TritonProcess) -> None:
    agree(engine, product_over_two_ranges())


@pytest.mark.parametrize("m, n, k", [(20, 33, 40), (300, 280, 48)])
def test_two_products_of_one_factor(engine: TritonProcess, m: int, n: int, k: int) -> None:
    """The factor that they share is loaded once, and blocks of both fit the registers."""
    kernel = gated_products(m=m, n=n, k=k, half=F16)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert source.text.count("tl.load(in0") + source.text.count("in0_blocks0.load") == 1
    for config in source.configs:
        meta = dict(config.meta)
        assert 2 * meta["YBLOCK"] * meta["XBLOCK"] <= 128 * 32 * config.num_warps
    agree(engine, kernel)


@pytest.mark.parametrize("left_by_rows, right_by_rows", [(True, False), (False, True)])
def test_blocks_that_the_copy_engine_brings(
    engine: TritonProcess, left_by_rows: bool, right_by_rows: bool
) -> None:
    """Sides that no block divides, and programs that go through several tiles each."""
    shape = Product(
        m=136, n=152, k=72, left=BF16, right=BF16, left_by_rows=left_by_rows, right_by_rows=right_by_rows
    )
    kernel = product_kernel(replace(shape, epilogue=True))
    few = replace(get_target("sm_90"), multiprocessors=2)
    source = TritonCodegen().emit(kernel, few, {})
    assert source.text.count("make_tensor_descriptor") == 2 and "tl.load(in0" not in source.text
    assert repr(source.grid[0]) == "2"
    agree(engine, kernel, on=few)
    older = TritonCodegen().emit(kernel, get_target("sm_80"), {}).text
    assert "make_tensor_descriptor" not in older and "num_programs" not in older


ROLES = (
    "tile x1 by {columns} tile x0 by {rows} flat resident 2 order x0, x1 grouped 8 loop r0 by 64 stages 3 "
    "unit mma fetch in0, in1, in2 specialise 2 consumers {pingpong} warps 4 index i32"
)


@pytest.mark.parametrize(
    ("rows", "columns", "pingpong"), [(128, 128, ""), (64, 64, "pingpong"), (128, 64, "pingpong")]
)
def test_warps_with_roles(engine: TritonProcess, rows: int, columns: int, pingpong: str) -> None:
    """Integration tests have Triton's interpreter run the same texts, and more."""
    kernel = gated_products(m=712, n=520, k=456, half=F16)
    mapping = parse_mapping(ROLES.format(rows=rows, columns=columns, pingpong=pingpong))
    source = TritonCodegen().emit_mapping(kernel, mapping, get_target("sm_90"))
    assert "gl.warp_specialize" in source.text and "tl.dot" not in source.text
    # a variable that began as what it gets in the loop would be a constant to Triton
    assert "last = 0\n" in source.text
    if not engine.interprets:
        agree_as_written(engine, kernel, source)


@pytest.mark.parametrize(
    ("m", "n", "k", "wanted"),
    [
        (4096, 11008, 4096, "tile x1 by 128 tile x0 by 128 specialise 2 consumers"),
        (4096, 4096, 256, ""),
        (16, 4096, 4096, ""),
    ],
)
def test_roles_are_proposed_where_arithmetic_bounds(m: int, n: int, k: int, wanted: str) -> None:
    source = TritonCodegen().emit(gated_products(m=m, n=n, k=k, half=BF16), get_target("sm_90"), {})
    directives = versions_of(source).versions[0].mapping.directives
    shown = " ".join(one.text for one in directives if isinstance(one, Tile | Specialise))
    assert shown == wanted if wanted else "specialise" not in shown


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("stages 3", "stages 1"), "mapping-loop"),
        (("x0 by 128", "x0 by 64"), "mapping-tile"),
        (("x1 by 64", "x1 by 32"), "mapping-tile"),
        (("2 consumers", "3 consumers"), "mapping-specialise"),
        (("warps 4", "warps 8"), "mapping-warps"),
        (("x1 by 64", "x1 by 256"), "mapping-tile"),
    ],
)
def test_roles_without_text_are_refused_by_name(change: tuple[str, str], code: str) -> None:
    kernel = gated_products(m=712, n=520, k=456, half=F16)
    text = ROLES.format(rows=128, columns=64, pingpong="").replace(*change)
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(kernel, parse_mapping(text), get_target("sm_90"))
    assert caught.value.code == code


def test_roles_need_groups_of_warps_and_results_along_columns() -> None:
    text = ROLES.format(rows=128, columns=64, pingpong="")
    kernel = gated_products(m=712, n=520, k=456, half=F16)
    older = replace(get_target("sm_90"), features=("bf16", "tma"))
    with pytest.raises(EmitError, match="no groups of warps multiply"):
        TritonCodegen().emit_mapping(kernel, parse_mapping(text), older)
    (store,) = kernel.stores
    turned = replace(store, index=kernel.ranges[1].symbol * 712 + kernel.ranges[0].symbol)
    odd = replace(kernel, stores=(turned,))
    with pytest.raises(EmitError, match="do not lie along columns"):
        TritonCodegen().emit_mapping(odd, parse_mapping(text), get_target("sm_90"))


def test_rows_between_vectors_are_loaded_by_threads() -> None:
    for shape in (
        Product(m=136, n=152, k=73, left=BF16, right=BF16),
        Product(m=136, n=151, k=72, left=BF16, right=BF16),
        Product(m=136, n=152, k=72, left=F32, right=F32),
    ):
        text = TritonCodegen().emit(product_kernel(shape), get_target("sm_90"), {}).text
        assert "make_tensor_descriptor" not in text


def test_what_is_overwritten_is_loaded_before(engine: TritonProcess) -> None:
    kernel = product_kernel(Product(m=20, n=33, k=40, left=F32, right=F32, over=True))
    text = TritonCodegen().emit(kernel, get_target("sm_90"), {}).text
    assert text.index("tl.load(io0") < text.index("debug_barrier") < text.index("tl.store")
    agree(engine, kernel)


def test_a_kernel_in_64_bits(engine: TritonProcess) -> None:
    agree(engine, product_kernel(Product(m=20, n=17, k=19, batch=2, left=F16, right=F16)), index_dtype="i64")


def test_corners_of_the_search_space(engine: TritonProcess) -> None:
    kernel = product_kernel(Product(m=70, n=40, k=33, left=F16, right=F16, epilogue=True))
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    tensors = tensors_of(kernel)
    expected = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, expected, ())
    found = corners(source)
    assert len(found) > 2
    for config in found:
        reply = engine.ask(
            {
                "do": "run",
                "text": source.text,
                "entry": source.entry,
                "tensors": [t.clone() for t in tensors],
                "sizes": [],
                "grid": grid_of(source, config, ()),
                "meta": dict(config.meta),
                "options": {},
            }
        )
        torch.testing.assert_close(reply[-1], expected["out0"], rtol=1e-2, atol=1e-2)


def test_unhinted_products_are_walked_like_any_reduction() -> None:
    kernel = product_kernel(Product(m=8, n=8, k=8, left=F32, right=F32), as_sum=True)
    assert "tl.dot" not in TritonCodegen().emit(kernel, get_target("sm_90"), {}).text


def test_blocks_with_all_stages_fit_the_shared_memory() -> None:
    for name in TARGETS:
        device = get_target(name)
        for shape in (
            Product(m=8192, n=50257, k=768, left=BF16, right=BF16),
            Product(m=16, n=11008, k=4096, left=BF16, right=BF16),
            Product(m=4096, n=4096, k=4096, left=F32, right=F32),
        ):
            source = TritonCodegen().emit(product_kernel(shape), device, {})
            assert len(source.configs) > 1
            for config in source.configs:
                meta = dict(config.meta)
                sides = meta["YBLOCK"] + meta["XBLOCK"]
                block = sides * meta["R0_BLOCK"] * shape.left.itemsize
                assert block * meta["STAGES"] <= device.shared_memory_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_odd_products_compile(compiler: TritonProcess, name: str) -> None:
    kernel = product_kernel(Product(m=8192, n=50257, k=768, left=BF16, right=BF16, right_by_rows=False))
    text = compile_source(compiler, TritonCodegen().emit(kernel, get_target(name), {}), name)
    assert ("wgmma" if name == "sm_90" else "mfma") in text


@pytest.mark.slow
def test_8_bit_weights_are_copied_16_bytes_at_a_time(compiler: TritonProcess) -> None:
    kernel = int8_linear(m=16, n=11008, k=4096, half=BF16)
    text = compile_source(compiler, TritonCodegen().emit(kernel, get_target("sm_90"), {}), "sm_90")
    assert "cp.async.cg.shared.global [" in text and "0x10" in text and "mma.sync" in text
