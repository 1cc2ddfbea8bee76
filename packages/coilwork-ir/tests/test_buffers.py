"""Buffers: layouts, offsets, references of arguments."""

from __future__ import annotations

from coilwork_ir.buffers import (
    Buffer,
    Item,
    ListValue,
    Ref,
    TorchValue,
    list_references,
    make_contiguous_strides,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol

N = symbol("n", lo=2)


def test_contiguous_strides_are_products_of_the_inner_extents() -> None:
    assert make_contiguous_strides((N, as_expr(4), as_expr(3))) == (as_expr(12), as_expr(3), as_expr(1))
    assert make_contiguous_strides(()) == ()


def test_a_buffer_knows_its_size() -> None:
    shape = (N, as_expr(4))
    buffer = Buffer(name="b", dtype=DType.F32, shape=shape, strides=(as_expr(1), N))
    assert buffer.numel is N * 4
    assert buffer.span is 4 * N
    i, j = symbol("i0", extent=N), symbol("i1", extent=4)
    assert buffer.offset_of((i, j)) is i + N * j
    assert buffer.device == "cpu"


def test_expanded_dimensions_take_no_memory() -> None:
    buffer = Buffer(name="b", dtype=DType.F32, shape=(N, as_expr(4)), strides=(as_expr(0), as_expr(1)))
    assert buffer.span is as_expr(4)
    assert buffer.numel is N * 4


def test_what_has_no_elements_takes_no_memory() -> None:
    # torch's strides of an empty tensor count an extent of 0 as 1
    empty = Buffer(
        name="b", dtype=DType.F32, shape=(as_expr(4), as_expr(0)), strides=(as_expr(1), as_expr(1))
    )
    assert empty.span is as_expr(0)


def test_references_of_arguments() -> None:
    nested = ListValue((Ref("a"), ListValue((Ref("b"), None)), 3))
    assert list_references(nested) == ("a", "b")
    assert list_references(Ref("x")) == list_references(Item("x")) == ("x",)
    assert list_references(TorchValue("strided")) == list_references("x") == list_references(N) == ()
