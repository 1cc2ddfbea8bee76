"""Elementwise operators on special values, every layout, mixed types and low precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lowering_against_eager import assert_as_eager, trace_and_lower
from torch import Tensor

from coilwork_ir.loops.interpreter import interpret_graph

aten = torch.ops.aten
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, float("inf"), float("-inf"), float("nan"), 1e30, -1e-30]
)

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc "
    "sqrt rsqrt reciprocal neg abs sign floor ceil trunc round relu silu mish hardsigmoid hardswish "
    "log_sigmoid_forward "
    "isnan isinf isfinite isposinf isneginf signbit logical_not nan_to_num square lgamma relu6 "
    "hardshrink softshrink "
    "gelu elu leaky_relu softplus hardtanh"
)


@pytest.mark.parametrize("name", [n for n in UNARY.split() if n != "log_sigmoid_forward"])
def test_unary_on_special_values(name: str) -> None:
    # eager's vectorised gelu gives nan at infinity, its scalar one does not
    assert_as_eager(getattr(aten, name), SPECIAL[:7] if name == "gelu" else SPECIAL)


@pytest.mark.parametrize("name", ["exp", "gelu", "neg", "sigmoid", "sqrt", "silu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_unary_in_other_precisions(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(getattr(aten, name), torch.randn(3, 5).abs().to(dtype))


@pytest.mark.parametrize("name", ["exp", "sin", "sigmoid", "sqrt", "log", "tanh"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.uint8])
def test_integers_become_floats(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(getattr(aten, name), torch.tensor([0, 1, 2, 3]).to(dtype))


@pytest.mark.parametrize(
    "name", ["neg", "abs", "sign", "floor", "ceil", "relu", "square", "bitwise_not", "isnan", "isfinite"]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8])
def test_unary_on_integers(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(
        getattr(aten, name), torch.tensor([0, 1, 2, 127, 255 if dtype is torch.uint8 else -128]).to(dtype)
    )


BINARY = (
    "add sub mul div maximum minimum fmax fmin remainder fmod atan2 pow eq ne lt le gt ge logical_and "
    "logical_or "
    "logical_xor floor_divide copysign hypot xlogy heaviside"
)


@pytest.mark.parametrize("name", BINARY.split())
def test_binary_on_special_values(name: str) -> None:
    # eager's vectorised remainders are off where the quotient exceeds the mantissa
    values = SPECIAL[:10] if name in ("remainder", "fmod") else SPECIAL
    a, b = torch.meshgrid(values, values, indexing="ij")
    assert_as_eager(getattr(aten, name), a, b)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "maximum", "remainder", "fmod", "eq", "lt", "floor_divide"]
)
@pytest.mark.parametrize(
    "types",
    [
        (torch.int32, torch.int64),
        (torch.int8, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.uint8, torch.int8),
        (torch.int64, torch.float16),
    ],
)
def test_operands_of_two_types_are_promoted_as_by_eager(
    name: str, types: tuple[torch.dtype, torch.dtype]
) -> None:
    a = torch.tensor([[1, 2, 7, 100]]).to(types[0])
    b = torch.tensor([[3], [1], [5]]).to(types[1])
    assert_as_eager(getattr(aten, name), a, b)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64])
def test_operators_on_bits_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(
        getattr(aten, name), torch.tensor([0, 1, 5, -3]).to(dtype), torch.tensor([1, 1, 3, 6]).to(dtype)
    )


def test_shifts_outside_the_width() -> None:
    a = torch.tensor([1, -5, 7, -9], dtype=torch.int32)
    b = torch.tensor([1, 2, 33, 40], dtype=torch.int32)
    assert_as_eager(aten.bitwise_left_shift, a, b)
    assert_as_eager(aten.bitwise_right_shift, a, b)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_each_rounding_of_a_division_is_eagers(mode: str | None, dtype: torch.dtype) -> None:
    a = torch.tensor([7, -7, 8, -8, 0]).to(dtype)
    b = torch.tensor([2, 2, -3, -3, 5]).to(dtype)
    assert_as_eager(lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode=mode), a, b)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(4, 3, 5),
    "transposed": lambda: torch.randn(5, 3, 4).transpose(0, 2),
    "strided": lambda: torch.randn(4, 6, 10)[:, ::2, ::2],
    "expanded": lambda: torch.randn(4, 1, 5).expand(4, 3, 5),
    "single": lambda: torch.randn(1, 1, 1),
    "empty": lambda: torch.randn(0, 3, 5),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "scalar": lambda: torch.randn(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_any_layout_are_read_as_by_eager(layout: str) -> None:
    x = LAYOUTS[layout]()
    assert_as_eager(lambda a: aten.mul(aten.sin(a), a), x)
    assert_as_eager(lambda a: aten.add(a, 2.5, alpha=3), x)


POWERS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 2.5, 7)


@pytest.mark.parametrize("exponent", POWERS)
def test_powers_of_special_values_are_those_of_eager(exponent: float) -> None:
    assert_as_eager(lambda a: aten.pow(a, exponent), SPECIAL)
    if exponent >= 0 and isinstance(exponent, int):
        assert_as_eager(lambda a: aten.pow(a, exponent), torch.tensor([-3, 0, 2, 100]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_of_what_has_none(dtype: torch.dtype, exponent: float) -> None:
    """In `f16`, eager's power 0.5 of -inf is infinite and that of -0 is 0; roots are NaN and -0."""
    edges = torch.tensor([-float("inf"), -0.0, 0.0, float("inf"), -1.0, float("nan"), 2.25], dtype=dtype)
    assert_as_eager(lambda a: aten.pow(a, exponent), edges)
    assert_as_eager(lambda a: aten.signbit(aten.pow(a, exponent)), edges[1:4])


def _third(name: str) -> Callable[..., Tensor]:
    def call(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        result: Tensor = getattr(aten, name)(a, b, c)
        return result

    return call


@pytest.mark.parametrize("name", ["lerp", "addcmul", "addcdiv", "clamp", "where"])
def test_operators_of_three_operands_are_those_of_eager(name: str) -> None:
    a, b, c = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) + 0.5
    first = a > 0 if name == "where" else a
    assert_as_eager(_third(name), first, b, c)


def test_each_form_of_clamp_is_eagers() -> None:
    x = SPECIAL
    assert_as_eager(lambda a: aten.clamp(a, -1, 1), x)
    assert_as_eager(lambda a: aten.clamp(a, min=0.5), x)
    assert_as_eager(lambda a: aten.clamp_max(a, 0), x)
    assert_as_eager(lambda a: aten.clamp(a, 2, 90), torch.tensor([1, 5, 100]))


BACKWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "silu": aten.silu_backward,
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.3),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0),
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1.5, 2.0),
}


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_derivatives_of_activations_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    assert_as_eager(BACKWARDS[name], torch.randn(40).to(dtype), (3 * torch.randn(40)).to(dtype))


def test_the_derivative_of_hardsigmoid_in_double_precision() -> None:
    """Eager's sixth is a number of single precision, whatever the type."""
    grad, x = torch.randn(2, 40, dtype=torch.float64)
    assert_as_eager(aten.hardsigmoid_backward, grad, x, tolerance=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_derivative_of_hardswish_where_it_jumps(dtype: torch.dtype) -> None:
    """In 16 bits, random numbers are at times just there."""
    x = torch.tensor([-3.0, 3.0, -2.5, 2.5, -3.5, 3.5, 0.0, -math.inf, math.inf], dtype=dtype)
    assert_as_eager(aten.hardswish_backward, torch.linspace(1, 2, 9).to(dtype), x)


def test_gelu_approximations_and_conversion() -> None:
    assert_as_eager(lambda a: aten.gelu(a, approximate="tanh"), torch.randn(20))
    assert_as_eager(lambda a: torch.ops.prims.convert_element_type(a, torch.int32), torch.randn(20) * 10)
    assert_as_eager(lambda a: torch.ops.prims.convert_element_type(a, torch.bool), SPECIAL)


def test_operators_on_lists_are_those_of_eager() -> None:
    xs = [torch.rand(3), torch.rand(2, 4)]
    ys = [torch.rand(3), torch.rand(2, 4)]

    def step(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        first = aten._foreach_add.List([a, b], [c, d], alpha=2)
        second = aten._foreach_mul.Scalar(first, 3.0)
        third = aten._foreach_sqrt(second)
        fourth = aten._foreach_addcdiv.ScalarList(third, [a, b], [c, d], [0.5, 0.25])
        result: list[Tensor] = aten._foreach_lerp.Scalar(fourth, first, 0.1)
        return result

    assert_as_eager(step, *xs, *ys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nextafter_and_erfinv(dtype: torch.dtype) -> None:
    values = torch.cat([SPECIAL[:10].to(dtype), torch.tensor([torch.finfo(dtype).tiny], dtype=dtype)])
    a, b = torch.meshgrid(values, values, indexing="ij")
    lowered = assert_as_eager(aten.nextafter, a, b)
    assert len(lowered.graph.nodes) == 1
    assert_as_eager(aten.nextafter, torch.randn(20, dtype=dtype), torch.randn(20, dtype=dtype), tolerance=0.0)
    inside = torch.linspace(-1, 1, 101, dtype=dtype)
    assert_as_eager(aten.erfinv, torch.cat([inside, values]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nextafter_of_16_bits(dtype: torch.dtype) -> None:
    """Of computed values, too: their neighbours are those of what they round to."""
    edges = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).tiny, torch.finfo(dtype).tiny / 8])
    values = torch.cat([SPECIAL[:10], edges]).to(dtype)
    a, b = torch.meshgrid(values, values, indexing="ij")
    assert_as_eager(aten.nextafter, a, b, tolerance=0.0)
    assert_as_eager(aten.nextafter, torch.randn(20).to(dtype), torch.randn(20).to(dtype), tolerance=0.0)
    assert_as_eager(
        lambda a, b: aten.nextafter(a * 1.1, b),
        torch.randn(20).to(dtype),
        torch.randn(20).to(dtype),
        tolerance=0.0,
    )


def test_erfinv_where_erf_is_flat() -> None:
    near_one = 1 - torch.arange(1, 2000) * 2.0**-24
    values = torch.cat([near_one, -near_one, torch.linspace(-1, 1, 4001), torch.logspace(-30, -1, 200)])
    lowered = trace_and_lower(aten.erfinv, (values,))
    (found,) = interpret_graph(lowered.graph, (values,), lowered.constants)
    torch.testing.assert_close(found, values.double().erfinv().float(), rtol=1e-6, atol=0)


def test_erfinv_of_other_types() -> None:
    assert_as_eager(aten.erfinv, torch.linspace(-1, 1, 20).bfloat16())
    assert_as_eager(aten.erfinv, torch.tensor([-1, 0, 1, 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_ldexp_by_whole_exponents(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    edges = [
        limits.tiny,
        limits.max,
        limits.smallest_normal * 0.625,
        limits.smallest_normal * limits.eps,
        1.5,
    ]
    values = torch.cat([SPECIAL.to(dtype), torch.tensor(edges, dtype=dtype), torch.randn(20).to(dtype)])
    exponents = torch.cat([torch.tensor([0, 1, -1, 2**31 - 1, -(2**31)]), torch.randint(-2200, 2200, (300,))])
    for whole in (torch.int64, torch.int32):
        lowered = assert_as_eager(aten.ldexp, values.view(-1, 1), exponents.to(whole), tolerance=0.0)
        assert len(lowered.graph.nodes) == 1
    assert_as_eager(aten.ldexp, values.view(-1, 1), torch.arange(-128, 128, dtype=torch.int8), tolerance=0.0)


def test_types_and_layouts_of_ldexp() -> None:
    value, exponents = torch.randn(2, 1, 4).bfloat16(), torch.randint(-9, 9, (2, 4, 3)).transpose(1, 2)
    for a in (value, value.double(), torch.tensor(1.5).half(), torch.randn(2, 4, 3).mT):
        for b in (exponents, (exponents + 9).to(torch.uint8).contiguous(), torch.tensor(3)):
            assert_as_eager(aten.ldexp, a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digamma_is_eagers_at_poles_and_elsewhere(dtype: torch.dtype) -> None:
    inside = torch.cat([torch.linspace(-20.3, 30.1, 301), torch.tensor([1e-30, -1e-30, 1e10, -1e10, 10.0])])
    lowered = assert_as_eager(
        aten.digamma, torch.cat([inside, SPECIAL[:10], torch.arange(-3.0, 12.0)]).to(dtype)
    )
    assert len(lowered.graph.nodes) == 1
    assert_as_eager(aten.digamma, torch.arange(1, 30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_frexp_is_eagers_bit_for_bit(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    edges = [limits.tiny, -limits.tiny, limits.max, limits.smallest_normal / 8, 1.0, -0.5, 3.75]
    values = torch.cat([SPECIAL.to(dtype), torch.tensor(edges, dtype=dtype), torch.randn(50).to(dtype)])
    lowered = assert_as_eager(aten.frexp.Tensor, values, tolerance=0.0)
    assert len(lowered.graph.nodes) == 2
