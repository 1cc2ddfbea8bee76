"""A template for products, in one file, and a process that compiles programs with it, runs them and compares
with eager.

`InTiles` is all that a template is: a class with the members of `Implementation`. `compile_with_template`
makes it a row of the registry. `test_product_templates.py` starts the process with kernels in Triton's
interpreter and with kernels in C++; on a GPU `gpu/test_products_gpu.py` runs the same cases.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.backends import compile_with
from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Candidate, Kernel, Schedule
from coilwork_ir.loops import Node
from coilwork_ir.loops.matrix_products import MatrixProduct
from coilwork_ir.mapping.product_blocks import Blocks, get_contraction, name_blocks
from coilwork_ir.target import Target
from coilwork_scheduler import make_program, schedule
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import Registry
from integration_tests.model_checks import no_fallback

REASON: Final = "tiles compute what stands before and behind the product, too"
FEWEST_COLUMNS: Final = 32


@dataclass(frozen=True, slots=True)
class InTiles:
    """Products of at least 32 columns in one kernel, with what is before and behind them."""

    around: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "kernel"
    loss: ClassVar[str] = "a library's call costs less"

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        """It multiplies two matrices of f32 or bf16, and adds to them at most."""
        if not product.is_plain or product.is_weighted or len(product.output.shape) != 2:
            return "it multiplies two matrices"
        types = {one.dtype for one in (*product.operands, product.output)}
        return None if types <= {DType.F32, DType.BF16} and len(types) == 1 else "it multiplies f32 or bf16"

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        """Half of what moving the operands takes; unknown for few columns."""
        around = self.around
        if around.sizes.value(product.sizes[1]) < FEWEST_COLUMNS:
            return Quote(us=inf, reason="few columns fill no tile")
        us = around.move_us(sum(map(around.size, product.operands)), around.size(product.output)) / 2
        return Quote(us=us, reason=REASON, numbers={"tiles_us": round(us, 3)})

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        """0: any gain is taken."""
        return 0.0

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        """A sum of products, which prologues are inlined into and epilogues fused behind."""
        return self.around.sums(target).build(product.node)

    def name_blocks(self, kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
        """Small squares on a GPU, and few columns at a time on a CPU."""
        if not target.is_gpu:
            columns = next(r.symbol.name for r in reversed(kernel.ranges) if r.kind == "parallel")
            return (
                Candidate(directives=f"block {columns} by 32", reason="few columns stay in the cache"),
                # of a transposed weight, whose terms are the vector
                Candidate(directives="accumulators 8 pass 0", reason="sums do not wait for each other"),
            )
        small = Blocks(rows=16, columns=32, depth=32, warps=2, stages=2, reason="it is for small products")
        return (name_blocks(kernel, get_contraction(kernel), small),)


@contextmanager
def compile_with_template() -> Iterator[None]:
    """Within, programs are compiled by a scheduler whose registry has one more row."""

    def schedule_with_template(*values: Any, registry: Registry, **settings: Any) -> Schedule:
        # in front of others that are worth it, too
        more = replace(registry, products=(InTiles, *registry.products))
        return schedule(*values, registry=more, **settings)

    with patch.object(make_program, "schedule", schedule_with_template):
        yield


def drawn(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Numbers that are the same on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype is torch.int8:
        return torch.randint(-127, 127, shape, generator=generator, dtype=dtype).to(device)
    return (torch.randn(shape, generator=generator) / 4).to(dtype).to(device)


Program = Callable[..., Tensor]


def feed_forward(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """An activation before the product; a bias, an activation and a residual behind it."""
    return F.gelu(torch.relu(x) @ weight + bias) + residual


def dequantised(x: Tensor, weight: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    """A weight of 8 bits, scaled before the product."""
    return torch.tanh(F.linear(x, weight.to(x.dtype) * scale[:, None])) * residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A program at some sizes, and if the template computes its product."""

    program: Program
    rows: int
    columns: int
    terms: int
    dtype: torch.dtype
    is_chosen: bool = True

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Operands of the program."""
        make = partial(drawn, dtype=self.dtype, device=device)
        x, residual = make(self.rows, self.terms), make(self.rows, self.columns, seed=1)
        if self.program is dequantised:
            weight = drawn(self.columns, self.terms, dtype=torch.int8, device=device)
            return x, weight, make(self.columns), residual
        return x, make(self.terms, self.columns), make(self.columns), residual


CASES: Final[Mapping[str, Check]] = {
    "f32": Check(program=feed_forward, rows=37, columns=70, terms=45, dtype=torch.float32),
    "bf16": Check(program=feed_forward, rows=64, columns=96, terms=64, dtype=torch.bfloat16),
    "dequantised": Check(program=dequantised, rows=20, columns=64, terms=96, dtype=torch.bfloat16),
    "few columns": Check(
        program=feed_forward, rows=37, columns=8, terms=45, dtype=torch.float32, is_chosen=False
    ),
}


def compare(check: Check, device: str) -> None:
    """Fail unless the compiled program is as near to a result in f64 as eager is, or within a few
    roundings.
    """
    inputs = check.inputs(device)
    with compile_with_template(), no_fallback():
        mine = compile_with(check.program, "coilwork")(*inputs)
    its = check.program(*inputs)
    exact = check.program(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert mine.dtype == its.dtype and mine.stride() == its.stride()
    allowed = 2 * (its.double() - exact).abs().amax() + 4 * torch.finfo(its.dtype).eps * exact.abs().amax()
    assert (mine.double() - exact).abs().amax() <= allowed


def wrong_with(check: Check, trace: Path, device: str = "cpu") -> str:
    """What is wrong with a case; empty if its result is right, and computed where it should be."""
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    torch._dynamo.reset()
    try:
        compare(check, device)
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    finally:
        del os.environ["COILWORK_TRACE"]
    decisions = "".join(path.read_text() for path in trace.glob("*/*.decisions.txt"))
    program = "".join(path.read_text() for path in trace.glob("*/*.program.txt"))
    mappings = [path.read_text() for path in sorted(trace.glob("*/kernels/*.mapping.txt"))]
    if not check.is_chosen:
        return (
            "" if "extern" in program and REASON not in decisions else f"the template is chosen:\n{program}"
        )
    if "extern" in program or REASON not in decisions or len(mappings) != 1:
        return f"it is not one kernel, by choice:\n{decisions}\n{program}"
    return (
        ""
        if _is_tiled(mappings[0], check)
        else f"it runs in other blocks than the template names:\n{mappings[0]}"
    )


def _is_tiled(mapping: str, check: Check) -> bool:
    if "for cpu" in mapping:
        return ("accumulators 8 pass 0" if check.program is dequantised else "block x1 by 32") in mapping
    unit = "unit mma" if check.dtype.itemsize == 2 else "unit fma"
    wanted = (unit, "contract", "tile x1 by 32", "tile x0 by 16", "loop r0 by 32 stages 2", "warps 2")
    return all(directive in mapping for directive in wanted)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(json.dumps({name: wrong_with(check, folder / name) for name, check in CASES.items()}))
