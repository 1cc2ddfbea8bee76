"""Kernels in steps, drawn at random, beside what they were before: by the interpreter of the IR."""

from __future__ import annotations

import random

import torch
from kernel_bench import along, arg

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, maximum, minimum, mod
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpret import interpret_kernel
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op
from coilwork_triton.facts.steps import in_steps

BF16, F32, I64 = DType.BF16, DType.F32, DType.I64
TYPES = {BF16: torch.bfloat16, F32: torch.float32}


def drawn(draw: random.Random) -> Kernel:
    """A kernel that reads several elements, each at a row and a column that are quotients, multiples, clamped or wrapped."""
    rows, columns = draw.choice([2, 15, 32]), draw.choice([64, 72, 100])
    x0, x1, x2 = along("x0", 3), along("x1", rows), along("x2", columns)
    height, width = draw.choice([8, 40]), draw.choice([16, 80, 96])

    def place(at: Expr, extent: int, size: int) -> Expr:
        scaled = draw.choice(
            [at, floordiv(at, 2), floordiv(at + 1, 2) - 1, at * 2 - 1, floordiv(at * 2 + 1, 4), at - 2]
        )
        return draw.choice(
            [
                minimum(maximum(scaled, as_expr(draw.choice([0, 1]))), as_expr(size - 1)),
                mod(scaled + size, size),
                minimum(maximum(scaled + draw.randint(-1, 2), as_expr(0)), as_expr(size - 1)),
            ]
        )

    value: Scalar = const(0.0, F32)
    for _ in range(draw.randint(1, 4)):
        row, column = place(x1.symbol, rows, height), place(x2.symbol, columns, width)
        inside = op(
            draw.choice(["lt", "ge"]), index_value(x2.symbol), const(draw.choice([-1, 1, 30, 200]), I64)
        )
        one = load(
            "in0", [(x0.symbol * height + row) * width + column], F32, mask=draw.choice([None, None, inside])
        )
        weight = op("mul", cast(index_value(mod(x2.symbol, 4)), F32), const(0.25, F32))
        value = op("add", value, op("mul", one, draw.choice([weight, const(1.0, F32)])))
    if draw.random() < 0.5:
        value = op("sub", value, load("in1", [(x0.symbol * rows + x1.symbol) * columns + x2.symbol], F32))
    size = 3 * rows * columns
    dtype = draw.choice([F32, BF16])
    return Kernel(
        name="drawn",
        ranges=(x0, x1, x2),
        args=(arg("in0", F32, 3 * height * width), arg("in1", F32, size), arg("out0", dtype, size)),
        stores=(
            Store(
                buffer="out0",
                index=(x0.symbol * rows + x1.symbol) * columns + x2.symbol,
                value=cast(value, dtype),
            ),
        ),
    )


def test_steps_compute_the_same_and_read_nothing_else() -> None:
    draw, stepped, paired = random.Random(7), 0, 0
    for _ in range(250):
        kernel = drawn(draw)
        steps = in_steps(kernel)
        if steps is None:
            continue
        stepped += 1
        paired += steps.kernel.ranges[-2].symbol is not kernel.ranges[-2].symbol
        first, second, third = (as_int(a.span) or 0 for a in kernel.args)
        inputs = {"in0": torch.randn(first), "in1": torch.randn(second)}
        results = []
        for one in (kernel, steps.kernel):
            out = torch.full((third,), float("nan"), dtype=TYPES[kernel.args[-1].dtype])
            # which refuses to read outside of an argument
            interpret_kernel(one, {**inputs, "out0": out}, ())
            results.append(out)
        assert torch.equal(*results)
    assert stepped >= 30 and paired >= 10
