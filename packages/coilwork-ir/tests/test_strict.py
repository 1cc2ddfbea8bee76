"""Strict kernels compute functions of f32 in f64 and round once; other kernels stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.interpretation.ops import SCALAR_FUNCTIONS
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import Kernel, Numerics
from coilwork_ir.kernels.rewrite import FUNCTIONS, make_functions_strict
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, iterate_postorder

TEXT = """
kernel @chain strict {
range x0: `64` parallel
arg in0: f32 in span `64`
arg in1: f32 in span `64`
arg out0: f32 out span `64`
body {
t0 = load %in0[x0] : f32
t1 = exp(t0)
t2 = load %in1[x0] : f32
t3 = div(t1, t2)
t4 = tanh(t3)
store %out0[x0] = t4
}
}
"""


@pytest.fixture
def kernel() -> Kernel:
    return parse_kernel(TEXT)


def test_functions_are_wide_and_arithmetic_is_not(kernel: Kernel) -> None:
    strict = make_functions_strict(kernel)
    verify_kernel(strict)
    types = {n.op: n.dtype for n in iterate_postorder([s.value for s in strict.stores]) if isinstance(n, Op)}
    assert types["exp"] is types["tanh"] is DType.F64
    assert types["div"] is DType.F32
    assert make_functions_strict(strict) == strict


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_other_levels_are_left_alone(kernel: Kernel, numerics: Numerics) -> None:
    other = replace(kernel, numerics=numerics)
    assert make_functions_strict(other) is other


def test_results_are_those_of_f64_rounded_once(kernel: Kernel) -> None:
    a, b = torch.randn(64), torch.rand(64) + 1
    args = {"in0": a, "in1": b, "out0": torch.zeros(64)}
    interpret_kernel(make_functions_strict(kernel), args, {})
    quotient = a.double().exp().float() / b
    assert torch.equal(args["out0"], quotient.double().tanh().float())


def test_reductions_with_a_function_in_each_step_are_wide() -> None:
    text = """
kernel @rows strict {
range x0: `4` parallel
range r0: `50` reduction
arg in0: bf16 in span `200`
arg out0: bf16 out span `4`
arg out1: i64 out span `4`
arg out2: f32 out span `200`
body {
t0 = load %in0[50*x0 + r0] : bf16
t1 = reduce welford 1 (t0) over (r0)
t2 = reduce argmax 0 (t0) over (r0)
t3 = cast(t0) : f32
t4 = scan logcumsumexp 0 (t3) along r0
store %out0[x0] = t1
store %out1[x0] = t2
store %out2[50*x0 + r0] = t4
}
}
"""
    strict = make_functions_strict(parse_kernel(text))
    verify_kernel(strict)
    welford, argmax, running = (store.value for store in strict.stores)
    assert welford.operands[0].dtype is running.operands[0].dtype is DType.F64
    assert argmax == parse_kernel(text).stores[1].value


def test_functions_that_combine_are_strict_too() -> None:
    text = """
kernel @running strict {
range x0: `4` parallel
range r0: `8` reduction
arg in0: f32 in span `32`
arg out0: f32 out span `32`
body {
t0 = load %in0[8*x0 + r0] : f32
t1 = scan by { t0 = parameter 0 : f32 t1 = exp(t0) t2 = parameter 1 : f32 t3 = add(t1, t2) yield (t3) } 0 \
(t0) along r0
store %out0[8*x0 + r0] = t1
}
}
"""
    strict = make_functions_strict(parse_kernel(text))
    verify_kernel(strict)
    wide = "t1 = cast(t0) : f64 t2 = exp(t1) t3 = cast(t2) : f32 t4 = parameter 1 : f32 t5 = add(t3, t4)"
    assert wide in format_kernel(strict)


def test_what_rounds_exactly_is_no_function() -> None:
    assert set(SCALAR_OPS) >= FUNCTIONS
    assert not FUNCTIONS & {
        "add",
        "sub",
        "mul",
        "div",
        "fma",
        "sqrt",
        "floor",
        "mod",
        "fmod",
        "cast",
        "where",
    }
    value = torch.tensor([0.3, 2.7])
    for name in sorted(name for name in FUNCTIONS if SCALAR_OPS[name].arity == 1):
        wide = SCALAR_FUNCTIONS[name](value.double())
        assert wide.dtype is torch.float64
