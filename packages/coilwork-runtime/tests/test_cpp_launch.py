"""Calling C++ kernels: sizes, checks, scratch memory."""

from __future__ import annotations

import pytest
import torch

from coilwork_runtime import Builder
from coilwork_runtime.errors import raise_check
from coilwork_runtime.generated import CppKernel
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

EXPORT = 'extern "C" __attribute__((visibility("default")))'

GATHER = f"""
#include <cstdint>
{EXPORT} int64_t gather(const float* a, const int64_t* at, float* b, int64_t n, int64_t m) {{
  for (int64_t i = 0; i < n; ++i) {{
    if (at[i] < 0) return 2;
    if (at[i] >= m) return 1;
    b[i] = a[at[i]];
  }}
  return 0;
}}
"""

REVERSE = f"""
#include <cstdint>
{EXPORT} void reverse(float* a, int64_t n, float* scratch) {{
  for (int64_t i = 0; i < n; ++i) scratch[i] = a[i];
  for (int64_t i = 0; i < n; ++i) a[i] = scratch[n - 1 - i];
}}
"""

PARALLEL = f"""
#include <cstdint>
extern "C" int32_t torch_get_num_threads(uint32_t*);
{EXPORT} void threads(int64_t* a) {{
  uint32_t count = 0;
  a[0] = torch_get_num_threads(&count) ? -1 : count;
}}
"""


def gather_kernel() -> KernelSpec:
    return CppKernel(
        name="gather_0",
        source=GATHER,
        entry="gather",
        args=("*in:f32", "*in:i64", "*out:f32", "size:i64", "size:i64"),
        checks=("IndexError: index out of range", "RuntimeError: index is negative"),
    )


def test_a_failed_check_raises_its_own_error() -> None:
    launch = Builder().build([gather_kernel()])["gather_0"]
    a, b = torch.arange(4.0), torch.empty(2)
    launch(a, torch.tensor([3, 0]), b, 2, 4)
    assert b.tolist() == [3.0, 0.0]
    with pytest.raises(IndexError, match=r"^index out of range \(in kernel gather_0\)$"):
        launch(a, torch.tensor([3, 4]), b, 2, 4)
    with pytest.raises(RuntimeError, match=r"^index is negative \(in kernel gather_0\)$"):
        launch(a, torch.tensor([-1, 0]), b, 2, 4)


def test_a_check_without_a_type_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match=r"^size: must be even \(in kernel k\)$"):
        raise_check("k", ("size: must be even",), 0)


def test_scratch_is_provided_by_the_launcher() -> None:
    spec = CppKernel(
        name="reverse",
        source=REVERSE,
        entry="reverse",
        args=("*inout:f32", "size:i64", "*scratch:f32=max(n0, 1)"),
        arg_names=("a", "n0", "s"),
    )
    launch = Builder().build([spec])["reverse"]
    a = torch.arange(100.0)
    launch(a, 100)
    assert a.tolist() == list(map(float, range(99, -1, -1)))


def test_kernels_reach_torchs_threads() -> None:
    spec = CppKernel(name="threads", source=PARALLEL, entry="threads", args=("*out:i64",))
    out = torch.zeros(1, dtype=torch.int64)
    Builder().build([spec])["threads"](out)
    assert out.item() == torch.get_num_threads()
