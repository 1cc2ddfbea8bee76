"""Sums of what is zero at all points but one."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Scan
from coilwork_ir.scalar import Reduce, const, index_value, op, postorder, where

F64, I64 = DType.F64, DType.I64


def c(value, dtype=F64):
    return const(value, dtype)


def one_hot(build, width, term, otherwise=0.0, position=None):
    """Per row: the sum over classes of `where(class == target, term, otherwise) * scale`."""
    build.input("target", 6, dtype=I64)
    build.input("scale", 6)

    def body(i, r):
        target = build.at("target", i) if position is None else position(i, r)
        hit = where(op("eq", index_value(r), target), term(i, r), c(otherwise))
        return op("mul", hit, build.at("scale", i))

    build.reduce("y", "sum", [6], [width], body)


def reductions(made):
    return [
        node
        for kernel in made.kernels
        for node in postorder(tuple(store.value for store in kernel.stores))
        if isinstance(node, Reduce)
    ]


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
# targets are 0 to 3: within, and partly outside
@pytest.mark.parametrize("width", [5, 2])
def test_the_one_term_is_the_sum(build, compare, width, target):
    one_hot(build, width, lambda i, r: c(-1.0))
    made = compare(build.graph("y"), name=target)
    assert reductions(made) == []
    assert [call.args for call in made.steps if isinstance(call, KernelCall)] == [("target", "scale", "y")]


def test_with_strict_numerics_zeros_are_multiplied(build, compare):
    one_hot(build, 5, lambda i, r: c(-1.0))
    assert len(reductions(compare(build.graph("y"), numerics="strict"))) == 1


def test_other_terms_are_summed(build, compare):
    one_hot(build, 5, lambda i, r: c(-1.0), otherwise=0.5)
    assert len(reductions(compare(build.graph("y")))) == 1


@pytest.mark.parametrize("width", [5, 2])
def test_a_term_of_its_own_at_each_point_is_looked_up(build, compare, width):
    build.input("x", 6, width)
    one_hot(build, width, lambda i, r: build.at("x", i, r))
    assert reductions(compare(build.graph("y"))) == []


@pytest.mark.parametrize("dtype", [F64, I64])
def test_rows_of_floats_that_zeros_are_multiplied_with_are_summed(build, compare, dtype):
    build.input("x", 6, 5, dtype=dtype)
    build.input("target", 6, dtype=I64)

    def body(i, r):
        hit = where(op("eq", index_value(r), build.at("target", i)), c(1, dtype), c(0, dtype))
        return op("mul", hit, build.at("x", i, r))

    build.reduce("y", "sum", [6], [5], body, dtype=dtype)
    assert len(reductions(compare(build.graph("y")))) == (dtype is F64)


def test_a_term_of_a_row_that_a_kernel_makes_is_summed_there(build, compare):
    at = build.at
    build.input("x", 6, 5)
    build.reduce("m", "max", [6], [5], lambda i, r: at("x", i, r))
    build.pointwise("p", [6, 5], lambda i, r: op("exp", op("sub", at("x", i, r), at("m", i))))
    one_hot(build, 5, lambda i, r: at("p", i, r))
    made = compare(build.graph("p", "y"))
    assert len(made.kernels) == 1 and len(reductions(made)) == 2


def test_of_a_scan_along_columns_the_one_term_is_looked_up(build, compare):
    build.input("x", 6, 5)
    rows, classes = build.ranges(6, 5)
    build.nodes.append(
        Scan(
            outputs=(build.buffer("s", 6, 5),),
            kind="sum",
            ranges=(rows, classes),
            axis=rows,
            body=build.at("x", rows, classes),
        )
    )
    one_hot(build, 5, lambda i, r: build.at("s", i, r))
    assert reductions(compare(build.graph("y"))) == []


def test_a_target_of_its_own_at_each_point_is_summed(build, compare):
    build.input("targets", 6, 5, dtype=I64)
    one_hot(build, 5, lambda i, r: c(2.0), position=lambda i, r: build.at("targets", i, r))
    assert len(reductions(compare(build.graph("y")))) == 1
