"""Random numbers of other distributions than the uniform one, as functions of a `Stream`'s words.

Normal numbers come in pairs (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958),
others from the inverse of their distribution (Devroye, "Non-Uniform Random Variate Generation", 1986, chapter
II).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.scalar import Scalar, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, Value, device_text
from coilwork_lowering.ops.elementwise import overloads, scalar_operand
from coilwork_lowering.ops.random import Stream, next_stream, require_generated
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, mul, sub, to_dtype

Point: TypeAlias = tuple[Expr, ...]
# A number at random, from the operator's own stream, at a point of its result.
Draw: TypeAlias = Callable[[Stream, Point, Shape], Scalar]
_FLOATS: Final = (DType.F32, DType.BF16, DType.F16)
# Rounded to 16 bits, what is drawn from an interval would reach its end.
_WIDE: Final = (DType.F32,)
_MOST_INTEGERS: Final = 1 << 31


def _draw_tensor(builder: Builder, call: Call, draw: Draw, dtypes: tuple[DType, ...]) -> Value:
    """A new tensor of numbers that `draw` makes.

    Raises:
        NotLowered: they are eager's to draw, or of another type.
    """
    if call.arguments.get("generator") is not None:
        raise NotLowered("numbers of a generator of the caller's")
    fake: Any = call.fake
    device = device_text(fake.device)
    require_generated(builder, device)
    dtype, shape = call.dtype, call.shape(builder)
    if dtype not in dtypes or any(as_int(extent) == 0 for extent in shape):
        raise NotLowered(f"random numbers of type {dtype.text}, or none")
    stream = next_stream(builder, device)
    return builder.pointwise(
        shape,
        dtype,
        device,
        lambda point: to_dtype(draw(stream, point, shape), dtype),
        strides=call.strides(builder),
        name=call.node.name,
    )


def _number(call: Call, name: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """A parameter of a distribution.

    Raises:
        NotLowered: it is known at run time only, or eager refuses it.
    """
    value = call.arguments[name]
    if not isinstance(value, int | float) or not value > above or not value >= least:
        raise NotLowered(f"{name} is no number that is allowed")
    return float(value)


def _f32(value: float) -> Scalar:
    return const(value, DType.F32)


def _scale_sample(value: Scalar, factor: float, offset: float) -> Scalar:
    return add(mul(value, _f32(factor)), _f32(offset))


def _standard_normal(builder: Builder, call: Call) -> Value:
    return _draw_tensor(builder, call, lambda stream, point, shape: stream.normal(point, shape), _FLOATS)


def _normal(builder: Builder, call: Call) -> Value:
    std, mean = _number(call, "std", least=0.0), call.arguments["mean"]

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        spread = mul(stream.normal(point, shape), _f32(std))
        return add(spread, scalar_operand(builder, mean, point, DType.F32))

    return _draw_tensor(builder, call, draw, _FLOATS)


def _log_normal(builder: Builder, call: Call) -> Value:
    mean, std = _number(call, "mean"), _number(call, "std", above=0.0)
    return _draw_tensor(
        builder,
        call,
        lambda stream, point, shape: op("exp", _scale_sample(stream.normal(point, shape), std, mean)),
        _FLOATS,
    )


def _uniform(builder: Builder, call: Call) -> Value:
    first = _number(call, "from")
    length = _number(call, "to", least=first) - first
    return _draw_tensor(
        builder,
        call,
        lambda stream, point, shape: _scale_sample(stream.uniform(point, shape), length, first),
        _WIDE,
    )


def _exponential(builder: Builder, call: Call) -> Value:
    rate = _number(call, "lambd", above=0.0)

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return div(op("neg", op("log", stream.inside(point, shape))), _f32(rate))

    return _draw_tensor(builder, call, draw, _FLOATS)


def _cauchy(builder: Builder, call: Call) -> Value:
    median, sigma = _number(call, "median"), _number(call, "sigma", above=0.0)

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        angle = mul(sub(stream.inside(point, shape), _f32(0.5)), _f32(math.pi))
        return _scale_sample(op("tan", angle), sigma, median)

    return _draw_tensor(builder, call, draw, _FLOATS)


def _geometric(builder: Builder, call: Call) -> Value:
    p = _number(call, "p", above=0.0)
    if not p < 1:
        raise NotLowered("a geometric distribution of certain events")

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return op("ceil", div(op("log", stream.inside(point, shape)), _f32(math.log1p(-p))))

    return _draw_tensor(builder, call, draw, _WIDE)


def _integers(builder: Builder, call: Call) -> Value:
    low = call.integer("low") if "low" in call.arguments else 0
    count = call.integer("high") - low
    if not 0 < count <= _MOST_INTEGERS:
        raise NotLowered("an empty range, or a large one")

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return add(stream.below(point, shape, count), const(low, DType.I64))

    return _draw_tensor(builder, call, draw, (DType.I64, DType.I32))


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("randn randn_like"), _standard_normal),
    Rule(overloads("normal_functional normal.float_float normal.Tensor_float"), _normal),
    Rule(overloads("log_normal"), _log_normal),
    Rule(overloads("uniform"), _uniform),
    Rule(overloads("exponential"), _exponential),
    Rule(overloads("cauchy"), _cauchy),
    Rule(overloads("geometric"), _geometric),
    Rule(overloads("randint randint.low randint_like randint_like.low_dtype"), _integers),
)
