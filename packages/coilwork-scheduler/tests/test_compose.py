"""Drafts of kernels: values in a group's space, offsets under masks, and sums in 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from declared import schedule
from graph_builder import Builder

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, floordiv, mod, symbol
from coilwork_ir.index import const as index_const
from coilwork_ir.kernels import KernelCall
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.scalar import Op, Reduce, Scalar, Scan, cast, const, index_value, iterate_postorder, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.kernels.compose import simplify_under_mask
from coilwork_scheduler.kernels.rounding import find_decisions

BF16, F32 = DType.BF16, DType.F32


def roundings(build: Builder, *outputs: str, numerics: Numerics = "fast") -> int:
    """How many casts to 16 bits the one kernel has: of each store one, and those whose result is used on."""
    made = schedule(build.graph(*outputs), get_target("sm_90"), ScheduleOptions(numerics=numerics))
    (kernel,) = made.kernels
    assert sum(isinstance(step, KernelCall) for step in made.steps) == 1
    values = tuple(iterate_postorder(tuple(store.value for store in kernel.stores)))
    widened = [v.operands[0] for v in values if isinstance(v, Op) and v.op == "cast" and v.dtype is F32]
    return sum(isinstance(one, Op) and one.op == "cast" and one.dtype is BF16 for one in widened)


def doubled(build: Builder, name: str, source: str) -> None:
    def body(i: Expr) -> Scalar:
        return cast(op("mul", cast(build.at(source, i), F32), const(1.1, F32)), BF16)

    build.pointwise(name, [8], body, dtype=BF16)


def compare(build: Builder, name: str, one: str, other: Callable[[Expr], Scalar]) -> None:
    def body(i: Expr) -> Scalar:
        return op("le", cast(build.at(one, i), F32), other(i))

    build.pointwise(name, [8], body, dtype=DType.BOOL)


def test_what_is_compared_with_another_value_is_rounded(build: Builder) -> None:
    build.input("x", 8, dtype=BF16)
    build.input("z", 8, dtype=BF16)
    doubled(build, "a", "x")
    compare(build, "y", "a", lambda i: cast(build.at("z", i), F32))
    assert roundings(build, "y") == 1


def test_what_is_compared_with_a_number_stays_wide(build: Builder) -> None:
    build.input("x", 8, dtype=BF16)
    doubled(build, "a", "x")
    compare(build, "y", "a", lambda i: const(0.5, F32))
    assert roundings(build, "y") == 0


@pytest.mark.parametrize("decides", [True, False])
def test_what_is_stored_and_decides_is_used_as_stored(build: Builder, decides: bool) -> None:
    """Another kernel finds it in memory, and has to find the same from it."""
    build.input("x", 8, dtype=BF16)
    build.input("z", 8, dtype=BF16)
    build.pointwise("a", [8], lambda i: cast(op("lgamma", cast(build.at("x", i), F32)), BF16), dtype=BF16)
    doubled(build, "b", "a")
    if decides:
        compare(build, "y", "b", lambda i: cast(build.at("z", i), F32))
    else:
        doubled(build, "y", "b")
    assert roundings(build, "a", "y") == (2 if decides else 0)


def test_what_an_extreme_is_taken_of_decides(build: Builder) -> None:
    build.input("x", 8, 8, dtype=BF16)
    build.pointwise("a", [8, 8], lambda i, j: build.at("x", i, j), dtype=BF16)
    build.pointwise("b", [8, 8], lambda i, j: build.at("a", i, j), dtype=BF16)
    build.pointwise("c", [8, 8], lambda i, j: build.at("a", i, j), dtype=BF16)
    build.reduce("m", "max", [8], [8], lambda i, r: build.at("b", i, r), dtype=BF16)
    build.reduce("s", "sum", [8], [8], lambda i, r: build.at("c", i, r), dtype=BF16)
    assert find_decisions(build.graph("m", "s")).deciding == {"x", "a", "b"}


ROW = symbol("i", lo=0, extent=index_const(4096))


def below(expression: Expr, limit: int) -> Scalar:
    return op("lt", index_value(expression), const(limit, DType.I64))


def test_a_division_that_the_mask_makes_idle_goes_away() -> None:
    place = mod(ROW, index_const(1024))
    index = 51470336 * floordiv(place, index_const(1023)) + 50264 * mod(place, index_const(1023))
    assert simplify_under_mask(index, below(place, 1023)) is 50264 * place
    assert (
        simplify_under_mask(index, op("bitwise_and", below(ROW, 5000), below(place, 1023))) is 50264 * place
    )
    assert simplify_under_mask(index, below(place, 1024)) is index


def test_quotient_and_remainder_come_together_again() -> None:
    place = mod(ROW, index_const(1024))
    index = 1024 * floordiv(ROW, index_const(1024)) + mod(place, index_const(1023))
    assert simplify_under_mask(index, below(place, 1023)) is ROW


def test_either_of_two_conditions_says_nothing() -> None:
    place = mod(ROW, index_const(1024))
    index = mod(place, index_const(1023))
    assert simplify_under_mask(index, op("bitwise_or", below(place, 1023), below(ROW, 7))) is index


def test_what_may_be_negative_is_divided() -> None:
    signed = symbol("s", lo=-8)
    index = mod(signed, index_const(16))
    assert simplify_under_mask(index, below(signed, 16)) is index


SCAN = """
graph @g {{
  input %x: {dtype}[4, {length}]
  (%y: i64[4, {length}]) = scan sum [i0: 4, i1: {length}] along i1{back} {{
    t0 = load %x[i0, i1] : {dtype}
    t1 = cast(t0) : i64
    yield t1
  }}
  return (%y)
}}"""
SUM = """
graph @g {{
  input %x: {dtype}[4, {length}]
  (%y: i64[4]) = reduce sum [i0: 4 | r0: {length}] {{
    t0 = load %x[i0, r0] : {dtype}
    t1 = cast(t0) : i64
    yield t1
  }}
  return (%y)
}}"""
TORCH = {"bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32}


def types(text: str, device: str, *, given: torch.Tensor | None = None) -> set[DType]:
    """The types of the sums that `text` takes on `device`; with `given`, after a comparison of what is
    computed.
    """
    graph = parse_graph(text)
    made = schedule(graph, get_target(device))
    verify_schedule(made)
    if given is not None:
        (wanted,), (found,) = interpret_graph(graph, (given,)), interpret_schedule(made, (given,))
        assert isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor)
        assert wanted.dtype is found.dtype is torch.int64 and torch.equal(wanted, found)
    values = [store.value for kernel in made.kernels for store in kernel.stores]
    return {node.dtype for node in iterate_postorder(values) if isinstance(node, Reduce | Scan)}


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i8", "i16"])
def test_short_rows_of_small_numbers(dtype: str, device: str) -> None:
    least, most = (
        (0, 2) if dtype == "bool" else (torch.iinfo(TORCH[dtype]).min, torch.iinfo(TORCH[dtype]).max + 1)
    )
    x = torch.randint(least, most, (4, 100)).to(TORCH[dtype])
    for text in (SUM, SCAN):
        made = text.format(dtype=dtype, length=100, back="")
        assert types(made, device, given=x) == {DType.I32}
    assert types(SCAN.format(dtype=dtype, length=100, back=" reverse"), device, given=x) == {DType.I32}


def test_the_largest_sum_decides() -> None:
    # 65535 * 32768 is the last that fits, of -32768
    assert types(SCAN.format(dtype="i16", length=65535, back=""), "x86-64-avx512") == {DType.I32}
    assert types(SCAN.format(dtype="i16", length=65536, back=""), "x86-64-avx512") == {DType.I64}
    assert types(SCAN.format(dtype="i32", length=2, back=""), "x86-64-avx512") == {DType.I64}


def test_a_length_that_nobody_knows_has_no_largest_sum() -> None:
    text = SCAN.format(dtype="bool", length="n", back="").replace(
        "  input", "  symbol n in [1, inf]\n  input", 1
    )
    assert types(text, "sm_90") == {DType.I64}


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx512"])
def test_bytes_that_wrap_around_are_summed_as_they_are(device: str) -> None:
    text = """
graph @g {
  input %x: u8[4, 100]
  (%y: i64[4]) = reduce sum [i0: 4 | r0: 100] {
    t0 = load %x[i0, r0] : u8
    t1 = const 200 : u8
    t2 = sub(t0, t1)
    t3 = cast(t2) : i64
    yield t3
  }
  return (%y)
}"""
    x = torch.randint(0, 256, (4, 100)).to(torch.uint8)
    assert types(text, device, given=x) == {DType.I32}
