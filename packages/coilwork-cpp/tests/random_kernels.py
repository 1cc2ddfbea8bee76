"""Random kernels, and their results beside the reference interpreter's."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.interpret import interpret_kernel
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, reduce

F32 = DType.F32


def random_kernel(seed: int) -> Kernel:
    """A reduction or pointwise kernel over a permuted, broadcast, possibly dynamic space of three or four
    ranges.
    """
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


def check_kernel(
    kernel: Kernel, run: Callable[..., int], torch_dtype: Callable, seed: int, note: str = ""
) -> None:
    """Run `kernel` at some sizes and compare with the interpreter."""
    for size in (1, 4, 37) if kernel.sizes else (0,):
        torch.manual_seed(seed)
        total = 1
        for r in kernel.ranges:
            total *= size if r.extent in kernel.sizes else r.extent.value
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
                found = (given[arg.name], wanted[arg.name])
                torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5, msg=f"{note}\n{kernel}\n{found}")
