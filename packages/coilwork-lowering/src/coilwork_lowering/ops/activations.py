"""Activation functions and their derivatives, with ATen's formulas."""

from __future__ import annotations

import math
from typing import Final

from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import (
    DEFAULT,
    compute_type,
    elementwise,
    overloads,
    pointwise_rule,
)
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    div,
    ge,
    gt,
    le,
    like,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    select,
    sub,
)

# what ATen's kernels multiply by, in double precision as well: the number of single precision next to a sixth
_ONE_SIXTH: Final = 11184811 / 2**26


def _relu(a: Scalar) -> Scalar:
    return a if a.dtype.is_bool else maximum(a, like(0, a))


def _lower_threshold(a: Scalar, threshold: Scalar, value: Scalar) -> Scalar:
    return select(le(a, threshold), value, a)


def _threshold_backward(grad: Scalar, a: Scalar, threshold: Scalar) -> Scalar:
    return select(le(a, threshold), like(0, grad), grad)


def sigmoid(a: Scalar) -> Scalar:
    """Return the logistic function."""
    return op("sigmoid", a)


def _sigmoid_backward(grad: Scalar, y: Scalar) -> Scalar:
    return mul(grad, mul(sub(like(1, y), y), y))


def _tanh_backward(grad: Scalar, y: Scalar) -> Scalar:
    return mul(grad, sub(like(1, y), mul(y, y)))


def _silu(a: Scalar) -> Scalar:
    return mul(a, sigmoid(a))


def _silu_backward(grad: Scalar, a: Scalar) -> Scalar:
    s, one = sigmoid(a), like(1, a)
    return mul(mul(grad, s), add(one, mul(a, sub(one, s))))


def _leaky_relu(a: Scalar, slope: Scalar) -> Scalar:
    return select(gt(a, like(0, a)), a, mul(a, slope))


def _elu(a: Scalar, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Scalar:
    return select(gt(a, like(0, a)), mul(a, scale), _elu_below(a, alpha, scale, input_scale))


def _elu_on_cpus(a: Scalar, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Scalar:
    # 0 is not below: it stays 0, even with an infinite alpha
    return select(lt(a, like(0, a)), _elu_below(a, alpha, scale, input_scale), mul(a, scale))


def _elu_below(a: Scalar, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Scalar:
    return mul(op("expm1", mul(a, input_scale)), mul(alpha, scale))


def _hardtanh(a: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return minimum(maximum(a, low), high)


def _hardtanh_backward(grad: Scalar, a: Scalar, low: Scalar, high: Scalar) -> Scalar:
    outside = op("bitwise_or", le(a, low), ge(a, high))
    return select(outside, like(0, grad), grad)


def _hardtanh_backward_on_cpus(grad: Scalar, a: Scalar, low: Scalar, high: Scalar) -> Scalar:
    # a NaN is not inside; on accelerators it is not outside
    return select(logical_and(gt(a, low), lt(a, high)), grad, like(0, grad))


def _hardsigmoid(a: Scalar) -> Scalar:
    six = like(6, a)
    return div(minimum(maximum(add(a, like(3, a)), like(0, a)), six), six)


def _hardsigmoid_backward(grad: Scalar, a: Scalar) -> Scalar:
    inside = logical_and(gt(a, like(-3, a)), lt(a, like(3, a)))
    return select(inside, mul(grad, like(_ONE_SIXTH, grad)), like(0, grad))


def _hardswish(a: Scalar) -> Scalar:
    return mul(a, _hardsigmoid(a))


def _hardswish_backward(grad: Scalar, a: Scalar) -> Scalar:
    middle = mul(grad, add(div(a, like(3, a)), like(0.5, a)))
    return select(le(a, like(-3, a)), like(0, grad), select(lt(a, like(3, a)), middle, grad))


def _softplus(a: Scalar, beta: Scalar, threshold: Scalar) -> Scalar:
    scaled = mul(a, beta)
    return select(gt(scaled, threshold), a, div(op("log1p", op("exp", scaled)), beta))


def _softplus_backward(grad: Scalar, a: Scalar, beta: Scalar, threshold: Scalar) -> Scalar:
    scaled = mul(a, beta)
    return select(gt(scaled, threshold), grad, mul(grad, sigmoid(scaled)))


def _exponential_and_gate(a: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """`e = exp(a)`, and `w = e * (e + 2)` and `w + 2`, whose quotient is `tanh(log1p(e))`: no logarithm, no
    hyperbolic tangent.

    Errors of `e` are not made larger: `w` vanishes as `2 * e` does, and the quotient grows more slowly than
    `e`.
    """
    e, two = op("exp", a), like(2, a)
    w = mul(e, add(e, two))
    return e, w, add(w, two)


def _is_far(a: Scalar) -> Scalar:
    # the quotient is 1 in double precision, too, long before its terms are infinite
    return gt(a, like(20, a))


def _mish(a: Scalar) -> Scalar:
    _, w, above = _exponential_and_gate(a)
    return mul(a, select(_is_far(a), like(1, a), div(w, above)))


def _mish_backward(grad: Scalar, a: Scalar) -> Scalar:
    # With t the quotient, 1 - t * t is (2 * (e + 1) / (w + 2)) ** 2, and of that the sigmoid's denominator
    # cancels one factor.
    e, w, above = _exponential_and_gate(a)
    slope = div(mul(mul(e, add(e, like(1, a))), like(4, a)), above)
    near = div(add(w, mul(a, slope)), above)
    # NaN at infinity, as ATen's formula is
    return mul(grad, select(_is_far(a), add(like(1, a), mul(a, like(0, a))), near))


def _hardshrink(a: Scalar, bound: Scalar) -> Scalar:
    inside = logical_and(ge(a, neg(bound)), le(a, bound))
    return select(inside, like(0, a), a)


def _shrink_backward(grad: Scalar, a: Scalar, bound: Scalar) -> Scalar:
    inside = logical_and(ge(a, neg(bound)), le(a, bound))
    return select(inside, like(0, grad), grad)


def _shrink_backward_on_cpus(grad: Scalar, a: Scalar, bound: Scalar) -> Scalar:
    # a NaN is not outside; on accelerators it is not inside
    outside = logical_or(lt(a, neg(bound)), gt(a, bound))
    return select(outside, grad, like(0, grad))


def _softshrink(a: Scalar, bound: Scalar) -> Scalar:
    # a NaN is in neither branch and stays
    inner = select(lt(a, neg(bound)), add(a, bound), select(op("isnan", a), a, like(0, a)))
    return select(gt(a, bound), sub(a, bound), inner)


def _log_sigmoid(a: Scalar) -> Scalar:
    small = minimum(a, like(0, a))
    return sub(small, op("log1p", op("exp", neg(op("abs", a)))))


def _sinc(a: Scalar) -> Scalar:
    scaled = mul(a, like(math.pi, a))
    return select(op("eq", a, like(0, a)), like(1, a), div(op("sin", scaled), scaled))


def _gelu(builder: Builder, call: Call) -> Value:
    compute = compute_type(DEFAULT, [call.fakes["self"]])
    if not compute.is_float:
        raise NotLowered("gelu of integers")
    function = _gelu_tanh if call["approximate"] == "tanh" else _gelu_erf
    return elementwise(builder, call, function, operands=[call["self"]], compute=[compute])


def _gelu_erf(a: Scalar) -> Scalar:
    half = mul(a, like(0.5, a))
    return mul(half, add(like(1, a), op("erf", mul(a, like(math.sqrt(0.5), a)))))


def _gelu_tanh(a: Scalar) -> Scalar:
    cube = mul(mul(a, a), a)
    inner = mul(like(math.sqrt(2 / math.pi), a), add(a, mul(like(0.044715, a), cube)))
    return mul(mul(like(0.5, a), a), add(like(1, a), op("tanh", inner)))


def _nan_to_num(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    if not value.dtype.is_float:
        return builder.copy(value, strides=call.strides(builder))
    limits = {
        "f64": (2.0 - 2.0**-52) * 2.0**1023,
        "f32": (2.0 - 2.0**-23) * 2.0**127,
        "bf16": (2.0 - 2.0**-7) * 2.0**127,
        "f16": 65504.0,
    }
    largest = limits.get(value.dtype.text)
    if largest is None:
        raise NotLowered("an 8 bit float")
    nan = 0.0 if call["nan"] is None else call["nan"]
    high = largest if call["posinf"] is None else call["posinf"]
    low = -largest if call["neginf"] is None else call["neginf"]

    def replace(a: Scalar) -> Scalar:
        finite = select(op("eq", a, like(math.inf, a)), like(high, a), a)
        finite = select(op("eq", a, like(-math.inf, a)), like(low, a), finite)
        return select(op("isnan", a), like(nan, a), finite)

    return elementwise(builder, call, replace, operands=[value], compute=[value.dtype.compute])


RULES: Final[tuple[Rule, ...]] = (
    pointwise_rule("relu", _relu),
    pointwise_rule("relu6", lambda a: _hardtanh(a, like(0, a), like(6, a))),
    pointwise_rule("threshold", _lower_threshold, silent=("threshold", "value")),
    pointwise_rule("threshold_backward", _threshold_backward, silent=("threshold",)),
    pointwise_rule("sigmoid_backward", _sigmoid_backward, floats_only=True),
    pointwise_rule("tanh_backward", _tanh_backward, floats_only=True),
    pointwise_rule("silu", _silu, floats_only=True),
    pointwise_rule("silu_backward", _silu_backward, floats_only=True),
    pointwise_rule("leaky_relu", _leaky_relu, floats_only=True),
    pointwise_rule("elu", _elu, floats_only=True, on_cpus=_elu_on_cpus),
    pointwise_rule("hardtanh", _hardtanh),
    pointwise_rule("hardtanh_backward", _hardtanh_backward, on_cpus=_hardtanh_backward_on_cpus),
    pointwise_rule("hardsigmoid", _hardsigmoid, floats_only=True),
    pointwise_rule("hardsigmoid_backward", _hardsigmoid_backward, floats_only=True),
    pointwise_rule("hardswish", _hardswish, floats_only=True),
    pointwise_rule("hardswish_backward", _hardswish_backward, floats_only=True),
    pointwise_rule("softplus", _softplus, floats_only=True),
    pointwise_rule("softplus_backward", _softplus_backward, floats_only=True),
    pointwise_rule("mish", _mish, floats_only=True),
    pointwise_rule("mish_backward", _mish_backward, floats_only=True),
    pointwise_rule("hardshrink", _hardshrink, floats_only=True, rounds="always"),
    pointwise_rule("softshrink", _softshrink, floats_only=True, rounds="on accelerators"),
    pointwise_rule(
        "hardshrink_backward softshrink_backward",
        _shrink_backward,
        floats_only=True,
        rounds="always",
        on_cpus=_shrink_backward_on_cpus,
    ),
    pointwise_rule("log_sigmoid", _log_sigmoid, floats_only=True),
    pointwise_rule("sinc", _sinc, floats_only=True),
    Rule(overloads("gelu"), _gelu),
    Rule(overloads("nan_to_num"), _nan_to_num),
)
