"""Results that calls of operators make for the native executor: in lists beside others, and of types that
only operators read.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from executor_assembly import SETTLE, Assembly, listing, u8

from coilwork_cache import MemoryStore
from coilwork_runtime import ProgramBytesError, load_native
from coilwork_runtime.executor.native_program import NativeProgram

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

# torch's C interface has no functions that name these
UNNAMED = (
    "qint8 quint8 qint32 quint4x2 quint2x4 bits8 bits16 bits4x2 bits2x4 bits1x8 float4_e2m1fn_x2".split()
)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


def no_fallback() -> Callable[[list[Any]], Sequence[Any]]:
    raise AssertionError("no fallback is needed")


def load(store: MemoryStore, data: bytes) -> NativeProgram:
    return load_native(data, launchers={}, constants={}, fallback=no_fallback, store=store)


def test_results_that_lie_in_lists(store: MemoryStore) -> None:
    asm = Assembly()
    asm.input("x")
    counts = u8(11) + listing([u8(3) + struct.pack("<q", bins) for bins in (3, 4)])
    asm.call(
        "aten.histogramdd.default",
        [asm.ref("x"), counts],
        results=["h", None, "b"],
        single=False,
        paths=[[0], [1, 0], [1, 1]],
    )
    program = load(store, asm.returns("h", "b"))
    x = torch.randn(5, 2)
    found, edges = torch.histogramdd(x, [3, 4])
    torch.testing.assert_close(tuple(program.call([x])), (found, edges[1]))
    assert program.counters()["python_calls"] == 1


@pytest.mark.parametrize("name", UNNAMED)
def test_types_without_a_name_in_torchs_c_interface(store: MemoryStore, name: str) -> None:
    asm = Assembly()
    asm.input("x")
    asm.call("aten.alias.default", [asm.ref("x", is_float=False)], results=["y"])
    asm.add(SETTLE, asm.slot("y") + asm.layout(2, dtype=name) + u8(0), "settle")
    dtype = getattr(torch, name)
    if name.startswith("q"):
        x = torch._empty_affine_quantized([2], scale=0.5, zero_point=3, dtype=dtype)
    else:
        x = torch.zeros(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    (y,) = load(store, asm.returns("y")).call([x])
    assert y.dtype is dtype and y.data_ptr() == x.data_ptr()


def test_a_quantised_result_is_not_laid_out_anew(store: MemoryStore) -> None:
    asm = Assembly()
    asm.input("x")
    asm.call("aten.t.default", [asm.ref("x", is_float=False)], results=["y"])
    asm.add(SETTLE, asm.slot("y") + asm.layout(3, 2, dtype="quint8") + u8(1), "settle")
    x = torch.quantize_per_tensor(torch.randn(2, 3), 0.5, 3, torch.quint8)
    (y,) = load(store, asm.returns("y")).call([x])
    assert y.stride() == (1, 3) and torch.equal(y.dequantize(), x.t().dequantize())


def test_a_type_that_torch_has_not(store: MemoryStore) -> None:
    asm = Assembly()
    asm.input("x")
    asm.call("aten.alias.default", [asm.ref("x")], results=["y"])
    asm.add(SETTLE, asm.slot("y") + asm.layout(2, dtype="qint3") + u8(0), "settle")
    with pytest.raises(ProgramBytesError):
        load(store, asm.returns("y"))
