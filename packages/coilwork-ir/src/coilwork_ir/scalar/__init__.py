"""Scalar values: interned graphs of loads, constants and scalar ops, which fill nodes and kernels.

Open `nodes.py` first. `build.py` has the constructors, `walk.py` goes through graphs and rewrites them; the
other files find facts about values.
"""

from coilwork_ir.scalar.build import (
    cast,
    combine,
    const,
    contract,
    index_value,
    load,
    op,
    parameter,
    placeholder,
    reduce,
    scan,
    sort,
    where,
)
from coilwork_ir.scalar.contraction import ContractionParts, find_contraction, find_parts
from coilwork_ir.scalar.conversions import cast_to_e4m3_or_nan, is_lossless, joined, joined_small
from coilwork_ir.scalar.leading import leading_points
from coilwork_ir.scalar.nodes import (
    Combine,
    Combining,
    Const,
    Contraction,
    IndexValue,
    Literal_,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
)
from coilwork_ir.scalar.parts import even_parts
from coilwork_ir.scalar.walk import (
    loads,
    postorder,
    range_symbols,
    rewrite,
    scan_again,
    substitute_ranges,
    with_operands,
)
from coilwork_ir.scalar.whole import in_32_bits, whole_span

__all__ = [
    "Combine",
    "Combining",
    "Const",
    "Contraction",
    "ContractionParts",
    "IndexValue",
    "Literal_",
    "Load",
    "Op",
    "Parameter",
    "Reduce",
    "Scalar",
    "Scan",
    "Sort",
    "cast",
    "cast_to_e4m3_or_nan",
    "combine",
    "const",
    "contract",
    "even_parts",
    "find_contraction",
    "find_parts",
    "in_32_bits",
    "index_value",
    "is_lossless",
    "joined",
    "joined_small",
    "leading_points",
    "load",
    "loads",
    "op",
    "parameter",
    "placeholder",
    "postorder",
    "range_symbols",
    "reduce",
    "rewrite",
    "scan",
    "scan_again",
    "sort",
    "substitute_ranges",
    "where",
    "whole_span",
    "with_operands",
]
