"""The IR's conformance kit, and random kernels against the reference interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import torch

from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import CASES, check_codegen, failures
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.interpret import interpret_kernel
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, reduce
from coilwork_ir.target import Target

F32, F64 = DType.F32, DType.F64


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_conformance_kit(
    build_source: Callable[[KernelSource], Callable[..., int]], machine: Target, numerics: Numerics
) -> None:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        values: list[torch.Tensor | int] = []
        for arg in source.args:
            if arg.role == "size":
                values.append(sizes[arg.name])
            elif arg.role != "scratch":
                values.append(args[arg.name])
        failed = build_source(source)(*values)
        if failed:
            raise RuntimeError(source.checks[failed - 1])

    # functions are what the levels differ in; how values move through a kernel does not depend on them
    cases = CASES if numerics == "fast" else [case for case in CASES if case.labels]
    results = check_codegen(CppCodegen(), machine, run, cases=cases, numerics=numerics)
    assert not failures(results), failures(results)
    # what only schedules for GPUs hold
    theirs = (" walked w", "combined {")
    refused = {case.name for case in cases if any(words in case.text for words in theirs)}
    assert {r.case for r in results if r.status == "refused"} == refused
    assert {r.case for r in results} == {case.name for case in cases}


def random_kernel(seed: int) -> Kernel:
    """A reduction or pointwise kernel over a permuted, broadcast, possibly dynamic space of three or four ranges."""
    rng = random.Random(seed)
    count = rng.randint(2, 4)
    size = symbol("n0", lo=0)
    extents: list[Expr | int] = [rng.choice([1, 2, 3, 5, 16, 33, 70]) for _ in range(count)]
    if rng.random() < 0.4:
        extents[rng.randrange(count)] = size
    reduced = rng.choice([0, 0, 1, 1, 2]) if count > 2 else rng.choice([0, 1])
    ranges = []
    for k, extent in enumerate(extents):
        kind = "reduction" if k >= count - reduced else "parallel"
        s = symbol(f"{'r' if kind == 'reduction' else 'x'}{k}", extent=extent)
        ranges.append(Range(symbol=s, kind=kind, tile="r" if kind == "reduction" else "x"))
    symbols = [r.symbol for r in ranges]

    def offset(chosen: list[Expr]) -> Expr:
        at: Expr = as_expr(0)
        for s in chosen:
            assert s.extent is not None
            at = at * s.extent + s
        return at

    args: list[TensorArg] = []
    span = as_expr(1)
    for extent in extents:
        span = span * extent

    def read(name: str) -> Scalar:
        dtype = rng.choice([F32, F32, DType.BF16, DType.F16])
        chosen = [s for s in symbols if rng.random() < 0.8]
        rng.shuffle(chosen)
        args.append(TensorArg(name=name, dtype=dtype, role="in", span=span + 1))
        mask = None
        if rng.random() < 0.3:
            mask = op("lt", index_value(rng.choice(symbols)), const(rng.randint(0, 20), DType.I64))
        return cast(load(name, [offset(chosen)], dtype, mask=mask, other=1.5), F32)

    values = [read(f"in{k}") for k in range(rng.randint(1, 3))]
    for _ in range(rng.randint(1, 4)):
        a, b = rng.choice(values), rng.choice(values)
        name = rng.choice(["add", "mul", "sub", "maximum", "tanh", "where", "exp"])
        if name == "exp":
            values.append(op("exp", op("minimum", a, const(2, F32))))
        elif name == "tanh":
            values.append(op("tanh", a))
        elif name == "where":
            values.append(op("where", op("lt", a, b), a, b))
        else:
            values.append(op(name, a, b))
    value = values[-1]
    axes = [r.symbol for r in ranges if r.kind == "reduction"]
    outer = [r.symbol for r in ranges if r.kind == "parallel"]
    stores = []
    if axes:
        kind = rng.choice(["sum", "max", "min", "argmax", "welford", "online_softmax"])
        result = reduce(kind, [value], axes)
        permuted = list(outer)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), result))
        if rng.random() < 0.6 and result.dtype is F32:
            inner = list(symbols)
            rng.shuffle(inner)
            stores.append(("out1", offset(inner), op("sub", value, result)))
    else:
        permuted = list(symbols)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), value))
    for name, _, stored in stores:
        args.append(TensorArg(name=name, dtype=stored.dtype, role="out", span=span))
    return Kernel(
        name=f"random_{seed}",
        ranges=tuple(ranges),
        args=tuple(args),
        sizes=(size,) if size in extents else (),
        stores=tuple(Store(buffer=name, index=at, value=v) for name, at, v in stores),
    )


@pytest.mark.parametrize("seed", [*range(40), 101, 107, 256, 519])
def test_random_kernels(
    load_kernel: Callable[..., Callable[..., int]], torch_dtype: Callable, seed: int
) -> None:
    kernel = random_kernel(seed)
    run = load_kernel(kernel, split_elements=random.Random(seed).choice([0, 64, 16384]))
    for size in (1, 4, 37) if kernel.sizes else (0,):
        torch.manual_seed(seed)
        total = 1
        for r in kernel.ranges:
            assert r.symbol.extent is not None
            total *= size if r.symbol.extent in kernel.sizes else r.symbol.extent.value
        given = {}
        for arg in kernel.args:
            kind = torch_dtype(arg.dtype)
            given[arg.name] = (
                torch.randn(total + 1).to(kind) if arg.role == "in" else torch.zeros(total, dtype=kind)
            )
        wanted = {name: value.clone() for name, value in given.items()}
        interpret_kernel(kernel, wanted, [size] if kernel.sizes else [])
        run(*given.values(), *([size] if kernel.sizes else []))
        for arg in kernel.args:
            if arg.role == "out":
                torch.testing.assert_close(
                    given[arg.name], wanted[arg.name], rtol=2e-5, atol=2e-5, msg=str(kernel)
                )
