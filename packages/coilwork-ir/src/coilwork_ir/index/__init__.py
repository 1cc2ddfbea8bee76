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
    as_expr,
    as_int,
    const,
    extent_of,
    extents_of,
    product,
    symbol,
    total,
)
from coilwork_ir.index.interval import Interval, bounds, largest_operands, magnitude
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
from coilwork_ir.index.substitution import coefficients, evaluate, stride_of, substitute
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
    is_subtracted,
    node,
    tree_size,
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
    "bounds",
    "ceildiv",
    "coefficients",
    "const",
    "evaluate",
    "extent_of",
    "extents_of",
    "floordiv",
    "fold",
    "format_expr",
    "is_subtracted",
    "largest_operands",
    "magnitude",
    "maximum",
    "minimum",
    "mod",
    "node",
    "parse_expr",
    "product",
    "recombine",
    "provably_divisible",
    "provably_eq",
    "provably_le",
    "provably_lt",
    "provably_nonneg",
    "provably_positive",
    "stride_of",
    "substitute",
    "symbol",
    "total",
    "tree_size",
]
