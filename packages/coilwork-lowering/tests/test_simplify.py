"""Simplification keeps every value, NaN, infinities and signed zeros included."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_evaluator import Evaluator

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import Scalar, cast, const, is_lossless, load, op, where
from coilwork_lowering.building.simplify import simplify

I0 = symbol("i0", extent=12)
X = load("x", [I0], DType.F32)
VALUES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, math.nan, 1e30, -1e-30, 3.0])


def value_of(body: Scalar) -> torch.Tensor:
    evaluator = Evaluator(Graph(name="g", inputs=(), nodes=(), outputs=()), {})
    evaluator.memory["x"] = VALUES
    return evaluator.body(body, evaluator.env([I0]), [12])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return bool((a == b).all())
    both_nan = a.isnan() & b.isnan()
    return bool((both_nan | ((a == b) & (a.signbit() == b.signbit()))).all())


LITERALS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, math.inf, math.nan])
LEAVES = st.one_of(st.just(X), LITERALS.map(lambda v: const(v, DType.F32)))


def _bodies(children: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "div", "pow", "maximum"]), children, children).map(
            lambda t: op(*t)
        ),
        children.map(lambda c: cast(cast(c, DType.F64), DType.F32)),
        children.map(lambda c: cast(op("ne", c, const(0, DType.F32)), DType.F32)),
        st.tuples(st.sampled_from(["lt", "eq", "ge"]), children, children, children).map(
            lambda t: where(op(t[0], t[1], t[2]), t[3], t[1])
        ),
    )


@given(st.recursive(LEAVES, _bodies, max_leaves=6))
@settings(max_examples=300, deadline=None)
def test_values_are_kept(body: Scalar) -> None:
    assert same_bits(value_of(simplify(body)), value_of(body))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (op("mul", X, const(1, DType.F32)), X),
        (op("sub", X, const(0, DType.F32)), X),
        (op("pow", X, const(2, DType.F32)), op("mul", X, X)),
        (op("div", X, const(4, DType.F32)), op("mul", X, const(0.25, DType.F32))),
        (cast(cast(X, DType.F64), DType.F32), X),
        (where(const(True, DType.BOOL), X, op("neg", X)), X),
    ],
)
def test_each_pattern_is_simplified(before: Scalar, after: Scalar) -> None:
    assert simplify(before) is after


def test_adding_zero_to_a_float_stays() -> None:
    body = op("add", X, const(0, DType.F32))
    assert simplify(body) is body


def test_rounding_through_a_narrow_type_stays() -> None:
    body = cast(cast(X, DType.BF16), DType.F32)
    assert simplify(body) is body


def test_conversions_that_keep_every_value_are_lossless() -> None:
    assert (
        is_lossless(DType.BF16, DType.F32)
        and is_lossless(DType.U8, DType.I16)
        and is_lossless(DType.BOOL, DType.I8)
    )
    assert is_lossless(DType.I8, DType.BF16) and is_lossless(DType.U8, DType.F16)
    assert is_lossless(DType.I16, DType.F32) and is_lossless(DType.U32, DType.F64)
    assert not is_lossless(DType.I16, DType.BF16) and not is_lossless(DType.I16, DType.F16)
    assert not is_lossless(DType.I32, DType.F32) and not is_lossless(DType.BF16, DType.I8)
    assert not is_lossless(DType.BF16, DType.F16)
    assert not is_lossless(DType.I8, DType.U16)
    assert not is_lossless(DType.I64, DType.F64)


def test_constants_are_what_their_types_hold() -> None:
    """0.1 as f32, and as f16, are other numbers than 0.1."""
    tenth = const(0.1, DType.F32)
    assert simplify(cast(tenth, DType.F64)) is const(0.10000000149011612, DType.F64)
    assert simplify(op("eq", tenth, const(0.10000000149011612, DType.F32))) is const(True, DType.BOOL)
    assert simplify(op("eq", const(0.1, DType.F16), const(0.1001, DType.F16))) is const(False, DType.BOOL)
    assert simplify(cast(const(-0.0, DType.BF16), DType.F64)) is const(-0.0, DType.F64)


def test_a_reciprocal_that_a_type_does_not_hold_is_none() -> None:
    quotient = op("div", load("x", [symbol("i0")], DType.F16), const(2.0**-20, DType.F16))
    assert simplify(quotient) is quotient
