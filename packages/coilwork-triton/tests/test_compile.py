"""Samples compile to machine code for NVIDIA and AMD GPUs, with wide loads where addresses are aligned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import pytest
from kernel_bench import OLDER_TARGETS, TARGETS, TritonProcess, allowed, along, arg, compile_source, moved
from triton_sample_kernels import SAMPLES, converted, copy, every_op, sample_options

from coilwork_ir.conformance import CORE_CASES
from coilwork_ir.dtypes import FORMATS, DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import parse_mapping
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import cast, const, index_value, load, op, placeholder, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

pytestmark = pytest.mark.slow


def build(
    process: TritonProcess,
    kernel: Kernel,
    name: str,
    options: Mapping[str, object] = MappingProxyType({}),
) -> str:
    return compile_source(process, TritonCodegen().emit(kernel, get_target(name), options), name)


def build_narrow(process: TritonProcess, kernel: Kernel, name: str, *, machine_code: bool = True) -> str:
    """Machine text where a thread has one element: a function that is inlined stands there once, not four
    times. Without `machine_code` it is LLVM's.
    """
    source = TritonCodegen().emit(kernel, get_target(name), {})
    best = source.configs[0]
    narrow = moved(best, "XBLOCK", get_target(name).warp_size)
    assert allowed(source, narrow)
    return compile_source(process, replace(source, configs=(narrow,)), name, machine_code=machine_code)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_compile(compiler: TritonProcess, sample: str, name: str) -> None:
    assert build(compiler, SAMPLES[sample], name, sample_options(sample))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I32, DType.I8, DType.U8])
def test_every_op_compiles(compiler: TritonProcess, dtype: DType, name: str) -> None:
    assert build_narrow(compiler, every_op(dtype), name)


ONE_ROW = """kernel @one_row fast {
  size n0 in [0, inf]
  range x0: `6` parallel
  range r0: `n0` reduction
  arg in0: f32 in span `6*n0`
  arg out0: f32 out span `6*n0`
  body {
    t0 = load %in0[n0*x0 + r0] : f32
    t1 = scan KIND 0 (t0) along r0
    store %out0[n0*x0 + r0] = t1
  }
}
"""


@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_a_scan_of_one_row_in_runs_compiles(compiler: TritonProcess, kind: str) -> None:
    """What a row carries from block to block is a number; Triton's interpreter takes a line of one for it,
    too.
    """
    kernel = parse_kernel(ONE_ROW.replace("KIND", kind))
    mapping = parse_mapping("tile x0 by 1 loop r0 by 128 runs r0 by 2 warps 1")
    assert compile_source(
        compiler, TritonCodegen().emit_mapping(kernel, mapping, get_target("sm_90")), "sm_90"
    )


@pytest.mark.parametrize("part", range(4))
def test_cores_of_open_sizes_compile(compiler: TritonProcess, part: int) -> None:
    """As the runtime builds them, with sizes of 64 bits; Triton itself passes small ones in 32."""
    built = 0
    for case in CORE_CASES[part::4]:
        try:
            source = TritonCodegen().emit(parse_kernel(case.text), get_target("sm_90"), {})
        except EmitError:
            continue
        assert "define" in compile_source(compiler, source, "sm_90", machine_code=False)
        built += 1
    # every second core is a convolution
    assert built or part % 2 == 0


@pytest.mark.parametrize("scalars", [(0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize(
    ("dtype", "numerics"),
    [
        *((DType.F32, numerics) for numerics in ("fast", "eager", "strict")),
        *((dtype, "fast") for dtype in (DType.F64, DType.I64, DType.I32, DType.U8)),
    ],
)
def test_every_op_compiles_for_single_elements(
    compiler: TritonProcess,
    dtype: DType,
    scalars: tuple[int, ...],
    numerics: Literal["fast", "eager", "strict"],
) -> None:
    """Numbers and blocks differ in Triton's types; what LLVM makes of both `test_every_op_compiles` has."""
    kernel = every_op(dtype, scalars=scalars, numerics=numerics)
    assert "define" in build_narrow(compiler, kernel, "sm_90", machine_code=False)


@pytest.mark.parametrize("name", TARGETS)
def test_conversions_compile(compiler: TritonProcess, name: str) -> None:
    assert build(compiler, converted(), name)


@pytest.mark.parametrize("name", [*TARGETS, *OLDER_TARGETS])
def test_conversions_of_8_bit_floats_compile(compiler: TritonProcess, name: str) -> None:
    """Also where the target has no instructions for them, and those that Triton has no type of."""
    x = along("x0", 4096)
    stores, args = [], []
    for number, dtype in enumerate(FORMATS):
        args += [arg(f"in{number}", dtype, 4096), arg(f"out{number}", dtype, 4096)]
        loaded = load(f"in{number}", [x.symbol], dtype)
        value = cast(op("add", cast(loaded, DType.F32), const(-0.0, DType.F32)), dtype)
        chosen = op("where", op("lt", index_value(x.symbol), const(9, DType.I64)), value, const(0.7, dtype))
        stores.append(Store(buffer=f"out{number}", index=x.symbol, value=chosen))
    kernel = Kernel(name="small", ranges=(x,), args=tuple(args), stores=tuple(stores))
    assert build(compiler, kernel, name)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_zeros_keep_their_sign(compiler: TritonProcess, dtype: DType) -> None:
    """Which `x + 0` shows: it stays, where `x + -0` is nothing but `x`."""
    x = along("x0", 4096)

    def sums(zero: float) -> str:
        value = op("add", load("in0", [x.symbol], dtype), const(zero, dtype))
        args = (arg("in0", dtype, 4096), arg("out0", dtype, 4096))
        stores = (Store(buffer="out0", index=x.symbol, value=value),)
        return build(compiler, Kernel(name="sums", ranges=(x,), args=args, stores=stores), "sm_90")

    added = re.compile(r"\b(add|fma)(\.rn)?\.b?f\d")
    assert added.search(sums(0.0)) and not added.search(sums(-0.0))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_atomic_extremes_compile_with_nan_of_the_sign_that_wins(
    compiler: TritonProcess, dtype: DType, name: str
) -> None:
    x = along("x0", 4096)
    sign = {DType.F32: "FFC00000", DType.F64: "FFF8000000000000"}[dtype]
    modes: tuple[tuple[StoreMode, str], ...] = (("min", sign), ("max", f"7{sign[1:]}"))
    for mode, nan in modes:
        store = Store(
            buffer="io0",
            index=placeholder(0),
            indirect=(load("in1", [x.symbol], DType.I64),),
            value=load("in0", [x.symbol], dtype),
            mode=mode,
        )
        args = (arg("in0", dtype, 4096), arg("in1", DType.I64, 4096), arg("io0", dtype, 64))
        kernel = Kernel(name="extremes", ranges=(x,), args=args, stores=(store,))
        built = build(compiler, kernel, name)
        if name.startswith("sm_"):
            assert nan in built.upper()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_aligned_copies_move_16_bytes_per_thread(compiler: TritonProcess, dtype: DType) -> None:
    wide = build(compiler, copy(dtype, aligned=True), "sm_90")
    assert "ld.global.v4.b32" in wide and "st.global.v4.b32" in wide
    narrow = build(compiler, copy(dtype, aligned=False), "sm_90")
    assert "ld.global.v4" not in narrow
    assert "global_load_dwordx4" in build(compiler, copy(dtype, aligned=True), "gfx942")


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_padded_rows_are_copied_by_neighbouring_threads(compiler: TritonProcess, dtype: DType) -> None:
    x0, x1 = along("x0", 64), along("x1", 50264)
    inside = op("lt", index_value(x1.symbol), const(50257, DType.I64))
    value = load("in0", [x0.symbol * 50257 + x1.symbol], dtype, mask=inside)
    kernel = Kernel(
        name="padded",
        ranges=(x0, x1),
        args=(arg("in0", dtype, 64 * 50257), arg("out0", dtype, 64 * 50264)),
        stores=(Store(buffer="out0", index=x0.symbol * 50264 + x1.symbol, value=value),),
    )
    text = build(compiler, kernel, "sm_90")
    width = f"b{8 * dtype.itemsize}"
    assert f"ld.global.{width}" in text and f"st.global.{width}" in text and ".global.v" not in text
    # neither by a shift and a multiplication, nor by a division
    assert not any(word in text for word in ("mul.hi", "div.", "rem."))


def test_rows_before_padding_are_read_16_bytes_at_a_time(compiler: TritonProcess) -> None:
    x0, r0 = along("x0", 64), along("r0", 50257, "reduction")
    value = cast(load("in0", [x0.symbol * 50264 + r0.symbol], DType.BF16), DType.F32)
    kernel = Kernel(
        name="highest",
        ranges=(x0, r0),
        args=(arg("in0", DType.BF16, 64 * 50264 - 7), arg("out0", DType.F32, 64)),
        stores=(Store(buffer="out0", index=x0.symbol, value=reduce("max", [value], [r0.symbol])),),
    )
    text = build(compiler, kernel, "sm_90")
    assert "ld.global.v4" in text and "ld.global.b16" not in text


def test_rows_in_registers_are_read_once_without_masks(compiler: TritonProcess) -> None:
    text = build(compiler, SAMPLES["softmax_persistent"], "sm_90")
    # 8192 elements of two bytes over 256 threads: four loads of 16 bytes each
    assert text.count("ld.global.v4") == 4
    assert "@%p" not in [line.split()[0] for line in text.splitlines() if "ld.global" in line]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_a_product_less_itself_is_not_what_rounding_took_from_it(
    compiler: TritonProcess, dtype: DType
) -> None:
    x = along("x0", 1024)
    product = op("mul", load("in0", [x.symbol], dtype), load("in1", [x.symbol], dtype))
    kernel = Kernel(
        name="nothing",
        ranges=(x,),
        args=tuple(arg(name, dtype, 1024) for name in ("in0", "in1", "out0")),
        stores=(Store(buffer="out0", index=x.symbol, value=op("sub", product, product)),),
    )
    assert "fma" not in build(compiler, kernel, "sm_90")


def test_checks_trap_when_built_for_debugging(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(SAMPLES["embedding"], get_target("sm_90"), {})
    assert "__assertfail" in compile_source(compiler, source, "sm_90", debug=True)
    assert "__assertfail" not in compile_source(compiler, source, "sm_90")
