"""The canonical text of an expression; `parse_expr` reads it back."""

from __future__ import annotations

from coilwork_ir.index.expression import (
    CONST,
    FLOORDIV,
    MIN,
    MOD,
    PRODUCT,
    RULES,
    SUM,
    SYMBOL,
    Expr,
    atoms_of,
)


def format_expr(e: Expr) -> str:
    """For example `1024*i0 + i1`, `(i0 + 3) // 8`, `8*(i0 // 8) - 2*s0*i1 + min(s0, 4)`."""
    if e._tag == CONST:
        return str(e._constant)
    if e._tag == FLOORDIV or e._tag == MOD:
        return _quotient(e)
    parts: list[str] = []
    for m, c in zip(e._monos, e._coeffs, strict=True):
        sign = ("-" if c < 0 else "") if not parts else (" - " if c < 0 else " + ")
        if c == 1 and m._tag in (FLOORDIV, MOD):
            parts.append(sign + _quotient(m))
            continue
        factors = [] if c in (1, -1) else [str(abs(c))]
        factors.extend(_factor(a) for a in atoms_of(m))
        parts.append(sign + "*".join(factors))
    if e._constant:
        parts.append(f" {'-' if e._constant < 0 else '+'} {abs(e._constant)}")
    return "".join(parts)


def _quotient(e: Expr) -> str:
    return f"{_operand(e._args[0])} {'//' if e._tag == FLOORDIV else '%'} {_operand(e._args[1])}"


def _factor(atom: Expr) -> str:
    if atom._tag == SYMBOL:
        return atom._data[0]
    if atom._tag == FLOORDIV or atom._tag == MOD:
        return f"({_quotient(atom)})"
    name = "min" if atom._tag == MIN else "max"
    return f"{name}({', '.join([format_expr(a) for a in atom._args])})"


def _operand(e: Expr) -> str:
    """An operand of // or %: anything but a bare name, a call or a natural number takes parentheses."""
    if e._tag in (SUM, PRODUCT, FLOORDIV, MOD) or (e._tag == CONST and e._constant < 0):
        return f"({format_expr(e)})"
    return format_expr(e)


RULES.describe = format_expr
