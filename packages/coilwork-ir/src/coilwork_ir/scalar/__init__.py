"""Scalar values: interned graphs of loads, constants and scalar ops."""

from coilwork_ir.scalar.build import (
    cast,
    const,
    index_value,
    load,
    op,
    placeholder,
    reduce,
    scan,
    sort,
    where,
)
from coilwork_ir.scalar.contraction import Contraction, contraction_in, contraction_of
from coilwork_ir.scalar.leading import leading_points
from coilwork_ir.scalar.nodes import Const, IndexValue, Literal_, Load, Op, Reduce, Scalar, Scan, Sort
from coilwork_ir.scalar.walk import (
    loads,
    postorder,
    range_symbols,
    rewrite,
    substitute_ranges,
    with_operands,
)
from coilwork_ir.scalar.whole import in_32_bits, whole_span

__all__ = [
    "Const",
    "Contraction",
    "IndexValue",
    "Literal_",
    "Load",
    "Op",
    "Reduce",
    "Scalar",
    "Scan",
    "Sort",
    "cast",
    "const",
    "contraction_in",
    "contraction_of",
    "in_32_bits",
    "index_value",
    "leading_points",
    "load",
    "loads",
    "op",
    "placeholder",
    "postorder",
    "range_symbols",
    "reduce",
    "rewrite",
    "scan",
    "sort",
    "substitute_ranges",
    "where",
    "whole_span",
    "with_operands",
]
