"""The length of an expression that is written out: the measure by which index arithmetic is kept short.

Parts that are equal are one object, so an expression takes little memory whatever it says. With
`y = x // 3 + x % 3` and that `y` for the next `x` again and again, it doubles in text at each step and grows
by two nodes in memory. Printed, proved about and computed it is as long as its text.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from coilwork_ir.index.expression import CONST, PRODUCT, SYMBOL, Expr

# Beyond it nobody tells sizes apart, and numbers stay small.
_MOST: Final = 1 << 40


class WrittenSize(NamedTuple):
    """The size of an expression that is written out.

    Attributes:
        nodes: operations, symbols and numbers, each as often as it is written.
        symbols: how many of them are symbols.
    """

    nodes: int
    symbols: int

    def bound_substitution(self, most: WrittenSize) -> WrittenSize:
        """A bound on the size, before simplification, once each symbol is of size `most` or less."""
        return WrittenSize(
            min(self.nodes + self.symbols * (most.nodes - 1), _MOST), min(self.symbols * most.symbols, _MOST)
        )


def written_size(e: Expr) -> WrittenSize:
    """The size of `e` written out. Takes time once per node: expressions remember it."""
    known = e._written
    if known is not None:
        return WrittenSize(*known)
    tag = e._tag
    if tag == CONST:
        nodes, symbols = 1, 0
    elif tag == SYMBOL:
        nodes, symbols = 1, 1
    elif tag <= PRODUCT:
        # one operation less than there are operands of a product or an extremum, as of a division
        nodes, symbols = len(e._args) - 1, 0
        for part in e._args:
            nodes, symbols = _sum(nodes, symbols, part)
    else:
        terms = len(e._monos) + (e._constant != 0)
        nodes, symbols = terms - 1 + (e._constant != 0), 0
        for m, c in zip(e._monos, e._coeffs):
            nodes, symbols = _sum(nodes + (0 if c in (1, -1) else 2), symbols, m)
    e._written = (min(nodes, _MOST), min(symbols, _MOST))
    return WrittenSize(*e._written)


def _sum(nodes: int, symbols: int, part: Expr) -> tuple[int, int]:
    size = written_size(part)
    return nodes + size.nodes, symbols + size.symbols
