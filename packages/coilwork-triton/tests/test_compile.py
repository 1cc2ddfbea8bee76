"""Samples compile to machine code for NVIDIA and AMD GPUs, with wide loads where addresses are aligned."""

from __future__ import annotations

import pytest
from kernel_bench import TARGETS, TritonProcess, compile_source
from triton_sample_kernels import SAMPLES, converted, copy, every_op

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel
from coilwork_ir.target import target
from coilwork_triton import TritonCodegen

pytestmark = pytest.mark.slow


def build(process: TritonProcess, kernel: Kernel, name: str) -> str:
    return compile_source(process, TritonCodegen().emit(kernel, target(name), {}), name)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_compile(compiler: TritonProcess, sample: str, name: str) -> None:
    assert build(compiler, SAMPLES[sample], name)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I32, DType.I8, DType.U8])
def test_every_op_compiles(compiler: TritonProcess, dtype: DType, name: str) -> None:
    assert build(compiler, every_op(dtype), name)


@pytest.mark.parametrize("name", TARGETS)
def test_conversions_compile(compiler: TritonProcess, name: str) -> None:
    assert build(compiler, converted(), name)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_aligned_copies_move_16_bytes_per_thread(compiler: TritonProcess, dtype: DType) -> None:
    wide = build(compiler, copy(dtype, aligned=True), "sm_90")
    assert "ld.global.v4.b32" in wide and "st.global.v4.b32" in wide
    narrow = build(compiler, copy(dtype, aligned=False), "sm_90")
    assert "ld.global.v4" not in narrow
    assert "global_load_dwordx4" in build(compiler, copy(dtype, aligned=True), "gfx942")


def test_rows_in_registers_are_read_once_without_masks(compiler: TritonProcess) -> None:
    text = build(compiler, SAMPLES["softmax_persistent"], "sm_90")
    # 8192 elements of two bytes over 256 threads: four loads of 16 bytes each
    assert text.count("ld.global.v4") == 4
    assert "@%p" not in [line.split()[0] for line in text.splitlines() if "ld.global" in line]


def test_checks_trap_when_built_for_debugging(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(SAMPLES["embedding"], target("sm_90"), {})
    assert "__assertfail" in compile_source(compiler, source, "sm_90", debug=True)
    assert "__assertfail" not in compile_source(compiler, source, "sm_90")
