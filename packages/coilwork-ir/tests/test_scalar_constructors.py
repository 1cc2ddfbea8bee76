"""Constructors of scalar nodes intern, and refuse what the op table does not allow."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast as cast_type

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import symbol
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Scalar,
    cast,
    combine,
    const,
    index_value,
    load,
    op,
    parameter,
    reduce,
    scan,
    sort,
    where,
)
from coilwork_ir.scalar.nodes import SCALARS

I = symbol("i0", extent=8)
R = symbol("r0", extent=4)
X = load("x", [I], DType.F32)
B = const(True, DType.BOOL)


def build() -> Scalar:
    value = op("mul", load("x", [I], DType.F32), const(2.0, DType.F32))
    return where(op("lt", value, const(0.0, DType.F32)), value, op("exp", value))


def test_equal_values_are_one_object() -> None:
    assert build() is build()
    assert index_value(I + 1) is index_value(I + 1)
    assert reduce("sum", [X], [R]) is reduce("sum", [X], [R])
    assert scan("sum", X, R) is not scan("sum", X, R, reverse=True)
    assert sort(X, R) is sort(X, R) and sort(X, R) is not sort(X, R, descending=True)
    assert load("x", [I], DType.F32) is not load("y", [I], DType.F32)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: build(), range(64)))) == 1


def test_constants_are_told_apart_by_their_bits() -> None:
    assert const(0.0, DType.F32) is not const(-0.0, DType.F32)
    assert const(float("nan"), DType.F32) is const(float("nan"), DType.F32)
    assert const(1, DType.F32) is const(1.0, DType.F32) is const(True, DType.F32)
    assert const(1, DType.I64) is not const(1, DType.I32)
    assert const(1, DType.BOOL) is B and B.value is True
    assert const(2.0, DType.I32).value == 2
    assert const(10**400, DType.F64).value == float("inf")
    for value in (0.5, float("nan"), float("inf")):
        with pytest.raises(VerifyError, match="const-range"):
            const(value, DType.I32)
    with pytest.raises(VerifyError, match="const-type"):
        const(1, DType.C64)


def test_masked_loads_differ_by_their_other_value() -> None:
    zero = load("x", [I], DType.F32, mask=op("isnan", X), other=0.0)
    minus = load("x", [I], DType.F32, mask=op("isnan", X), other=-0.0)
    assert zero is not minus
    assert load("x", [I], DType.F32, mask=B, other=3.0) is X
    assert X.operands == () and zero.operands == (op("isnan", X),)


def test_a_cast_to_the_own_type_is_nothing() -> None:
    assert cast(X, DType.F32) is X
    assert op("bitcast", X, dtype=DType.F32) is X
    assert cast(X, DType.BF16).dtype is DType.BF16


# as it would come from a text
UNKNOWN_KIND = cast_type(ReduceKind, "mean")


@pytest.mark.parametrize(
    "code, build",
    [
        ("unknown-op", lambda: op("nothing", X)),
        ("arity", lambda: op("add", X)),
        ("operand-type", lambda: op("add", X, const(1, DType.I32))),
        ("operand-type", lambda: op("sqrt", const(1, DType.I32))),
        ("operand-type", lambda: op("bitwise_and", X, X)),
        ("operand-type", lambda: where(X, X, X)),
        ("operand-type", lambda: where(B, X, B)),
        ("operand-type", lambda: op("add", B, B)),
        ("operand-type", lambda: op("neg", load("c", [I], DType.C64))),
        ("cast-type", lambda: op("cast", X)),
        ("cast-type", lambda: op("bitcast", X, dtype=DType.I64)),
        ("cast-type", lambda: op("neg", X, dtype=DType.F32)),
        ("mask-type", lambda: load("x", [I], DType.F32, mask=X)),
        ("index-type", lambda: load("x", [I], DType.F32, indirect=[X])),
        ("index-type", lambda: index_value(I, [X])),
        ("unknown-op", lambda: reduce(UNKNOWN_KIND, [X], [R])),
        ("reduce-output", lambda: reduce("sum", [X], [R], output=1)),
        ("arity", lambda: reduce("sum", [], [R])),
        ("mask-type", lambda: reduce("sum", [X, X], [R])),
        ("operand-type", lambda: reduce("any", [X], [R])),
        ("operand-type", lambda: reduce("welford", [B], [R])),
        ("scan-output", lambda: scan("sum", X, R, output=1)),
        ("arity", lambda: scan("sum", X, R, others=[X])),
        ("scan-output", lambda: scan(combine([parameter(0, DType.F32)]), X, R, output=1)),
        ("operand-type", lambda: scan(combine([parameter(0, DType.I64)]), X, R)),
        ("operand-type", lambda: scan(combine([parameter(0, DType.F32)]), X, R, others=[X])),
        ("combine-results", lambda: combine([])),
        ("combine-results", lambda: combine([X])),
        ("combine-parameter", lambda: combine([parameter(2, DType.F32)])),
        ("combine-parameter", lambda: combine([cast(parameter(1, DType.F32), DType.I64)])),
        ("sort-output", lambda: sort(X, R, output=2)),
        ("operand-type", lambda: sort(load("z", [R], DType.C64), R)),
    ],
)
def test_wrong_operands_are_refused_by_code(code: str, build: Callable[[], object]) -> None:
    with pytest.raises(VerifyError) as caught:
        build()
    assert caught.value.code == code


def test_result_types_follow_from_kinds() -> None:
    assert reduce("argmax", [X], [R]).dtype is DType.I64
    assert reduce("welford", [X], [R], output=1).dtype is DType.F32
    assert scan("max", X, R, output=1).dtype is DType.I64
    assert sort(X, R).dtype is X.dtype and sort(X, R, output=1).dtype is DType.I64
    assert index_value(I).dtype is DType.I64


def test_nodes_are_immutable_and_not_pickled() -> None:
    with pytest.raises(AttributeError):
        X.buffer = "y"
    with pytest.raises(TypeError, match="text form"):
        pickle.dumps(X)


def test_what_nobody_uses_goes_away() -> None:
    gc.collect()
    before = len(SCALARS)  # whatever else ran in this process may still hold
    for k in range(20000 + 2 * before):
        const(k + 0.5, DType.F64)
    assert len(SCALARS) <= 2 * before + 1024
