"""The canonical text of index expressions, written and read: `parse_expr(format_expr(e)) is e`.

The reader is a tokenizer and a precedence-climbing parser (Pratt, POPL 1973).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coilwork_ir.index.division import floordiv, mod
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
    IndexArithmeticError,
    IndexSyntaxError,
    add_all,
    const,
    list_atoms,
    multiply,
    scale,
)
from coilwork_ir.index.proofs import maximum, minimum


def format_expr(e: Expr) -> str:
    """Return the text of `e`, for example `(i0 + 3) // 8` or `8*(i0 // 8) - 2*s0*i1 + min(s0, 4)`."""
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
        factors.extend(_factor(a) for a in list_atoms(m))
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
    """Return an operand of // or %: anything but a bare name, a call or a natural number takes
    parentheses.
    """
    if e._tag in (SUM, PRODUCT, FLOORDIV, MOD) or (e._tag == CONST and e._constant < 0):
        return f"({format_expr(e)})"
    return format_expr(e)


RULES.describe = format_expr


_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_@][A-Za-z0-9_.$]*)|(//|[-+*%(),]))")
_END: Final = ""


def parse_expr(text: str, symbols: Mapping[str, Expr]) -> Expr:
    """Return the expression that `text` spells, with names looked up in `symbols`.

    Raises IndexSyntaxError, with the position, for malformed text, unknown names and division by the constant
    zero.
    """
    parser = _Parser(text, symbols)
    result = parser.expression()
    if parser.token != _END:
        raise parser.error(f"expected an operator or the end, found {parser.token!r}")
    return result


class _Parser:
    def __init__(self, text: str, symbols: Mapping[str, Expr]) -> None:
        self.text = text
        self.symbols = symbols
        self.at = 0
        self.end = 0
        self.token = _END
        self.advance()

    def error(self, reason: str, position: int | None = None) -> IndexSyntaxError:
        return IndexSyntaxError(reason, text=self.text, position=self.at if position is None else position)

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            rest = self.text[self.end :]
            self.at = self.end + len(rest) - len(rest.lstrip())
            if rest.strip():
                raise self.error(f"unexpected character {self.text[self.at]!r}")
            self.token = _END
            return
        self.token = match[1] or match[2] or match[3]
        self.at = match.end() - len(self.token)
        self.end = match.end()

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.error(
                f"expected {token!r}, found {self.token!r}" if self.token else f"expected {token!r}"
            )
        self.advance()

    def expression(self) -> Expr:
        # The terms are added in one go: a partial sum must not simplify differently from the whole.
        terms = [self.term()]
        while self.token in ("+", "-"):
            negative = self.token == "-"
            self.advance()
            term = self.term()
            terms.append(scale(term, -1) if negative else term)
        return terms[0] if len(terms) == 1 else add_all(terms)

    def term(self) -> Expr:
        left = self.unary()
        while self.token in ("*", "//", "%"):
            operator, position = self.token, self.at
            self.advance()
            right = self.unary()
            if operator == "*":
                left = multiply(left, right)
                continue
            try:
                left = floordiv(left, right) if operator == "//" else mod(left, right)
            except IndexArithmeticError as cause:
                raise self.error("division by zero", position) from cause
        return left

    def unary(self) -> Expr:
        if self.token == "-":
            self.advance()
            # Tighter than "*": the same value, since the product of negations is the negation of the product.
            return scale(self.unary(), -1)
        token, position = self.token, self.at
        if token.isdigit():
            self.advance()
            return const(int(token))
        if token == "(":
            self.advance()
            inner = self.expression()
            self.expect(")")
            return inner
        if token[:1].isalpha() or token[:1] in ("_", "@"):
            self.advance()
            if self.token == "(" and token in ("min", "max"):
                return self.call(token)
            symbol = self.symbols.get(token)
            if symbol is None:
                raise self.error(f"unknown symbol {token!r}", position)
            return symbol
        raise self.error(f"expected an operand, found {token!r}" if token else "expected an operand")

    def call(self, function: str) -> Expr:
        self.expect("(")
        args = [self.expression()]
        while self.token == ",":
            self.advance()
            args.append(self.expression())
        self.expect(")")
        return minimum(*args) if function == "min" else maximum(*args)
