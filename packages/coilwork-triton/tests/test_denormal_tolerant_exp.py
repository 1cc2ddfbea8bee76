"""Exponentials that flush what is subnormal: only below sums that have a term of 1, and what the sums come
to.
"""

from __future__ import annotations

import pytest
import torch
from kernel_bench import WALKS, TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.scalar import Scalar, iterate_postorder, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.kernel_analysis import index_users
from coilwork_triton.facts.precision_analysis import find_denormal_tolerant_exps

F32 = DType.F32
ROWS, ROW = 4, 1024
X, R = along("x0", ROWS), along("r0", ROW, "reduction")
V = load("in0", [ROW * X.symbol + R.symbol], F32)
LARGEST = reduce("max", (V,), [R.symbol])
DISTANCE = op("sub", V, LARGEST)
NUMERATOR = op("exp", DISTANCE)
TOTAL = reduce("sum", (NUMERATOR,), [R.symbol])


def found(*roots: Scalar) -> frozenset[Scalar]:
    order = tuple(iterate_postorder(roots))
    return find_denormal_tolerant_exps(order, roots, index_users(order))


def test_the_sum_of_a_softmax() -> None:
    assert found(op("log", TOTAL)) == {NUMERATOR}


def test_what_else_sees_it_wants_it_all() -> None:
    assert not found(op("div", NUMERATOR, TOTAL))
    assert not found(TOTAL, NUMERATOR)
    assert not found(reduce("max", (NUMERATOR,), [R.symbol]))


def test_a_sum_without_a_term_of_one() -> None:
    assert not found(reduce("sum", (op("exp", V),), [R.symbol]))
    other = load("in1", [ROW * X.symbol + R.symbol], F32)
    assert not found(reduce("sum", (op("exp", op("sub", other, LARGEST)),), [R.symbol]))
    least = reduce("min", (V,), [R.symbol])
    assert not found(reduce("sum", (op("exp", op("sub", V, least)),), [R.symbol]))


def source_of(value: Scalar, *, numerics: Numerics = "fast", walk: str = "persistent") -> KernelSource:
    kernel = Kernel(
        name="logsumexp",
        ranges=(X, R),
        args=(arg("in0", F32, ROWS * ROW), arg("out0", F32, ROWS)),
        stores=(Store(buffer="out0", index=X.symbol, value=value),),
        numerics=numerics,
    )
    return TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[walk])


def test_other_levels_keep_the_exact_forms() -> None:
    assert "exp_beside_one(" in source_of(TOTAL).text
    assert "exp_beside_one(" not in source_of(TOTAL, numerics="eager").text
    assert "exp_beside_one(" not in source_of(TOTAL, numerics="strict").text


@pytest.mark.parametrize("walk", ["persistent", "looped"])
def test_sums_are_as_exact_as_ever(engine: TritonProcess, walk: str) -> None:
    source = source_of(op("add", LARGEST, op("log", TOTAL)), walk=walk)
    torch.manual_seed(0)
    given = 30 * torch.randn(ROWS, ROW)
    given[1, :7] = float("-inf")
    given[2, 3] = float("nan")
    given[3] = float("-inf")
    got = run_source(engine, source, [given.flatten(), torch.zeros(ROWS)])[-1]
    wanted = given.double().logsumexp(-1).float()
    # of infinitely small values alone the distance is no number
    wanted[3] = float("nan")
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.slow
def test_subnormal_terms_take_no_instructions(compiler: TritonProcess) -> None:
    text = compile_source(compiler, source_of(TOTAL), "sm_90")
    assert "ex2.approx.ftz.f32" in text and "ex2.approx.f32" not in text
