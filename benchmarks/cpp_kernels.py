"""Generated C++ kernels: seconds to build, and speed next to eager PyTorch, on 1 and 2 threads.

    python benchmarks/cpp_kernels.py [NAME ...]

Build times are CPU seconds of g++ and what it starts. Ratios are eager's time over ours, best of many repeats
in one process, interleaved; above 1 the generated kernel is faster.
"""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, evaluate, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Scalar, cast, const, load, op, reduce
from coilwork_ir.target import get_target

F32, BF16 = DType.F32, DType.BF16
FLAGS = "-O3 -shared -fPIC -fopenmp-simd -fno-math-errno -fno-trapping-math -ffp-contract=off".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel, its tensors (outputs last), and what eager runs."""

    kernel: Kernel
    tensors: tuple[torch.Tensor, ...]
    eager: Callable[[], object]


def ranges(parallel: list[int], reduced: list[int]) -> tuple[tuple[Range, ...], list[Expr]]:
    made = [Range(symbol=symbol(f"x{k}", extent=e), kind="parallel") for k, e in enumerate(parallel)]
    made += [Range(symbol=symbol(f"r{k}", extent=e), kind="reduction") for k, e in enumerate(reduced)]
    return tuple(made), [r.symbol for r in made]


def kernel(
    name: str, space: tuple[Range, ...], tensors: tuple[torch.Tensor, ...], stores: list[Store]
) -> Kernel:
    outputs = len(stores)
    args = []
    for k, t in enumerate(tensors):
        is_output = k >= len(tensors) - outputs
        label = f"out{k - len(tensors) + outputs}" if is_output else f"in{k}"
        dtype = BF16 if t.dtype is torch.bfloat16 else F32
        args.append(
            TensorArg(name=label, dtype=dtype, role="out" if is_output else "in", span=as_expr(t.numel()))
        )
    return Kernel(name=name, ranges=space, args=tuple(args), stores=tuple(stores))


def gelu_of(v: Scalar) -> Scalar:
    inner = op("add", op("erf", op("mul", v, const(2**-0.5, F32))), const(1, F32))
    return op("mul", op("mul", v, const(0.5, F32)), inner)


def gelu() -> Case:
    space, (x,) = ranges([2048 * 3072], [])
    t = (torch.randn(2048, 3072), torch.empty(2048, 3072))
    stores = [Store(buffer="out0", index=x, value=gelu_of(load("in0", [x], F32)))]
    return Case(
        kernel=kernel("gelu", space, t, stores), tensors=t, eager=lambda: torch.nn.functional.gelu(t[0])
    )


def bias_gelu_bf16() -> Case:
    n, m = 2048, 3072
    space, (x, y) = ranges([n, m], [])
    t = (torch.randn(n, m).bfloat16(), torch.randn(m).bfloat16(), torch.empty(n, m).bfloat16())
    v = op("add", cast(load("in0", [x * m + y], BF16), F32), cast(load("in1", [y], BF16), F32))
    stores = [Store(buffer="out0", index=x * m + y, value=cast(gelu_of(v), BF16))]
    return Case(
        kernel=kernel("bias_gelu_bf16", space, t, stores),
        tensors=t,
        eager=lambda: torch.nn.functional.gelu(t[0] + t[1]),
    )


def softmax() -> Case:
    n, m = 12 * 1024, 1024
    space, (x, r) = ranges([n], [m])
    t = (torch.randn(n, m), torch.empty(n, m))
    v = load("in0", [x * m + r], F32)
    e = op("exp", op("sub", v, reduce("online_softmax", [v], [r])))
    value = op("div", e, reduce("online_softmax", [v], [r], output=1))
    stores = [Store(buffer="out0", index=x * m + r, value=value)]
    return Case(kernel=kernel("softmax", space, t, stores), tensors=t, eager=lambda: torch.softmax(t[0], 1))


def layer_norm() -> Case:
    n, m = 4096, 768
    space, (x, r) = ranges([n], [m])
    t = (torch.randn(n, m), torch.randn(m), torch.randn(m), torch.empty(n, m))
    v = load("in0", [x * m + r], F32)
    mean = reduce("welford", [v], [r])
    variance = op("div", reduce("welford", [v], [r], output=1), const(m, F32))
    normal = op("mul", op("sub", v, mean), op("rsqrt", op("add", variance, const(1e-5, F32))))
    value = op("fma", normal, load("in1", [r], F32), load("in2", [r], F32))
    stores = [Store(buffer="out0", index=x * m + r, value=value)]
    return Case(
        kernel=kernel("layer_norm", space, t, stores),
        tensors=t,
        eager=lambda: torch.nn.functional.layer_norm(t[0], (m,), t[1], t[2]),
    )


def whole_sum() -> Case:
    n = 1 << 22
    space, (r,) = ranges([], [n])
    t = (torch.randn(n), torch.empty(()))
    stores = [Store(buffer="out0", index=as_expr(0), value=reduce("sum", [load("in0", [r], F32)], [r]))]
    return Case(kernel=kernel("whole_sum", space, t, stores), tensors=t, eager=lambda: t[0].sum())


def row_sum() -> Case:
    n, m = 4096, 1024
    space, (x, r) = ranges([n], [m])
    t = (torch.randn(n, m), torch.empty(n))
    stores = [Store(buffer="out0", index=x, value=reduce("sum", [load("in0", [x * m + r], F32)], [r]))]
    return Case(kernel=kernel("row_sum", space, t, stores), tensors=t, eager=lambda: t[0].sum(1))


def column_sum() -> Case:
    n, m = 8192, 768
    space, (x, r) = ranges([m], [n])
    t = (torch.randn(n, m), torch.empty(m))
    stores = [Store(buffer="out0", index=x, value=reduce("sum", [load("in0", [r * m + x], F32)], [r]))]
    return Case(kernel=kernel("column_sum", space, t, stores), tensors=t, eager=lambda: t[0].sum(0))


def narrow_column_sum() -> Case:
    n, m = 1 << 17, 32
    space, (x, r) = ranges([m], [n])
    t = (torch.randn(n, m), torch.empty(m))
    stores = [Store(buffer="out0", index=x, value=reduce("sum", [load("in0", [r * m + x], F32)], [r]))]
    return Case(kernel=kernel("narrow_column_sum", space, t, stores), tensors=t, eager=lambda: t[0].sum(0))


def argmax() -> Case:
    n, m = 256, 32000
    space, (x, r) = ranges([n], [m])
    t = (torch.randn(n, m), torch.empty(n, dtype=torch.int64))
    stores = [Store(buffer="out0", index=x, value=reduce("argmax", [load("in0", [x * m + r], F32)], [r]))]
    k = kernel("argmax", space, t, stores)
    args = (k.args[0], TensorArg(name="out0", dtype=DType.I64, role="out", span=as_expr(n)))
    k = Kernel(name=k.name, ranges=space, args=args, stores=k.stores)
    return Case(kernel=k, tensors=t, eager=lambda: t[0].argmax(1))


def transpose() -> Case:
    n, m = 2048, 1536
    space, (x, y) = ranges([n, m], [])
    t = (torch.randn(m, n), torch.empty(n, m))
    stores = [Store(buffer="out0", index=x * m + y, value=load("in0", [y * n + x], F32))]
    return Case(kernel=kernel("transpose", space, t, stores), tensors=t, eager=lambda: t[0].t().contiguous())


def heads() -> Case:
    b, s, h, d = 4, 1024, 12, 64
    space, (i, j, k, l) = ranges([b, h, s, d], [])
    t = (torch.randn(b, s, h, d), torch.empty(b, h, s, d))
    source = i * (s * h * d) + k * (h * d) + j * d + l
    at = i * (h * s * d) + j * (s * d) + k * d + l
    stores = [Store(buffer="out0", index=at, value=load("in0", [source], F32))]
    return Case(
        kernel=kernel("heads", space, t, stores),
        tensors=t,
        eager=lambda: t[0].permute(0, 2, 1, 3).contiguous(),
    )


CASES = (
    gelu, bias_gelu_bf16, softmax, layer_norm, whole_sum, row_sum, column_sum, narrow_column_sum, argmax,
    transpose,
    heads,
)  # fmt: skip


def flags_of(features: tuple[str, ...]) -> list[str]:
    width = "-mprefer-vector-width=512" if "avx512f" in features else "-mprefer-vector-width=256"
    return [*FLAGS, width, *(f"-m{feature}" for feature in features)]


def build(case: Case, folder: Path) -> tuple[Callable[[], object], float]:
    """A call of the kernel, and the CPU seconds that its build took."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    wide = get_target("x86-64-avx512")
    chosen = wide if set(wide.features) <= words else get_target("x86-64-avx2")
    source = CppCodegen().emit(case.kernel, chosen, {})
    text, library = folder / f"{source.name}.cpp", folder / f"{source.name}.so"
    text.write_text(source.text)
    lib = Path(torch.__file__).parent / "lib"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["g++", *flags_of(source.features), str(text), "-o", str(library)]
    subprocess.run([*command, "-lmvec", "-lm", f"-L{lib}", "-ltorch_cpu"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    entry = ctypes.CDLL(str(library))[source.entry]
    scratch = [
        torch.empty(evaluate(arg.elements, {}) * arg.dtype.itemsize, dtype=torch.uint8)
        for arg in source.args
        if arg.elements is not None
    ]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*case.tensors, *scratch)]

    def call(scratch: object = scratch) -> object:
        return entry(*pointers)

    return call, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best(functions: list[Callable[[], object]], seconds: float = 1.0) -> list[float]:
    """Shortest time of each function, in seconds, called in turn."""
    shortest = [float("inf")] * len(functions)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            shortest[k] = min(shortest[k], time.perf_counter() - start)
    return shortest


def main(names: list[str]) -> None:
    """Run the cases called `names`, or all."""
    print(
        f"{'kernel':20} {'build cpu s':>11} {'1 thread us':>12} {'ratio':>6} {'2 threads us':>13} "
        f"{'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for make in CASES:
            if names and make.__name__ not in names:
                continue
            case = make()
            call, seconds = build(case, Path(folder))
            call()
            expected = case.eager()
            assert isinstance(expected, torch.Tensor)
            torch.testing.assert_close(
                case.tensors[-1], expected, rtol=2e-2 if expected.dtype is torch.bfloat16 else 1e-3, atol=1e-2
            )
            line = f"{make.__name__:20} {seconds:11.3f}"
            for threads, width in ((1, 12), (2, 13)):
                torch.set_num_threads(threads)
                ours, eager = best([call, case.eager])
                line += f" {ours * 1e6:{width}.0f} {eager / ours:6.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
