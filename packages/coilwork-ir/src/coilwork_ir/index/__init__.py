"""Index arithmetic: hash-consed integer expressions in a canonical normal form.

The form is `sum(coefficient * product of atoms) + constant`, where an atom is a symbol, `a // b`, `a % b`, a
minimum or a maximum. Equal normal forms are the same object. Open `expression.py` first; `division.py` has
the rules, `proofs.py` what can be proved. `sympy_bridge.py`, imported on its own, converts from and to sympy.
"""

from coilwork_ir.index.division import ceildiv, floordiv, mod, recombine
from coilwork_ir.index.expression import (
    Expr,
    IndexArithmeticError,
    IndexSyntaxError,
    add_all,
    as_expr,
    as_int,
    const,
    get_extent,
    get_extents,
    multiply_all,
    symbol,
)
from coilwork_ir.index.interval import Interval, bound_magnitude, find_bounds, find_largest_operands
from coilwork_ir.index.proofs import (
    maximum,
    minimum,
    provably_divisible,
    provably_eq,
    provably_le,
    provably_lt,
    provably_nonneg,
    provably_positive,
)
from coilwork_ir.index.substitution import (
    evaluate,
    find_coefficients,
    find_run_stride,
    find_stride,
    substitute,
)
from coilwork_ir.index.text import format_expr, parse_expr
from coilwork_ir.index.view import (
    Add,
    Const,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Node,
    Sym,
    TreeSize,
    fold,
    get_node,
    is_subtracted,
    measure_tree,
)

__all__ = [
    "Add",
    "Const",
    "Expr",
    "FloorDiv",
    "IndexArithmeticError",
    "IndexSyntaxError",
    "Interval",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Node",
    "Sym",
    "TreeSize",
    "as_expr",
    "as_int",
    "find_bounds",
    "ceildiv",
    "find_coefficients",
    "find_run_stride",
    "const",
    "evaluate",
    "get_extent",
    "get_extents",
    "floordiv",
    "fold",
    "format_expr",
    "is_subtracted",
    "find_largest_operands",
    "bound_magnitude",
    "maximum",
    "minimum",
    "mod",
    "get_node",
    "parse_expr",
    "multiply_all",
    "recombine",
    "provably_divisible",
    "provably_eq",
    "provably_le",
    "provably_lt",
    "provably_nonneg",
    "provably_positive",
    "find_stride",
    "substitute",
    "symbol",
    "add_all",
    "measure_tree",
]
