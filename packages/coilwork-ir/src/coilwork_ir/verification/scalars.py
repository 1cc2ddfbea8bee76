"""Checks of scalar graphs against the buffers and symbols around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.scalar import IndexValue, Load, Parameter, Scalar, placeholder
from coilwork_ir.verification.rules import Place, Rule

SCALAR_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "load-dtype": Rule(
            "a load has the element type of its buffer", "load the buffer's own type and cast the value"
        ),
        "index-rank": Rule(
            "a buffer is indexed by one expression per dimension (in kernels: by one flat offset)",
            "give as many index expressions as the buffer has dimensions",
        ),
        "placeholder": Rule(
            "`@k` stands for the k-th computed index value, which is given",
            "list the value after `using`, or use the range symbol itself",
        ),
        "mask-type": Rule("masks and conditions of checks are bool", "compare the value with zero"),
        "parameter": Rule(
            "what a function that combines, or an epilogue, is given is read in that function only",
            "load the value",
        ),
        "index-type": Rule("computed index values are integers", "cast the index to i64"),
    }
)


class SymbolScope(Protocol):
    """What knows the declared symbols."""

    def check_symbols(self, expr: Expr, local: Collection[Expr], place: Place) -> None:
        """Fail at `place` if `expr` uses symbols that are neither declared nor in `local`."""
        ...


def check_index(
    exprs: Sequence[Expr],
    indirect: Sequence[Scalar],
    local: Collection[Expr],
    scope: SymbolScope,
    place: Place,
) -> None:
    """Symbols of index expressions are declared, ranges, or placeholders of the values `indirect`."""
    for value in indirect:
        if not value.dtype.is_integer:
            place.fail("index-type", f"an index value is {value.dtype.text}")
    for expr in exprs:
        symbols = expr.free_symbols
        if not any(s.name.startswith("@") for s in symbols):
            scope.check_symbols(expr, local, place)
            continue
        given = {placeholder(k) for k in range(len(indirect))}
        for found in symbols:
            if found.name.startswith("@") and found not in given:
                place.fail("placeholder", f"{found.name} in {expr!r}: {len(indirect)} index values are given")
        scope.check_symbols(expr, {*local, *given}, place)


def check_load(node: Load, dtype: DType, rank: int, place: Place) -> None:
    """The load fits a buffer of `dtype` that is indexed by `rank` expressions."""
    if node.dtype is not dtype:
        place.fail("load-dtype", f"%{node.buffer} is {dtype.text}, loaded as {node.dtype.text}")
    if len(node.index) != rank:
        place.fail("index-rank", f"%{node.buffer} takes {rank} index expressions, got {len(node.index)}")


def check_symbols_of(node: Scalar, local: Collection[Expr], scope: SymbolScope, place: Place) -> None:
    """Index expressions of `node` itself (not of its operands) use known symbols only; it is no parameter."""
    match node:
        case Load():
            check_index(node.index, node.indirect, local, scope, place)
        case IndexValue():
            check_index((node.expr,), node.operands, local, scope, place)
        case Parameter():
            place.fail("parameter", f"parameter {node.position} of no function")
        case _:
            pass


def check_mask(value: Scalar | None, what: str, place: Place) -> None:
    """A mask or condition, if there is one, is bool."""
    if value is not None and not value.dtype.is_bool:
        place.fail("mask-type", f"{what} is {value.dtype.text}")
