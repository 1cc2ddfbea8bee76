"""A pass over kernels is one row: put into a generator's table, it changes what that generator writes, and
nothing else is touched.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from coilwork_cpp import CppCodegen
from coilwork_cpp.options import CppOptions
from coilwork_cpp.rewrites.table import KERNEL_PASSES as CPP_PASSES
from coilwork_cpp.rewrites.table import Launch
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.parser import parse_kernel
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.scalar import Const, Op, Scalar, op, rewrite
from coilwork_ir.target import Target, get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.kernel_passes.table import KERNEL_PASSES as TRITON_PASSES
from coilwork_triton.kernel_passes.table import Draft

DOUBLED = """\
kernel @double fast {
  range x0: `40` parallel
  arg in0: f32 in span `40` aligned
  arg out0: f32 out span `40` aligned
  body {
    t0 = load %in0[x0] : f32
    t1 = sin(t0)
    t2 = const 2.0 : f32
    t3 = mul(t1, t2)
    store %out0[x0] = t3
  }
}
"""


def add_instead_of_doubling(kernel: Kernel) -> Kernel:
    """`x + x` in the place of `x * 2`."""

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Op) and node.op == "mul":
            first, second = node.operands
            if isinstance(second, Const) and second.value == 2.0:
                return op("add", first, first)
        return node

    return replace_roots(kernel, rewrite(list_kernel_roots(kernel), visit))


def add_row(table: PassTable[Any, Any], run: Any) -> PassTable[Any, Any]:
    """`table` with one more row, the last."""
    row = Pass(name="add-instead-of-doubling", run=run, why="an addition is no slower than a product")
    reason = Before(table.names[-1], row.name, "whatever is left may be doubled")
    longer = PassTable(passes=(*table.passes, row), order=(*table.order, reason))
    assert longer.violations() == ()
    return longer


def in_draft(draft: Draft, _: Target) -> Draft:
    return replace(draft, kernel=add_instead_of_doubling(draft.kernel))


def in_launch(launch: Launch, _: CppOptions) -> Launch:
    phases = tuple(tuple(map(add_instead_of_doubling, pieces)) for pieces in launch.phases)
    return replace(launch, phases=phases)


def test_the_added_pass_computes_the_same() -> None:
    kernel = parse_kernel(DOUBLED)
    results = []
    for one in (kernel, add_instead_of_doubling(kernel)):
        args = {"in0": torch.linspace(-3, 3, 40), "out0": torch.zeros(40)}
        interpret_kernel(one, args, {})
        results.append(args["out0"])
    assert add_instead_of_doubling(kernel) != kernel
    assert torch.equal(*results)


def test_a_triton_pass_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def text() -> str:
        return (
            TritonCodegen().emit(parse_kernel(DOUBLED), get_target("sm_90"), {}).text.split("@triton.jit")[-1]
        )

    before = text()
    planning = sys.modules["coilwork_triton.planning"]
    monkeypatch.setattr(planning, "KERNEL_PASSES", add_row(TRITON_PASSES, in_draft))
    assert "* 2" in before and "* 2" not in text() and "sin1 + sin1" in text()


def test_a_cpp_pass_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def text() -> str:
        source = CppCodegen().emit(parse_kernel(DOUBLED), get_target("x86-64-avx2"), {}).text
        return source[source.index('extern "C"') :]

    before = text()
    table = sys.modules["coilwork_cpp.rewrites.table"]
    monkeypatch.setattr(table, "KERNEL_PASSES", add_row(CPP_PASSES, in_launch))
    after = text()
    assert before != after
    assert before.count(" * ") > after.count(" * ")
