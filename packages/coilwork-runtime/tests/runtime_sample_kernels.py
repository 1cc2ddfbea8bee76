"""Kernels that several test files use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from coilwork_runtime.generated import CppKernel, KernelVersion, TritonKernel
from coilwork_runtime.manifest.kernel_manifest import KernelArgument, KernelSpec
from coilwork_runtime.manifest.readable import Names, format_code
from coilwork_runtime.manifest.size_bytecode import SizeBytecode

DOUBLE_CPP = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void double_it(const float* a, float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) b[i] = FACTOR * a[i];
}
"""

DOUBLE_TRITON = """
import triton
import triton.language as tl


@triton.jit
def double_it(a, b, n0, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(b + i, tl.load(a + i, i < n0) * FACTOR, i < n0)
"""

CHECKED_TRITON = """
import triton
import triton.language as tl


@triton.jit
def checked(a, n0, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    x = tl.load(a + i, i < n0, other=0)
    tl.device_assert(x < 10, "IndexError: index out of range", mask=i < n0)
    tl.store(a + i, x + 1, i < n0)
"""

POSITIVE_TRITON = """
import triton
import triton.language as tl


@triton.jit
def positive(a, limit, b, n0, XBLOCK: tl.constexpr):
    low = tl.load(limit)
    for start in range(0, n0, XBLOCK):
        i = start + tl.arange(0, XBLOCK)
        x = tl.load(a + i, i < n0, other=0.0)
        tl.store(b + i, ((low < 0.0) & (x > 0.0)).to(tl.float32), i < n0)
"""

ROUND_TRITON = """
import triton
import triton.language as tl


@triton.jit
def rounded(a, n, b, c, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    tl.store(b + i, tl.load(a + i).to(tl.bfloat16))
    tl.store(c + i, tl.load(n + i).to(tl.bfloat16).to(tl.float64))
"""


def cpp_kernel(name: str = "double_it", *, factor: int = 2, source: str = DOUBLE_CPP) -> KernelSpec:
    """`b = factor * a` over `n0` floats."""
    return CppKernel(
        name=name,
        source=source.replace("FACTOR", str(factor)),
        entry="double_it",
        args=("*in:f32", "*out:f32", "size:i64"),
        arg_names=("a", "b", "n0"),
        bytes="8*n0",
    )


def triton_kernel(
    name: str = "double_it",
    *,
    factor: int = 2,
    target: str = "sm_90",
    blocks: tuple[int, ...] = (512,),
    source: str = DOUBLE_TRITON,
) -> KernelSpec:
    """`b = factor * a` over `n0` floats; a candidate per block size."""
    return TritonKernel(
        name=name,
        source=source.replace("FACTOR", str(factor)),
        entry="double_it",
        args=("*in:f32:16", "*out:f32:16", "size:i32"),
        arg_names=("a", "b", "n0"),
        grid=("(n0 + XBLOCK - 1) // XBLOCK",),
        configs=tuple({"XBLOCK": block, "num_warps": 4, "num_stages": 1} for block in blocks),
        versions=(version({"XBLOCK": blocks}),),
        bytes="8*n0",
        target=target,
    )


def version(values: Mapping[str, Iterable[int]], *limits: tuple[str, str], guard: str = "") -> KernelVersion:
    """A version whose mapping has a number of each name, open where it has several values, and `limits`
    between them.
    """
    texts = {name: tuple(map(str, known)) for name, known in values.items()}
    numbers = {n: f"?{n} in {' '.join(known)}" if len(known) > 1 else known[0] for n, known in texts.items()}
    lines = [f"tile x0 by {number}" for name, number in numbers.items() if name != "num_warps"]
    lines += [f"warps {numbers.get('num_warps', 4)}"]
    lines += [f"limit `{left}` at most `{right}`" for left, right in limits]
    return KernelVersion(guard=guard, mapping="\n".join(lines))


def checked_kernel() -> KernelSpec:
    """Adds 1 to at most 64 integers, all of which must be below 10."""
    return TritonKernel(
        name="checked",
        source=CHECKED_TRITON,
        entry="checked",
        args=("*inout:i64", "size:i32"),
        arg_names=("a", "n0"),
        grid=("1",),
        configs=({"XBLOCK": 64, "num_warps": 1, "num_stages": 1},),
        checks=("IndexError: index out of range",),
        target="sm_90",
    )


def positive_kernel() -> KernelSpec:
    """`b = (limit < 0) & (a > 0)` over `n0` floats, in one program that loops; `limit` is a single float."""
    return TritonKernel(
        name="positive",
        source=POSITIVE_TRITON,
        entry="positive",
        args=("*in:f32:16", "*in:f32", "*out:f32:16", "size:i64"),
        arg_names=("a", "limit", "b", "n0"),
        grid=("1",),
        configs=({"XBLOCK": 64, "num_warps": 1, "num_stages": 1},),
        target="sm_90",
    )


def rounding_kernel() -> KernelSpec:
    """`b = bf16(a)` of 8 floats and `c = f64(bf16(n))` of 8 integers."""
    return TritonKernel(
        name="rounded",
        source=ROUND_TRITON,
        entry="rounded",
        args=("*in:f32", "*in:i64", "*out:bf16", "*out:f64"),
        arg_names=("a", "n", "b", "c"),
        grid=("1",),
        configs=({"XBLOCK": 8, "num_warps": 1, "num_stages": 1},),
        target="sm_90",
    )


PRODUCT_TRITON = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    sums = tl.full([BLOCK, BLOCK], 0.0, tl.float32)
    sums = tl.dot(tl.load(a + (i * BLOCK + j)), tl.load(b + (i * BLOCK + j)), sums)
    tl.store(c + (i * BLOCK + j), sums)
"""


def product_kernel() -> KernelSpec:
    """`c = a @ b` of matrices of bf16, 16 by 16."""
    return TritonKernel(
        name="product",
        source=PRODUCT_TRITON,
        entry="product",
        args=("*in:bf16", "*in:bf16", "*out:f32"),
        arg_names=("a", "b", "c"),
        grid=("1",),
        configs=({"BLOCK": 16, "num_warps": 1, "num_stages": 1},),
        target="sm_90",
    )


JOINED_TRITON = """
import triton
import triton.language as tl


@triton.jit
def then(a, b, c, d):
    # t * a + b, then * c + d: associative, and the order of operands matters
    return a * c, b * c + d


@triton.jit
def joined(a, b, reduced, kept, whole, scanned, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, \
BACKWARDS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    pair = (tl.load(a + at), tl.load(b + at))
    rest: tl.constexpr = N if AXIS == 0 else M
    u, v = tl.reduce(pair, AXIS, then)
    tl.store(reduced + tl.arange(0, rest), u)
    tl.store(reduced + rest + tl.arange(0, rest), v)
    u, v = tl.reduce(pair, AXIS, then, keep_dims=True)
    line = tl.expand_dims(tl.arange(0, rest), AXIS)
    tl.store(kept + line, u)
    tl.store(kept + rest + line, v)
    u, v = tl.reduce(pair, None, then)
    tl.store(whole, u)
    tl.store(whole + 1, v)
    u, v = tl.associative_scan(pair, AXIS, then, reverse=BACKWARDS)
    tl.store(scanned + at, u)
    tl.store(scanned + M * N + at, v)
"""


def joined_kernel(rows: int, columns: int, axis: int, *, backwards: bool) -> KernelSpec:
    """Functions `t -> t * a + b` with `a` and `b` from two integer matrices, applied one after the other
    along `axis`.

    `reduced` and `kept` are the functions of whole lines, `whole` that of all elements, `scanned` those so
    far, from the other end if `backwards`. Of each, all factors come before all constants.
    """
    meta = {"M": rows, "N": columns, "AXIS": axis, "BACKWARDS": backwards}
    return TritonKernel(
        name="joined",
        source=JOINED_TRITON,
        entry="joined",
        args=("*in:i64", "*in:i64", "*out:i64", "*out:i64", "*out:i64", "*out:i64"),
        arg_names=("a", "b", "reduced", "kept", "whole", "scanned"),
        grid=("1",),
        configs=({**meta, "num_warps": 1, "num_stages": 1},),
        target="sm_90",
    )


MOMENTS_TRITON = """
import triton
import triton.language as tl


@triton.jit
def both(n, mean, squares, m, other, more):
    total = n + m
    delta = other - mean
    share = m / total
    return total, mean + delta * share, squares + more + delta * delta * n * share


@triton.jit
def moments(a, b, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, N))
    n, mean, squares = tl.reduce((tl.full([N], 1.0, tl.float32), x, tl.zeros([N], tl.float32)), 0, both)
    tl.store(b, n)
    tl.store(b + 1, mean)
    tl.store(b + 2, squares / n)
"""


def moments_kernel(count: int) -> KernelSpec:
    """`b` is the number, the mean and the variance of `count` floats `a`, joined as of disjoint sets (Chan et
    al.).
    """
    return TritonKernel(
        name="moments",
        source=MOMENTS_TRITON,
        entry="moments",
        args=("*in:f32", "*out:f32"),
        arg_names=("a", "b"),
        grid=("1",),
        configs=({"N": count, "num_warps": 1, "num_stages": 1},),
        target="sm_90",
    )


def rewrite(
    spec: KernelSpec,
    *,
    args: Iterable[str] | None = None,
    arg_names: Iterable[str] | None = None,
    grid: Iterable[str] | None = None,
    versions: Iterable[KernelVersion] | None = None,
    **others: Any,
) -> KernelSpec:
    """`spec` with other fields, those in readable form."""
    words = tuple(argument_word(spec, one) for one in spec.args) if args is None else tuple(args)
    names = tuple(one.name for one in spec.args) if arg_names is None else tuple(arg_names)
    configs = others.get("configs", spec.configs)
    reader = Names(words, names, [name for config in configs for name in config])
    reader.parameters.extend(spec.parameters)
    changed: dict[str, Any] = dict(others)
    if args is not None or arg_names is not None:
        changed["args"] = reader.arguments()
    if grid is not None:
        changed["grid"] = tuple(map(reader.code, grid))
    if versions is not None:
        changed["versions"] = tuple(map(reader.version, versions))
    return replace(spec, **changed, parameters=tuple(reader.parameters))


def argument_word(spec: KernelSpec, one: KernelArgument) -> str:
    """`"*in:f32:16"`, `"size:i64"`, `"*scratch:f32=4*n0"`."""
    elements = "" if one.elements is None else f"={code_text(spec, one.elements)}"
    return f"{'*' * one.is_pointer}{one.role}:{one.dtype}{':16' * one.aligned}{elements}"


def code_text(spec: KernelSpec, code: SizeBytecode) -> str:
    """Python text of `code`."""
    return format_code(code, spec.sizes, spec.parameters)


def readable_kernel(spec: KernelSpec) -> str:
    """`rt.CppKernel(...)` or `rt.TritonKernel(...)`."""
    fields: dict[str, Any] = {
        name: getattr(spec, name) for name in ("name", "source", "entry", "checks", "features", "target")
    }
    fields["args"] = tuple(argument_word(spec, one) for one in spec.args)
    fields["arg_names"] = tuple(one.name for one in spec.args)
    if spec.traffic is not None:
        fields["bytes"] = code_text(spec, spec.traffic)
    if spec.is_triton:
        fields["grid"] = tuple(code_text(spec, one) for one in spec.grid)
        fields["configs"] = spec.configs
        fields["versions"] = tuple(
            KernelVersion(guard="" if one.guard is None else code_text(spec, one.guard), mapping=one.mapping)
            for one in spec.versions
        )
    texts = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"rt.{'TritonKernel' if spec.is_triton else 'CppKernel'}({texts})"


def module_text(spec: KernelSpec) -> str:
    """A generated module around a doubling kernel: input x of 8 floats, plus a constant; output
    `2 * x + c`.
    """
    return f'''"""y = 2 * x + c"""
import torch
from coilwork_runtime import generated as rt
from coilwork_runtime.generated import KernelVersion as ReadableVersion

KERNELS = ({readable_kernel(spec)},)


def make_call(kernels, constants):
    double_it = kernels["double_it"]
    c = constants["c"]

    def call(args):
        (x,) = args
        args.clear()
        rt.check_layout(x, "x", torch.float32, "cpu", (8,), (1,))
        y = rt.empty_strided_cpu((8,), (1,), torch.float32)
        double_it(x, y, 8)
        return (y + c,)

    return call


def make_inputs():
    return [rt.random_input((8,), (1,), torch.float32, "cpu")]


def make_constants():
    return {{"c": torch.ones(8)}}


if __name__ == "__main__":
    rt.run_standalone(KERNELS, make_call, make_inputs, make_constants)
'''
