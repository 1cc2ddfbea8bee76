"""Random kernels: what no one would write down as a case, drawn alike for equal seeds."""

from __future__ import annotations

import random
from typing import Final

from coilwork_ir.conformance.case import Case
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.nodes import RangeKind
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Load, Scalar, cast, const, index_value, load, op, postorder, reduce

_F32: Final = DType.F32


def random_case(seed: int) -> Case:
    """The kernel of `random_kernel`, at sizes that are no multiples of one another."""
    kernel = random_kernel(seed)
    sizes = tuple({size.name: number for size in kernel.sizes} for number in (1, 4, 37))
    return Case(name=kernel.name, text=format_kernel(kernel), sizes=sizes if kernel.sizes else ({},))


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
        kind: RangeKind = "reduction" if k >= count - reduced else "parallel"
        s = symbol(f"{'r' if kind == 'reduction' else 'x'}{k}", extent=extent)
        ranges.append(Range(symbol=s, kind=kind))
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
        dtype = rng.choice([_F32, _F32, DType.BF16, DType.F16])
        chosen = [s for s in symbols if rng.random() < 0.8]
        rng.shuffle(chosen)
        args.append(TensorArg(name=name, dtype=dtype, role="in", span=span + 1))
        mask = None
        if rng.random() < 0.3:
            mask = op("lt", index_value(rng.choice(symbols)), const(rng.randint(0, 20), DType.I64))
        return cast(load(name, [offset(chosen)], dtype, mask=mask, other=1.5), _F32)

    values = [read(f"in{k}") for k in range(rng.randint(1, 3))]
    for _ in range(rng.randint(1, 4)):
        a, b = rng.choice(values), rng.choice(values)
        name = rng.choice(["add", "mul", "sub", "maximum", "tanh", "where", "exp"])
        if name == "exp":
            values.append(op("exp", op("minimum", a, const(2, _F32))))
        elif name == "tanh":
            values.append(op("tanh", a))
        elif name == "where":
            values.append(op("where", op("lt", a, b), a, b))
        else:
            values.append(op(name, a, b))
    value = values[-1]
    axes = [r.symbol for r in ranges if r.kind == "reduction"]
    outer = [r.symbol for r in ranges if r.kind == "parallel"]
    stores: list[tuple[str, Expr, Scalar]] = []
    if axes:
        kinds: list[ReduceKind] = ["sum", "max", "min", "argmax", "welford", "online_softmax"]
        result = reduce(rng.choice(kinds), [value], axes)
        permuted = list(outer)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), result))
        if rng.random() < 0.6 and result.dtype is _F32:
            inner = list(symbols)
            rng.shuffle(inner)
            stores.append(("out1", offset(inner), op("sub", value, result)))
    else:
        permuted = list(symbols)
        rng.shuffle(permuted)
        stores.append(("out0", offset(permuted), value))
    for name, _, stored in stores:
        args.append(TensorArg(name=name, dtype=stored.dtype, role="out", span=span))
    read_from = {node.buffer for node in postorder([v for _, _, v in stores]) if isinstance(node, Load)}
    return Kernel(
        name=f"random_{seed}",
        ranges=tuple(ranges),
        args=tuple(arg for arg in args if arg.role == "out" or arg.name in read_from),
        sizes=(size,) if size in extents else (),
        stores=tuple(Store(buffer=name, index=at, value=v) for name, at, v in stores),
    )
