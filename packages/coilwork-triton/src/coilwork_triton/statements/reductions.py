"""Write each row of the reduction table, in registers (persistent) and over a loop.

A looped reduction keeps one accumulator per lane of its block and combines the lanes once, after the loop:
that costs no communication per step. `REDUCTIONS` covers `coilwork_ir.ops.REDUCE_OPS`; a test shows that
there is no hole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.syntax.python import (
    Binary,
    Call,
    Expression,
    Name,
    Number,
    Tuple,
    Unary,
    call,
    method,
    number,
)
from coilwork_triton.text.language import (
    ALL_NANS,
    Writer,
    exact_constant,
    extents,
    fill_shape,
    free_constant,
    get_triton_type,
    largest,
    smallest,
    tl,
    tl_name,
)

_NO_POSITION: Final = 2**31 - 1
_NO_POSITION_WIDE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One reduction of a kernel.

    Attributes:
        dtype: type of the values combined.
        value: the values, a block that spans the reduction axis.
        valid: which of them count; None if all do.
        explicit: `valid` depends on data, not only on where the reduction range ends.
        shape: of the block of values; `mask_shape` that of `valid`.
        axis: the reduction axis.
        count: how many elements are combined, unless `explicit`, as a scalar of `dtype` (Welford only).
        position: flat position along the reduced ranges (argmin and argmax only).
        ascending: positions grow from one step of a loop to the next.
        lanes: position in a loop's first block, along the reduction axis.
        chunk: neighbours along the reduction axis, the only axis, that one thread has together in a block of
            a loop.
        index_dtype: type of positions.
    """

    dtype: DType
    value: Expression
    valid: Expression | None
    explicit: bool
    shape: tuple[str, ...]
    mask_shape: tuple[str, ...]
    axis: int
    count: Expression
    position: Expression
    ascending: bool
    lanes: Expression
    chunk: int
    index_dtype: DType

    def fill_invalid(self, fill: Expression) -> Expression:
        """Return the values, `fill` where they do not count."""
        if self.valid is None:
            return self.value
        return tl("where", self.valid, self.value, fill)

    def apply_along_axis(self, function: str, *args: Expression) -> Expression:
        """`tl.function` along the reduction axis; the axis stays, with extent 1, if there are others."""
        found = Call(tl_name(function), args[:1] + (Number(self.axis),) + args[1:])
        if len(self.shape) == 1:
            return found
        return Call(found.function, found.args, (("keep_dims", Number(True)),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The functions that write one kind.

    Attributes:
        persistent: results from one block that holds all values.
        start: names of accumulators, initialised, before the loop.
        step: update the accumulators with one block of values.
        finish: results from the accumulators, after the loop.
    """

    persistent: Callable[[Site, Writer], tuple[Expression, ...]]
    start: Callable[[Site, Writer], tuple[Name, ...]]
    step: Callable[[Site, Writer, tuple[Name, ...]], None]
    finish: Callable[[Site, Writer, tuple[Name, ...]], tuple[Expression, ...]]


def _propagate_nans(function: str, a: Expression, b: Expression) -> Expression:
    return tl(function, a, b, propagate_nan=ALL_NANS)


def _reduce(site: Site, writer: Writer, combine: str, value: Expression) -> Expression:
    return site.apply_along_axis("reduce", value, writer.device(combine))


def _narrow_result(site: Site, result: Expression) -> Expression:
    # Triton's sum and xor_sum widen narrow integers
    if site.dtype.is_integer and site.dtype.itemsize < 4:
        return method(result, "to", get_triton_type(site.dtype))
    return result


def _simple(
    identity: Callable[[DType], int | float | bool],
    update: Callable[[Site, Expression, Expression], Expression],
    collapse: Callable[[Site, Writer, Expression], Expression],
    stem: str,
) -> Reduction:
    """Return a kind with one accumulator that starts at an identity, which also stands in for values that
    don't count.
    """

    def fill(site: Site) -> Expression:
        return free_constant(identity(site.dtype), site.dtype)

    def persistent(site: Site, writer: Writer) -> tuple[Expression, ...]:
        return (writer.bind(stem, collapse(site, writer, site.fill_invalid(fill(site)))),)

    def start(site: Site, writer: Writer) -> tuple[Name, ...]:
        return (writer.bind(f"{stem}_lanes", fill_shape(site.shape, identity(site.dtype), site.dtype)),)

    def step(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> None:
        writer.assign(lanes, update(site, lanes[0], site.fill_invalid(fill(site))))

    def finish(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> tuple[Expression, ...]:
        return (writer.bind(stem, collapse(site, writer, lanes[0])),)

    return Reduction(persistent=persistent, start=start, step=step, finish=finish)


def _extremum(function: str, identity: Callable[[DType], int | float | bool], on_bool: str) -> Reduction:
    def update(site: Site, lanes: Expression, value: Expression) -> Expression:
        if site.dtype.is_bool:
            return Binary(on_bool, lanes, value)
        return _propagate_nans(function, lanes, value) if site.dtype.is_float else tl(function, lanes, value)

    def collapse(site: Site, writer: Writer, value: Expression) -> Expression:
        short = function.removesuffix("imum")
        if site.dtype.is_bool:
            return _reduce_bools(site, short, value)
        return _reduce(site, writer, f"combine_{short}" + ("_nan" if site.dtype.is_float else ""), value)

    return _simple(identity, update, collapse, function.removesuffix("imum"))


def _reduce_bools(site: Site, function: str, value: Expression) -> Expression:
    widened = method(value, "to", tl_name("int32"))
    return Binary("!=", site.apply_along_axis(function, widened), Number(0))


def _logical(name: str, identity: bool, operator: str, function: str) -> Reduction:
    return _simple(
        lambda _: identity,
        lambda _, lanes, value: Binary(operator, lanes, value),
        lambda site, _, value: _reduce_bools(site, function, value),
        name,
    )


def _absent_position(site: Site) -> int:
    return _NO_POSITION_WIDE if site.index_dtype is DType.I64 else _NO_POSITION


def _arg(which: str, identity: Callable[[DType], int | float | bool]) -> Reduction:
    def comparable(site: Site) -> tuple[Expression, DType]:
        # bool has no ordering on every target
        if site.dtype.is_bool:
            return method(site.value, "to", tl_name("int32")), DType.I32
        return site.value, site.dtype

    def mask_pair(site: Site) -> tuple[Expression, Expression]:
        value, dtype = comparable(site)
        position = site.position
        if site.valid is None:
            return value, tl("broadcast_to", position, extents(site.shape))
        nowhere = exact_constant(_absent_position(site), site.index_dtype)
        kept = tl("where", site.valid, value, free_constant(identity(dtype), dtype))
        where = tl("where", site.valid, position, nowhere)
        return kept, tl("broadcast_to", where, extents(site.shape))

    def collapse(
        site: Site, writer: Writer, value: Expression, position: Expression
    ) -> tuple[Expression, ...]:
        pair = site.apply_along_axis("reduce", Tuple((value, position)), writer.device(f"combine_{which}"))
        _, found = writer.bind_all(("best", which), pair)
        return (writer.bind(which, method(found, "to", tl_name("int64"))),)

    def persistent(site: Site, writer: Writer) -> tuple[Expression, ...]:
        # the extremum, then the first position that has it: a third of the instructions of comparing pairs.
        # If it is a NaN, all NaNs have it, and there are none beside any other
        _, dtype = comparable(site)
        kept, where = mask_pair(site)
        value = kept if isinstance(kept, Name) else writer.bind("value", kept)
        extremum = "max" if which == "argmax" else "min"
        combine = f"combine_{extremum}" + ("_nan" if dtype.is_float else "")
        best = writer.bind("best", _reduce(site, writer, combine, value))
        has_it: Expression = Binary("==", value, best)
        if dtype.is_float:
            has_it = Binary("|", has_it, Binary("!=", value, value))
        nowhere = exact_constant(_absent_position(site), site.index_dtype)
        found = site.apply_along_axis("min", tl("where", has_it, where, nowhere))
        return (writer.bind(which, method(found, "to", tl_name("int64"))),)

    def start(site: Site, writer: Writer) -> tuple[Name, ...]:
        dtype = comparable(site)[1]
        best = writer.bind("best_lanes", fill_shape(site.shape, identity(dtype), dtype))
        if site.explicit or not site.ascending:
            first = fill_shape(site.shape, _absent_position(site), site.index_dtype)
        else:
            # a lane whose values are all the identity reports the first of them
            first = tl(
                "broadcast_to",
                method(site.lanes, "to", get_triton_type(site.index_dtype)),
                extents(site.shape),
            )
        return (best, writer.bind("where_lanes", first))

    def step(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> None:
        kept, where = mask_pair(site)
        if site.explicit or not site.ascending:
            writer.assign(lanes, Call(writer.device(f"combine_{which}"), (*lanes, kept, where)))
            return
        # positions only grow within a lane, so an equal value never replaces an earlier one
        value = writer.bind("value", kept)
        improves: Expression = Binary("<" if which == "argmin" else ">", value, lanes[0])
        if comparable(site)[1].is_float:
            no_better = Binary(">=" if which == "argmin" else "<=", value, lanes[0])
            improves = Binary("&", Unary("~", no_better), Binary("==", lanes[0], lanes[0]))
        taken = writer.bind("taken", improves)
        best, found = lanes
        writer.assign((best,), tl("where", taken, value, best))
        writer.assign((found,), tl("where", taken, site.position, found))

    def finish(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> tuple[Expression, ...]:
        return collapse(site, writer, *lanes)

    return Reduction(persistent=persistent, start=start, step=step, finish=finish)


def _welford() -> Reduction:
    """Two sums in registers; over a loop Welford's update per lane, combined as Chan et al. do."""

    def zero(site: Site) -> Expression:
        return free_constant(0, site.dtype)

    def total(site: Site, writer: Writer, weight: Expression) -> Expression:
        one = free_constant(1, site.dtype)
        return (
            writer.bind("count", tl("maximum", site.apply_along_axis("sum", weight), one))
            if site.explicit
            else site.count
        )

    def persistent(site: Site, writer: Writer) -> tuple[Expression, ...]:
        count = site.count
        if site.explicit and site.valid is not None:
            weight = tl(
                "broadcast_to", method(site.valid, "to", get_triton_type(site.dtype)), extents(site.shape)
            )
            count = total(site, writer, weight)
        mean = writer.bind(
            "mean", Binary("/", site.apply_along_axis("sum", site.fill_invalid(zero(site))), count)
        )
        centred: Expression = Binary("-", site.value, mean)
        if site.valid is not None:
            centred = tl("where", site.valid, centred, zero(site))
        bound = writer.bind("centred", centred)
        return (mean, writer.bind("m2_", site.apply_along_axis("sum", Binary("*", bound, bound))))

    def start(site: Site, writer: Writer) -> tuple[Name, ...]:
        mean = writer.bind("mean_lanes", fill_shape(site.shape, 0, site.dtype))
        m2 = writer.bind("m2_lanes", fill_shape(site.shape, 0, site.dtype))
        # where no point is left out, lanes have equally many
        shape = () if site.valid is None else site.mask_shape
        weight = writer.bind("weight_lanes", fill_shape(shape, 0, site.dtype))
        return (mean, m2, weight)

    def step(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> None:
        mean, m2, weight = lanes
        if site.valid is None:
            writer.assign((weight,), Binary("+", weight, number(1.0)))
        else:
            writer.assign(
                (weight,), Binary("+", weight, method(site.valid, "to", get_triton_type(site.dtype)))
            )
        # one division for all lanes of a row of the mask; before its first point a lane has a weight of 0,
        # and what follows is not taken
        share = writer.bind("share", Binary("/", number(1.0), weight))
        delta = writer.bind("delta", Binary("-", site.value, mean))
        moved = writer.bind("moved", Binary("+", mean, Binary("*", delta, share)))
        grown: Expression = Binary("+", m2, Binary("*", delta, Binary("-", site.value, moved)))
        kept: Expression = moved
        if site.valid is not None:
            grown, kept = tl("where", site.valid, grown, m2), tl("where", site.valid, moved, mean)
        writer.assign((m2,), grown)
        writer.assign((mean,), kept)

    def finish(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> tuple[Expression, ...]:
        mean, m2, weight = lanes
        alike = site.valid is not None and site.mask_shape == site.shape
        count = total(site, writer, weight if alike else tl("broadcast_to", weight, extents(site.shape)))
        overall = writer.bind(
            "mean", Binary("/", site.apply_along_axis("sum", Binary("*", mean, weight)), count)
        )
        apart = writer.bind("apart", Binary("-", mean, overall))
        spread = Binary("+", m2, Binary("*", weight, Binary("*", apart, apart)))
        return (overall, writer.bind("m2_", site.apply_along_axis("sum", spread)))

    return Reduction(persistent=persistent, start=start, step=step, finish=finish)


def _online_softmax() -> Reduction:
    """Maximum and sum of exponentials; over a loop in one pass (Milakov and Gimelshein 2018)."""

    def lowest(site: Site) -> Expression:
        return free_constant(smallest(site.dtype), site.dtype)

    def persistent(site: Site, writer: Writer) -> tuple[Expression, ...]:
        kept = writer.bind("kept", site.fill_invalid(lowest(site))) if site.valid is not None else site.value
        high = writer.bind("max", _reduce(site, writer, "combine_max_nan", kept))
        return (high, writer.bind("sum", site.apply_along_axis("sum", tl("exp", Binary("-", kept, high)))))

    def start(site: Site, writer: Writer) -> tuple[Name, ...]:
        high = fill_shape(site.shape, smallest(site.dtype), site.dtype, chunk=site.chunk)
        total = fill_shape(site.shape, 0, site.dtype, chunk=site.chunk)
        return (writer.bind("max_lanes", high), writer.bind("sum_lanes", total))

    def step(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> None:
        value = site.fill_invalid(lowest(site))
        if site.chunk == 1:
            writer.device("online_softmax_step")
            writer.assign(lanes, call("online_softmax_step", *lanes, value))
            return
        writer.device("online_softmax_chunks")
        writer.assign(lanes, call("online_softmax_chunks", *lanes, value, Number(site.chunk)))

    def finish(site: Site, writer: Writer, lanes: tuple[Name, ...]) -> tuple[Expression, ...]:
        high, partial = lanes
        overall = writer.bind("max", _reduce(site, writer, "combine_max_nan", high))
        writer.device("exp_for_sum")
        scaled = Binary("*", partial, call("exp_for_sum", Binary("-", high, overall)))
        return (overall, writer.bind("sum", site.apply_along_axis("sum", scaled)))

    return Reduction(persistent=persistent, start=start, step=step, finish=finish)


REDUCTIONS: Final[Mapping[str, Reduction]] = MappingProxyType(
    {
        "sum": _simple(
            lambda _: 0,
            lambda _, lanes, value: Binary("+", lanes, value),
            lambda site, _, value: _narrow_result(site, site.apply_along_axis("sum", value)),
            "sum",
        ),
        "prod": _simple(
            lambda _: 1,
            lambda _, lanes, value: Binary("*", lanes, value),
            lambda site, writer, value: _reduce(site, writer, "combine_mul", value),
            "prod",
        ),
        "min": _extremum("minimum", largest, "&"),
        "max": _extremum("maximum", smallest, "|"),
        "argmin": _arg("argmin", largest),
        "argmax": _arg("argmax", smallest),
        "any": _logical("any", False, "|", "max"),
        "all": _logical("all", True, "&", "min"),
        "xor_sum": _simple(
            lambda _: 0,
            lambda _, lanes, value: Binary("^", lanes, value),
            lambda site, _, value: _narrow_result(site, site.apply_along_axis("xor_sum", value)),
            "xor",
        ),
        "welford": _welford(),
        "online_softmax": _online_softmax(),
    }
)
