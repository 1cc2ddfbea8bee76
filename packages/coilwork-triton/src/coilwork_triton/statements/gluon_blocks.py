"""Blocks of attention whose warps have roles, as Gluon names them: descriptors, shared memory and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coilwork_ir.index import Expr, as_expr
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Binary,
    Expression,
    List,
    Name,
    Number,
    Statement,
    method,
)
from coilwork_triton.launch.parameters import BLOCKS
from coilwork_triton.product_roles import GROUP_WARPS
from coilwork_triton.statements.attention_tiles import SharedOperand
from coilwork_triton.text.gluon import gl, hopper, lay_out_blocks


def describe(one: SharedOperand, block: List, print_index: Callable[[Expr], Expression]) -> Statement:
    """Make the descriptor of `one` in blocks of these extents."""
    stored = one.rows
    start: Expression = Name(stored.buffer)
    if stored.start != as_expr(0):
        start = Binary("+", start, print_index(stored.start))
    sizes = (*(each.extent for each in stored.outer), stored.rows, stored.length)
    steps = (*(each.stride for each in stored.outer), stored.stride)
    element = Attribute(Attribute(Name(stored.buffer), "dtype"), "element_ty")
    layout = method(Attribute(Name("gl"), "NVMMASharedLayout"), "get_default_for", block, element)
    described = hopper(
        "tma.make_tensor_descriptor",
        start,
        List(tuple(map(print_index, sizes))),
        List((*map(print_index, steps), Number(1))),
        block,
        layout,
    )
    return Assign((one.blocks.id,), described)


def allocate(one: SharedOperand, extents: tuple[Expression, ...]) -> Expression:
    """Shared memory for blocks of `one`."""
    element = Attribute(one.blocks, "dtype")
    return gl("allocate_shared_memory", element, List(extents), Attribute(one.blocks, "layout"))


def allocate_barriers(number: Expression) -> Expression:
    """Shared memory for so many barriers."""
    element, layout = Attribute(Name("gl"), "int64"), hopper("mbarrier.MBarrierLayout")
    return gl("allocate_shared_memory", element, List((number, Number(1))), layout)


def lay_out(statements: Sequence[Statement], layout: str) -> tuple[Statement, ...]:
    """`statements` with `layout` of blocks that they make from nothing: positions, and constants."""
    axes = {BLOCKS["y"]: 0, BLOCKS["x"]: 1, BLOCKS["l"]: 1, BLOCKS["r"]: 1}
    return lay_out_blocks(statements, axes, Name(layout))


def slice_layout(axis: int, layout: str) -> Expression:
    """Return the layout of rows, or of columns, of a block in `layout`."""
    return gl("SliceLayout", Number(axis), Name(layout))


def product_layout(columns: Expression) -> Expression:
    """Return the layout in which a group of warps holds a product of 64 rows and `columns`."""
    version, warps = List((Number(3), Number(0))), List((Number(GROUP_WARPS), Number(1)))
    return gl("NVMMADistributedLayout", version, warps, List((Number(16), columns, Number(16))))


def multiply(left: Expression, right: Expression, total: Expression, **more: Expression) -> Expression:
    """Begin a product, which is added to `total`."""
    return hopper("warpgroup_mma", left, right, total, **more, is_async=Number(True))
