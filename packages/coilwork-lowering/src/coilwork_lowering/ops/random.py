"""Random numbers as functions of a seed, of the operator's number in its graph, and of an element's position.

The words come from Philox2x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). A
graph draws one seed per device from torch's generator at each call, so `torch.manual_seed` makes
calls repeat.
The numbers are not eager's, but none of them has to lie in memory between two kernels.

A `Stream` gives uniform and normal numbers. Normal ones come in pairs (Box and Muller, "A Note on the
Generation of Random Normal Deviates", 1958), those of other distributions from the inverse of their
distribution function (Devroye, "Non-Uniform Random Variate Generation", 1986, chapter II).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from coilwork_ir.buffers import DeviceValue, ListValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all, provably_le
from coilwork_ir.loops import Extern
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue, Value, format_device, make_whole_value
from coilwork_lowering.ops.elementwise import overloads, scalar_operand
from coilwork_lowering.ops.scattering.elements import flatten
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, index, lt, mul, select, sub, to_dtype
from coilwork_lowering.torch_compat.philox import DROPOUTS, HALF, MULTIPLIER, ROUNDS, SEED_END, WEYL, WORD

# Bits of a number at random: as many as f32 holds exactly.
_BITS: Final = 24


def philox(counter: tuple[Scalar, Scalar], key: Scalar) -> tuple[Scalar, Scalar]:
    """Return two random words from two words and a key, all `u32`."""
    first, second = counter
    factor, half = const(MULTIPLIER, DType.U64), const(32, DType.U64)
    for number in range(ROUNDS):
        wide = mul(cast(first, DType.U64), factor)
        step = const(number * WEYL % WORD, DType.U32)
        mixed = op("bitwise_xor", second, add(key, step) if number else key)
        first = op("bitwise_xor", cast(op("rshift", wide, half), DType.U32), mixed)
        second = cast(wide, DType.U32)
    return first, second


def require_generated(builder: Builder, device: str) -> None:
    """Leave random numbers to ATen where the options say so.

    Raises:
        NotLowered: they do, on this device.
    """
    if not builder.options.draws(device.partition(":")[0]):
        raise NotLowered("random numbers as eager draws them")


def graph_seed(builder: Builder, device: str) -> TensorValue:
    """Return the seed of this graph's numbers on `device`, as `i64[1]`; the first call draws it by torch."""
    if device not in builder.seeds:
        output = builder.declare((as_expr(1),), DType.I64, device, name="seed")
        builder.add(
            Extern(
                target="aten.randint.low",
                args=(as_expr(0), as_expr(SEED_END), ListValue((as_expr(1),))),
                kwargs=(("dtype", DType.I64), ("device", DeviceValue(device))),
                outputs=(output,),
                random=True,
                origins=builder.origins,
            )
        )
        builder.seeds[device] = make_whole_value(output)
    return builder.seeds[device]


class Stream:
    """The numbers that one operator makes of `seed`, `i64[1]`. Those of other operators have another
    `number`, of 16 bits.
    """

    def __init__(self, builder: Builder, seed: TensorValue, number: int) -> None:
        self._builder = builder
        self._seed = seed
        self._number = number

    def _words(self, position: Scalar, shared: int, *, narrow: bool) -> tuple[Scalar, Scalar]:
        """Return the two words that belong to `position`, which 2**shared neighbours share.

        A thread of a GPU loads and stores 16 bytes of neighbours, and computes their words once: the compiler
        sees that their positions differ in bits that the counter leaves out.
        """
        seed = self._builder.read(self._seed, (as_expr(0),))
        high = op("rshift", seed, const(32, DType.I64))
        second = op("bitwise_xor", cast(high, DType.U32), const(self._number, DType.U32))
        if narrow:
            return philox((_counter(cast(position, DType.U32), shared), second), cast(seed, DType.U32))
        counter = _counter(position, shared)
        above = cast(op("rshift", counter, const(32, DType.I64)), DType.U32)
        # streams are told apart by the low bits, positions beyond a word by the high ones
        second = op("bitwise_xor", second, op("lshift", above, const(16, DType.U32)))
        return philox((cast(counter, DType.U32), second), cast(seed, DType.U32))

    def draw_uniform(self, point: tuple[Expr, ...], shape: Shape) -> Scalar:
        """Return an `f32` from 0 up to 1, exclusive, at `point` of a tensor of `shape`: 24 bits of a word."""
        return _fraction(self._word(point, shape))

    def draw_between_0_and_1(self, point: tuple[Expr, ...], shape: Shape) -> Scalar:
        """Return an `f32` between 0 and 1, both exclusive, and as far from one as from the other: 23
        bits of a word.
        """
        bits = cast(op("rshift", self._word(point, shape), const(33 - _BITS, DType.U32)), DType.I32)
        return mul(add(cast(bits, DType.F32), const(0.5, DType.F32)), const(2.0 ** (1 - _BITS), DType.F32))

    def draw_below(self, point: tuple[Expr, ...], shape: Shape, count: int) -> Scalar:
        """Return an `i64` from 0 up to `count`, exclusive, which is at most 2**31: the upper word of a
        product.
        """
        wide = mul(cast(self._word(point, shape), DType.U64), const(count, DType.U64))
        return cast(op("rshift", wide, const(32, DType.U64)), DType.I64)

    def draw_normal(self, point: tuple[Expr, ...], shape: Shape) -> Scalar:
        """Return an `f32` of the standard normal distribution, at most 6.7 from 0. Two elements share a
        pair.
        """
        position = index(flatten(point, shape))
        first, second = self._words(position, 1, narrow=provably_le(multiply_all(shape), WORD))
        low = const((1 << (32 - _BITS)) - 1, DType.U32)
        # all 32 bits, for small numbers are what makes large ones
        rest = cast(cast(op("bitwise_and", first, low), DType.I32), DType.F32)
        fraction = mul(add(rest, const(0.5, DType.F32)), const(2.0**-32, DType.F32))
        radius = op("sqrt", mul(const(-2.0, DType.F32), op("log", add(_fraction(first), fraction))))
        angle = mul(_fraction(second), const(2 * math.pi, DType.F32))
        return mul(radius, select(_bit(position, 0), op("sin", angle), op("cos", angle)))

    def _word(self, point: tuple[Expr, ...], shape: Shape) -> Scalar:
        """Return the word of `point`."""
        position = index(flatten(point, shape))
        words = self._words(position, 1, narrow=provably_le(multiply_all(shape), WORD))
        return select(_bit(position, 0), words[1], words[0])

    def happens(self, point: tuple[Expr, ...], shape: Shape, probability: float) -> Scalar:
        """True with `probability`, which is rounded to a multiple of 2**-16: half a word each."""
        position = index(flatten(point, shape))
        words = self._words(position, 2, narrow=provably_le(multiply_all(shape), WORD))
        word = select(_bit(position, 1), words[1], words[0])
        half = const(HALF, DType.U32)
        upper = op("rshift", word, half)
        lower = op("bitwise_and", word, const((1 << HALF) - 1, DType.U32))
        bits = cast(select(_bit(position, 0), upper, lower), DType.I32)
        return lt(bits, const(round(probability * (1 << HALF)), DType.I32))


def _fraction(word: Scalar) -> Scalar:
    """Return the first bits of a word, as an `f32` from 0 up to 1."""
    bits = cast(op("rshift", word, const(32 - _BITS, DType.U32)), DType.I32)
    return mul(cast(bits, DType.F32), const(2.0**-_BITS, DType.F32))


def _counter(position: Scalar, shared: int) -> Scalar:
    """`position` without its lowest `shared` bits."""
    return op("rshift", position, const(shared, position.dtype))


def _bit(position: Scalar, number: int) -> Scalar:
    """Tell if bit `number` of `position` is set."""
    bit = op("bitwise_and", cast(position, DType.I32), const(1 << number, DType.I32))
    return op("ne", bit, const(0, DType.I32))


Point: TypeAlias = tuple[Expr, ...]
# A number at random, from the operator's own stream, at a point of its result.
Draw: TypeAlias = Callable[[Stream, Point, Shape], Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The numbers that generated code draws for one operator: `make` computes its result from a stream of its
    own.

    `is_dropout`: it is numbered among the dropouts of its graph, not among the other operators.
    """

    device: str
    make: Callable[[Stream], Value]
    is_dropout: bool = False


# Says how an operator draws, before anything is built. Raises NotLowered where ATen draws.
PlanDrawing: TypeAlias = Callable[[Builder, Call], Drawing]


def take_stream(builder: Builder, drawing: Drawing) -> Stream:
    """Return the next stream of the graph, which is the operator's own."""
    seed = graph_seed(builder, drawing.device)
    if drawing.is_dropout:
        builder.dropouts += 1
        return Stream(builder, seed, DROPOUTS + builder.dropouts - 1)
    builder.streams += 1
    return Stream(builder, seed, builder.streams - 1)


@dataclass(frozen=True, slots=True)
class DrawingRule:
    """The rule that makes what `plan` says, from a stream of the operator's own."""

    plan: PlanDrawing

    def __call__(self, builder: Builder, call: Call) -> Value:
        drawing = self.plan(builder, call)
        return drawing.make(take_stream(builder, drawing))


def skip_stream(builder: Builder, call: Call, lower: Lower | None) -> None:
    """Leave out the stream of `call`, which falls back to ATen, so that other operators keep theirs.

    `lower` would lower it. The graph draws its seed here, as it would if code were generated for `call`.
    """
    if not isinstance(lower, DrawingRule):
        return
    try:
        drawing = lower.plan(builder, call)
    except NotLowered:
        return
    take_stream(builder, drawing)


def _probability(value: Value) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise NotLowered("a probability that is no number")
    return float(value)


def _refuse_own_generator(call: Call) -> None:
    """Raise NotLowered where the caller gives a generator."""
    if call.arguments.get("generator") is not None:
        raise NotLowered("numbers of a generator of the caller's")


def _native_dropout(builder: Builder, call: Call) -> Drawing:
    value, p, train = call.tensor("input"), _probability(call["p"]), call["train"]
    if train is False or not value.dtype.is_float:
        raise NotLowered("dropout that keeps everything")
    require_generated(builder, value.device)
    result, mask = call.result
    shape = value.shape
    if any(as_int(extent) == 0 for extent in shape):
        raise NotLowered("dropout of nothing")

    def make(stream: Stream) -> Value:
        kept = builder.pointwise(
            shape,
            DType.BOOL,
            value.device,
            lambda point: stream.happens(point, shape, 1 - p),
            strides=builder.result_strides(mask),
            name=f"{call.node.name}_mask",
        )
        wide = value.dtype.compute
        scale = const(0.0 if p == 1 else 1 / (1 - p), wide)

        def body(point: tuple[Expr, ...]) -> Scalar:
            # a product, as in eager: what is dropped becomes NaN if it was not finite
            chosen = mul(to_dtype(builder.read(value, point), wide), cast(builder.read(kept, point), wide))
            return to_dtype(mul(chosen, scale), value.dtype)

        strides = builder.result_strides(result)
        dropped = builder.pointwise(
            shape, value.dtype, value.device, body, strides=strides, name=call.node.name
        )
        return (dropped, kept)

    return Drawing(device=value.device, make=make, is_dropout=True)


def _bernoulli(builder: Builder, call: Call) -> Drawing:
    probability = _probability(call["p"])

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return stream.happens(point, shape, probability)

    return _plan_tensor(builder, call, draw)


def _lower_seed(builder: Builder, call: Call) -> Value:
    return graph_seed(builder, call.tensor("like").device)


def _recompute_mask(builder: Builder, call: Call) -> Value:
    shape = call.shape(builder)
    stream = Stream(builder, call.tensor("seed"), call.integer("stream"))
    probability = _probability(call["probability"])
    return builder.pointwise(
        shape,
        DType.BOOL,
        call.device,
        lambda point: stream.happens(point, shape, probability),
        strides=call.strides(builder),
        name=call.node.name,
    )


# ---- Other distributions ----


_FLOATS: Final = (DType.F32, DType.BF16, DType.F16)
# Rounded to 16 bits, what is drawn from an interval would reach its end.
_WIDE: Final = (DType.F32,)
_MOST_INTEGERS: Final = 1 << 31


def _plan_tensor(
    builder: Builder, call: Call, draw: Draw, dtypes: tuple[DType, ...] | None = None
) -> Drawing:
    """Return a new tensor of numbers that `draw` makes, of one of `dtypes`.

    Raises:
        NotLowered: they are eager's to draw, or of another type.
    """
    _refuse_own_generator(call)
    fake: Any = call.fake
    device = format_device(fake.device)
    require_generated(builder, device)
    dtype, shape = call.dtype, call.shape(builder)
    if (dtypes is not None and dtype not in dtypes) or any(as_int(extent) == 0 for extent in shape):
        raise NotLowered(f"random numbers of type {dtype.text}, or none")

    def make(stream: Stream) -> Value:
        return builder.pointwise(
            shape,
            dtype,
            device,
            lambda point: to_dtype(draw(stream, point, shape), dtype),
            strides=call.strides(builder),
            name=call.node.name,
        )

    return Drawing(device=device, make=make)


def _number(call: Call, name: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Return a parameter of a distribution.

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


def _rand(builder: Builder, call: Call) -> Drawing:
    return _plan_tensor(builder, call, lambda stream, point, shape: stream.draw_uniform(point, shape), _WIDE)


def _standard_normal(builder: Builder, call: Call) -> Drawing:
    return _plan_tensor(builder, call, lambda stream, point, shape: stream.draw_normal(point, shape), _FLOATS)


def _normal(builder: Builder, call: Call) -> Drawing:
    std, mean = _number(call, "std", least=0.0), call.arguments["mean"]

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        spread = mul(stream.draw_normal(point, shape), _f32(std))
        return add(spread, scalar_operand(builder, mean, point, DType.F32))

    return _plan_tensor(builder, call, draw, _FLOATS)


def _log_normal(builder: Builder, call: Call) -> Drawing:
    mean, std = _number(call, "mean"), _number(call, "std", above=0.0)
    return _plan_tensor(
        builder,
        call,
        lambda stream, point, shape: op("exp", _scale_sample(stream.draw_normal(point, shape), std, mean)),
        _FLOATS,
    )


def _uniform(builder: Builder, call: Call) -> Drawing:
    first = _number(call, "from")
    length = _number(call, "to", least=first) - first
    return _plan_tensor(
        builder,
        call,
        lambda stream, point, shape: _scale_sample(stream.draw_uniform(point, shape), length, first),
        _WIDE,
    )


def _exponential(builder: Builder, call: Call) -> Drawing:
    rate = _number(call, "lambd", above=0.0)

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return div(op("neg", op("log", stream.draw_between_0_and_1(point, shape))), _f32(rate))

    return _plan_tensor(builder, call, draw, _FLOATS)


def _cauchy(builder: Builder, call: Call) -> Drawing:
    median, sigma = _number(call, "median"), _number(call, "sigma", above=0.0)

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        angle = mul(sub(stream.draw_between_0_and_1(point, shape), _f32(0.5)), _f32(math.pi))
        return _scale_sample(op("tan", angle), sigma, median)

    return _plan_tensor(builder, call, draw, _FLOATS)


def _geometric(builder: Builder, call: Call) -> Drawing:
    p = _number(call, "p", above=0.0)
    if not p < 1:
        raise NotLowered("a geometric distribution of certain events")

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return op("ceil", div(op("log", stream.draw_between_0_and_1(point, shape)), _f32(math.log1p(-p))))

    return _plan_tensor(builder, call, draw, _WIDE)


def _integers(builder: Builder, call: Call) -> Drawing:
    low = call.integer("low") if "low" in call.arguments else 0
    count = call.integer("high") - low
    if not 0 < count <= _MOST_INTEGERS:
        raise NotLowered("an empty range, or a large one")

    def draw(stream: Stream, point: Point, shape: Shape) -> Scalar:
        return add(stream.draw_below(point, shape, count), const(low, DType.I64))

    return _plan_tensor(builder, call, draw, (DType.I64, DType.I32))


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("native_dropout"), DrawingRule(_native_dropout)),
    Rule(overloads("rand rand_like"), DrawingRule(_rand)),
    Rule(overloads("bernoulli.p"), DrawingRule(_bernoulli)),
    Rule(overloads("randn randn_like"), DrawingRule(_standard_normal)),
    Rule(overloads("normal_functional normal.float_float normal.Tensor_float"), DrawingRule(_normal)),
    Rule(overloads("log_normal"), DrawingRule(_log_normal)),
    Rule(overloads("uniform"), DrawingRule(_uniform)),
    Rule(overloads("exponential"), DrawingRule(_exponential)),
    Rule(overloads("cauchy"), DrawingRule(_cauchy)),
    Rule(overloads("geometric"), DrawingRule(_geometric)),
    Rule(overloads("randint randint.low randint_like randint_like.low_dtype"), DrawingRule(_integers)),
    Rule(("coilwork.seed.default",), _lower_seed),
    Rule(("coilwork.kept.default",), _recompute_mask),
)
