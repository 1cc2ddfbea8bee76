"""Index expressions as register code: every distinct (sub)expression has a register, computed once before its
first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from coilwork_ir.index import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr, node
from coilwork_wrapper.native.encoding import Code, Operation, encode_list, i64, u8, u32

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1
CONSTANT: Final = 1 << 31
_DIGIT_BITS: Final = 62

_Key = tuple[Operation, int, int]


class Registers:
    """The registers of one part, as its instructions come to need them.

    A constant's number has the bit `CONSTANT` set; the others are counted apart.
    """

    def __init__(self) -> None:
        self._constants: dict[int, int] = {}
        self._symbols: dict[str, int] = {}
        self._known: dict[Expr, int] = {}
        self._computed: dict[_Key, int] = {}
        self._count = 0
        self._pending: list[tuple[_Key, int]] = []
        self._beyond: list[int] = []

    def symbol(self, symbol: Expr) -> int:
        """The register of a symbol, which somebody else fills."""
        if symbol.name not in self._symbols:
            self._symbols[symbol.name] = self._next()
        return self._symbols[symbol.name]

    def of(self, value: Expr | int) -> int:
        """The register of `value`; what computes it comes with the next `take_pending`."""
        expr = as_expr(value)
        if expr not in self._known:
            self._known[expr] = self._compute(expr)
        return self._known[expr]

    def take_pending(self) -> Sequence[tuple[_Key, int]]:
        """Return what has to be computed before the instruction at hand; asked for once."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def beyond(self) -> Sequence[int]:
        """Constants that do not fit 64 bits, which are computed."""
        return self._beyond

    @property
    def constants(self) -> Sequence[int]:
        """Values of the constants."""
        return tuple(self._constants)

    @property
    def count(self) -> int:
        """How many registers there are that are no constants."""
        return self._count

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _compute(self, expr: Expr) -> int:
        match node(expr):
            case Const(value):
                return self._constant(value)
            case Sym(_, symbol):
                return self.symbol(symbol)
            case Add(operands):
                return self._chain(Operation.ADD, operands)
            case Mul(operands):
                return self._chain(Operation.MULTIPLY, operands)
            case FloorDiv(left, right):
                return self._operation(Operation.FLOOR_DIVIDE, self.of(left), self.of(right))
            case Mod(left, right):
                return self._operation(Operation.MODULO, self.of(left), self.of(right))
            case Min(operands):
                return self._chain(Operation.MINIMUM, operands)
            case Max(operands):
                return self._chain(Operation.MAXIMUM, operands)

    def _constant(self, value: int) -> int:
        if not SMALLEST <= value <= LARGEST:
            self._beyond.append(value)
            high, low = value >> _DIGIT_BITS, value & ((1 << _DIGIT_BITS) - 1)
            shifted = self._operation(
                Operation.MULTIPLY, self._constant(high), self._constant(1 << _DIGIT_BITS)
            )
            return self._operation(Operation.ADD, shifted, self._constant(low))
        return CONSTANT | self._constants.setdefault(value, len(self._constants))

    def _chain(self, operation: Operation, operands: Sequence[Expr]) -> int:
        return reduce(
            lambda left, right: self._operation(operation, left, right), [self.of(one) for one in operands]
        )

    def _operation(self, operation: Operation, left: int, right: int) -> int:
        key = (operation, left, right)
        if key not in self._computed:
            self._computed[key] = self._next()
            self._pending.append((key, self._computed[key]))
        return self._computed[key]


def compute_bytes(steps: Sequence[tuple[_Key, int]], place: int) -> bytes:
    """The instruction that computes `steps`."""

    def step(one: tuple[_Key, int]) -> bytes:
        (operation, left, right), target = one
        numbers = (target, left, right)
        return u8(operation) + b"".join(map(u32, numbers))

    return u8(Code.COMPUTE) + u32(place) + encode_list(steps, step)


def constants_bytes(registers: Registers) -> bytes:
    """How many registers there are, and the values of the constants."""
    return u32(registers.count) + encode_list(registers.constants, i64)
