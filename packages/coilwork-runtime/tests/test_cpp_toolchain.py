"""The compiler: finding it, its flags, and what kernels may use of the machine's libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coilwork_runtime import Builder, MissingCompilerError
from coilwork_runtime.cpp.toolchain import find_toolchain, list_flags, run_compiler
from coilwork_runtime.generated import CppKernel

LIBRARIES = """
#include <cmath>
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void libraries(float* a, int64_t n, int64_t d) {
  __int128 wide = static_cast<__int128>(n) << 70;
  a[0] = std::tgamma(a[0]);
  a[1] = static_cast<float>(static_cast<_Float16>(a[1]));
  a[2] = static_cast<float>(static_cast<int64_t>((wide / d) >> 70));
  a[3] = static_cast<float>(static_cast<_Float16>(a[3]));
  for (int64_t i = 4; i < n; ++i) a[i] = std::exp(a[i]);
}
"""


def test_kernels_link_math_and_compiler_support() -> None:
    """Half precision and wide division come from libgcc, the rest from libm; start files are left out."""
    spec = CppKernel(
        name="libraries",
        source=LIBRARIES,
        entry="libraries",
        args=("*inout:f32", "size:i64", "size:i64"),
    )
    a = torch.tensor([5.0, 1.5, 0.0, 2.0, 0.0, 1.0, 2.0, 3.0])
    Builder().build([spec])["libraries"](a, 8, 2)
    torch.testing.assert_close(a, torch.cat([torch.tensor([24.0, 1.5, 4.0, 2.0]), torch.arange(4.0).exp()]))


# A transposition of sizes that are sums of products: strides which GCC 12 takes apart, so that an address
# begins at 0.
TRANSPOSED = """
#include <cstdint>
using i64 = int64_t;
extern "C" int torch_parallel_for(i64 begin, i64 end, i64 grain, void (*body)(i64, i64, void*), void* \
context);
struct Arguments { const float* in0; float* out0; i64 n0; i64 n1; i64 n2; };
static void nest(i64 begin, i64 end, void* context) {
  const Arguments& a = *static_cast<const Arguments*>(context);
  const float* __restrict const in0 = a.in0;
  float* __restrict const out0 = a.out0;
  const i64 n0 = a.n0, n1 = a.n1, n2 = a.n2;
  for (i64 y = begin; y < end; ++y) {
    #pragma omp simd
    for (i64 x = 0; x < 6; ++x)
      out0[x + y * 6] = in0[n0 * n1 * n2 * x * 8 + n0 * n1 * x * 8 + n0 * n2 * x * 8 + n1 * n2 * x * 8 + n0 \
* x * 8
                            + n1 * x * 8 + n2 * x * 8 + x * 8 + y];
  }
}
extern "C" __attribute__((visibility("default"))) void transposed(
    const float* in0, float* out0, i64 n0, i64 n1, i64 n2) {
  Arguments arguments = {in0, out0, n0, n1, n2};
  const i64 units = (n0 + 1) * (n1 + 1) * (n2 + 1) * 8;
  if (units <= 10922) nest(0, units, &arguments);
  else torch_parallel_for(0, units, 10922, nest, &arguments);
}
"""


def test_loops_are_not_dropped() -> None:
    spec = CppKernel(
        name="transposed",
        source=TRANSPOSED,
        entry="transposed",
        args=("*in:f32", "*out:f32", "size:i64", "size:i64", "size:i64"),
    )
    given, found = torch.randn(6, 960), torch.full((960, 6), torch.nan)
    Builder().build([spec])["transposed"](given, found, 5, 4, 3)
    torch.testing.assert_close(found, given.t(), rtol=0, atol=0)


def test_features_become_flags() -> None:
    assert "-mavx2" in list_flags(("avx2",)) and "-mavx512f" not in list_flags(("avx2",))
    assert {"-mavx512f", "-mprefer-vector-width=512"} <= set(list_flags(("avx512f",)))
    assert list_flags(("b", "avx2")) == list_flags(("avx2",))


def test_products_and_sums_stay_separate() -> None:
    """`fast` and `eager` numerics are the generator's to choose; the compiler may not contract or reorder."""
    flags = list_flags(())
    assert "-ffp-contract=off" in flags
    assert not any("fast-math" in flag or "unsafe-math" in flag for flag in flags)
    assert {"-fno-builtin-atan", "-fno-builtin-atanhf", "-fno-builtin-pow", "-fno-builtin-powf"} <= set(flags)


def test_the_users_choice_comes_first(tmp_path: Path) -> None:
    command = tmp_path / "my-compiler"
    command.write_text("#!/bin/sh\necho my-compiler 1.2\n")
    command.chmod(0o755)
    found = find_toolchain({"CXX": str(command), "PATH": "/usr/bin"})
    assert (found.command, found.version) == (str(command), "my-compiler 1.2")


def test_an_absent_choice_is_an_error() -> None:
    with pytest.raises(MissingCompilerError, match="CXX names 'no-such-compiler'"):
        find_toolchain({"CXX": "no-such-compiler", "PATH": "/usr/bin"})


def test_a_compiler_that_appears_later_is_found(tmp_path: Path) -> None:
    with pytest.raises(MissingCompilerError):
        find_toolchain({"PATH": str(tmp_path)})
    command = tmp_path / "clang++"
    command.write_text("#!/bin/sh\necho clang 99\n")
    command.chmod(0o755)
    assert find_toolchain({"PATH": str(tmp_path)}).version == "clang 99"


def test_messages_name_no_path_that_changes() -> None:
    data, complaint = run_compiler(find_toolchain(), "int f() { return x; }", ("-c",), ())
    assert data is None
    assert "kernel.cpp:1:18" in complaint and "/tmp" not in complaint
